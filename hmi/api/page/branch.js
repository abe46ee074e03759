// A new domain: a file of texts, what the server makes of it, and the progress of the job.

import { segment, upload } from "./api.js";
import { beginning } from "./detected.js";
import { callout, card, facts, field, fill, h, once, ticked } from "./dom.js";
import { bytes, count, sentence } from "./format.js";
import { live, outcome } from "./progress.js";
import { encodingOf } from "./reading.js";
import { trouble } from "./session.js";
import { NAME_RULE, nameInput } from "./tenant.js";

/** A form that makes a domain below one of `domains`. done(): called when the domain is there. */
export function newDomain(domains, signal, done) {
  const parent = h("select", null, domains.map((d) => h("option", { value: d.domain }, d.domain)));
  const name = nameInput({ placeholder: "such as news" });
  const file = h("input", { type: "file", required: true, accept: ".txt,.jsonl,.json,.gz,.zst,text/*", onchange: () => { encoding.begin(); check(); } });
  const encoding = encodingOf(() => check()), options = () => (encoding.value() ? { encoding: encoding.value() } : {});
  const button = h("button", { type: "submit", disabled: true }, "Make the domain");
  const seen = h("div", { "aria-live": "polite" }), told = h("div", { "aria-live": "polite" }), job = h("div", { class: "stack" });

  let checks = 0;
  async function check() {
    const chosen = file.files[0], run = ++checks;
    button.disabled = true;
    fill(told);
    if (!chosen) return;
    fill(seen, h("p", { class: "note" }, `Reading ${chosen.name} …`));
    try {
      const found = await upload("/manage/check", { corpus: true, options: options() }, { data: await beginning(chosen) }, signal);
      if (run !== checks) return; // another file, or another encoding, was chosen meanwhile
      button.disabled = !found.usable;
      encoding.wanted(found);
      fill(seen, found.error && callout("bad", h("p", null, ticked(sentence(found.error)))),
        facts(["File", `${chosen.name}, ${bytes(chosen.size)}`], found.read && ["Read as", ticked(found.read)],
          ["Documents", `${count(found.count)}${found.whole ? "" : " in its beginning"}`]));
    } catch (error) {
      if (error.name !== "AbortError" && run === checks) fill(seen, trouble(error));
    }
  }

  async function make() {
    fill(told, h("p", { class: "note" }, `Sending ${bytes(file.files[0].size)} …`));
    try {
      const domain = `${parent.value}/${name.value.trim()}`;
      const { job: id } = await upload("/manage/domains", { domain, options: options() }, { corpus: file.files[0] }, signal);
      const box = h("div");
      fill(told);
      fill(job, h("p", { class: "note" }, "You may leave this page: the job goes on, and ", h("a", { href: `#/jobs/${segment(id)}` }, "its own page"), " shows it."), box);
      const ended = await live(box, id, signal);
      if (ended.state === "succeeded") {
        done(domain);
        return;
      }
      fill(told, outcome(ended));
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(told, trouble(error));
    }
  }

  return card("New domain",
    h("p", { class: "note" }, "A domain knows the phrases of one kind of text: its PLOT answers them without computing. Some megabytes of text are enough, one document a line, without labels."),
    h("form", { class: "stack", onsubmit: (event) => { event.preventDefault(); once(button, make); } },
      h("div", { class: "grid" }, field("Below", parent, "The root, or a domain of which this one is a special case."), field("Name of the domain", name, NAME_RULE)),
      field("File of texts", file), encoding.box, seen, h("div", null, button), told, job));
}
