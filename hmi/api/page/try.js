// Try a text: choose a model, write a text, and see the answer.

import { pages, segment, send } from "./api.js";
import { answer } from "./answer.js";
import { announce, command, field, fill, h, once, title } from "./dom.js";
import { session, trouble } from "./session.js";
import { elsewhere } from "./start.js";
import { writing, writingCommand } from "./write.js";

const MOST = 500;

export async function tryText(main, name, signal) {
  const found = session.mode === "infer" ? [] : (await pages("/manage/models", "models", MOST, signal))[0];
  if (signal.aborted) return;
  const head = title("Try a text", "Ask a model, and see what it answers and how it got there.");
  if (session.mode !== "infer" && !found.length) {
    fill(main, head, h("div", { class: "card" }, h("p", { class: "lead" }, "There is no model to ask yet. ", h("a", { href: "#/teach" }, "Teach one"), " from labelled rows.")));
    return;
  }
  const chosen = decodeURIComponent(name);
  const models = new Map(found.map((m) => [m.model, m]));
  const input = found.length
    ? h("select", null, found.map((m) => h("option", { value: m.model }, `${m.model} (${m.task})`)))
    : h("input", { type: "text", autocomplete: "off", spellcheck: "false", required: true, placeholder: "tenant.model" });
  if (chosen) input.value = chosen;
  const form = h("div"), typed = {};
  const draw = () => {
    const kind = kindOf(models.get(input.value));
    fill(form, asking(() => input.value.trim(), kind, signal, typed), found.length > 0 && commands(input.value, kind));
  };
  if (found.length) input.addEventListener("change", draw);
  draw();
  fill(main, head, h("div", { class: "card" }, field("Model", input), form));
}

/** What `asking` must know of a model; nothing is known of one that the key may not list. */
export function kindOf(model) {
  if (!model) return { task: null, paired: null };
  const live = model.versions.find((v) => v.version === model.current);
  return { task: model.task, paired: model.task === "pair" || live.rules.paired };
}

/**
 * The form for a text or a prompt, with the answer below. modelName: gives the name. kind: task and paired, null if not
 * known; then the server's answer tells which form it is, and what was typed is sent again in it. typed: keeps what is
 * typed and ticked, for the form of another model.
 */
export function asking(modelName, kind, signal, typed = {}) {
  const box = h("div");
  const draw = (writes) => {
    const failed = (error) => {
      if (kind.task !== null || !OTHER[writes].test(error.message)) return false;
      draw(!writes);
      box.querySelector("form").requestSubmit();
      return true;
    };
    const kept = (controls) => keep(typed, controls);
    fill(box, writes ? writing(modelName, signal, kept, failed) : labelling(modelName, kind, signal, kept, failed));
  };
  draw(kind.task === "generation");
  return box;
}

const OTHER = { true: /POST \/infer\//, false: /POST \/generate\// };

function labelling(modelName, { task, paired }, signal, kept, failed) {
  const text = h("textarea", { rows: 4, required: true, placeholder: PLACEHOLDERS[task] ?? PLACEHOLDERS.other });
  const pair = paired === false ? null : h("textarea", { rows: 2, required: paired });
  const exact = h("input", { type: "checkbox" }), calibrated = h("input", { type: "checkbox", checked: true });
  kept({ text, pair, exact, calibrated });
  const button = h("button", { type: "submit" }, "Ask");
  const out = h("div", { "aria-live": "polite" }, h("p", { class: "lead" }, "The answer appears here."));
  const ask = async () => {
    fill(out, h("p", { class: "lead" }, "Asking …")); // an earlier answer never stands beside a new text
    const asked = { text: text.value, pair: pair?.value.trim() ? pair.value : undefined };
    const parameters = { return: ["scores", "words", "provenance"], exact: exact.checked, calibrated: calibrated.checked };
    try {
      const input = asked.pair === undefined ? { text: asked.text } : { text: asked.text, text_pair: asked.pair };
      const found = await send("POST", `/infer/${segment(modelName())}`, { inputs: [input], parameters }, signal);
      fill(out, h("h2", { class: "sr" }, "Answer"), answer(found, asked));
      announce("The answer is there");
    } catch (error) {
      if (error.name !== "AbortError" && !failed(error)) fill(out, trouble(error));
    }
  };
  const keys = (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) event.target.form.requestSubmit(); };
  for (const area of [text, pair]) area?.addEventListener("keydown", keys);
  const submit = (event) => { event.preventDefault(); once(button, ask); };
  return h("div", { class: "grid" }, h("form", { onsubmit: submit },
    field("Text", text), pair && field(paired ? "Second text" : "Second text, for models of pairs only", pair),
    h("div", { class: "row" }, button,
      h("label", { class: "check" }, calibrated, "Calibrated scores"),
      h("label", { class: "check" }, exact, "Without the PLOT")),
    h("p", { class: "note more" }, "Ctrl and Enter in a text asks, too. Calibrated: of answers with the score 0.9, nine in ten are right; programs and ‘hmi infer’ get plain scores, which may differ, unless they ask for calibrated ones. Without the PLOT: the lower layers are computed, as a reference.")), out);
}

/** The commands that ask the model. They answer whole files, too; the page asks about one text at a time. */
export function commands(name, { task, paired }) {
  if (task === "generation") return writingCommand(name);
  const ask = `hmi infer ${name} --batch texts.jsonl`;
  const tools = task !== "embedding" && [command(`${ask} --form label-studio > tasks.json`), !paired && task !== "regression" && command(`${ask} --form doccano > rows.jsonl`)];
  return h("details", { class: "more" }, h("summary", null, "Answer a whole file, or have people correct the answers"),
    command(`${ask} > answers.jsonl`), tools,
    tools && h("p", { class: "note" }, "Label Studio and doccano import the answers as pre-annotations, which people correct instead of labelling from nothing. Then teach the model their export."),
    elsewhere());
}

/** Fill controls with what `typed` has of them, and let it have what changes. */
function keep(typed, controls) {
  for (const [name, control] of Object.entries(controls)) {
    if (!control) continue; // the second text of a model that has none
    const value = control.type === "checkbox" ? "checked" : "value";
    control[value] = typed[name] ?? control[value];
    control.addEventListener("input", () => { typed[name] = control[value]; });
  }
}

const PLACEHOLDERS = {
  tagging: "A sentence, in which the model finds entities",
  other: "Write or paste a text, then press Ask (or Ctrl and Enter)",
};
