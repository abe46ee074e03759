// The choice of a file, and what the server detects in it: format, rows, task, labels, and errors with their lines.

import { upload } from "./api.js";
import { entityMark } from "./answer.js";
import { bars } from "./chart.js";
import { announce, badge, callout, facts, field, fill, h, refocus, table, ticked } from "./dom.js";
import { bytes, count, plural, sentence } from "./format.js";
import { encodingOf, textColumn } from "./reading.js";
import { trouble } from "./session.js";

const BEGINNING = 6 << 20; // the server reads 4 MiB of a file to check it
const SHOWN_LABELS = 12;
const TASKS = { classification: "one label", pair: "one label for a pair of texts", multilabel: "several labels", regression: "a number", tagging: "entities in a text, or a tag for each word", generation: "a text that a language model writes" };

/**
 * The part of the form that holds the file. state: gets `file`, `check` (the server's answer), `skip`, `reading` (the
 * options by which the file is read), and `columns` (those that may hold its text, where it does not tell).
 * task: the task that the rows must have, or null. changed(usable): called after each check.
 */
export function detected(state, task, changed, signal) {
  const input = h("input", { type: "file", accept: ".jsonl,.ndjson,.json,.csv,.tsv,.txt,.conll,.yml,.yaml,.gz,.zst,text/*" });
  const out = h("div", { "aria-live": "polite" });
  const encoding = encodingOf(() => check(task));
  let checks = 0;
  const drop = h("div", { class: "drop" }, field("Choose a file of rows, or drop one here", input));
  input.addEventListener("change", () => input.files[0] && take(input.files[0]));
  for (const kind of ["dragenter", "dragover"]) {
    drop.addEventListener(kind, (event) => { event.preventDefault(); drop.classList.add("over"); });
  }
  drop.addEventListener("dragleave", () => drop.classList.remove("over"));
  drop.addEventListener("drop", (event) => {
    event.preventDefault();
    drop.classList.remove("over");
    if (event.dataTransfer.files[0]) take(event.dataTransfer.files[0]);
  });

  function take(file) {
    Object.assign(state, { file, check: null, skip: 0, reading: {}, columns: [] });
    encoding.begin();
    check(task);
  }

  async function check(as) {
    const { file } = state, run = ++checks;
    if (encoding.value()) state.reading.encoding = encoding.value();
    else delete state.reading.encoding;
    changed(false);
    // While the same file is read in another way its controls stay, so that the arrow keys can go on through a choice.
    if (state.check === null) fill(out, h("p", { class: "note" }, `Reading ${file.name} …`));
    out.setAttribute("aria-busy", "true");
    try {
      const spec = { skip_bad_rows: state.skip, options: state.reading, ...(as && { task: as }) };
      const seen = await upload("/manage/check", spec, { data: await beginning(file) }, signal);
      if (run !== checks) return; // another file, or another way to read it, was chosen meanwhile
      const held = out.contains(document.activeElement) ? document.activeElement.name : null;
      state.check = seen;
      if (seen.text_columns.length) state.columns = seen.text_columns;
      encoding.wanted(seen);
      fill(out, result(state, check, task));
      if (held !== null) refocus(out.querySelector(`[name="${held}"]`) ?? out); // the controls are drawn anew
      changed(state.check.usable && state.check.kind === "rows");
      announce(state.check.usable ? `${plural(state.check.count, "row")} read` : "The file cannot be used as it is");
    } catch (error) {
      if (error.name !== "AbortError" && run === checks) fill(out, trouble(error));
    }
    if (run === checks) out.removeAttribute("aria-busy");
  }
  return h("div", { class: "stack" }, drop, encoding.box, out);
}

/** The beginning of a file, which suffices for the check; a compressed one is sent whole. */
export async function beginning(file) {
  const [a, b] = new Uint8Array(await file.slice(0, 2).arrayBuffer());
  const compressed = (a === 0x1f && b === 0x8b) || (a === 0x28 && b === 0xb5);
  return compressed ? file : file.slice(0, BEGINNING);
}

function result(state, check, wanted) {
  const seen = state.check;
  if (seen.kind === "corpus" && seen.usable) {
    return callout("warn", h("p", null, "These are texts without labels, which a domain is built from. A model needs rows with labels."));
  }
  const task = h("select", { name: "task", onchange: () => check(task.value) }, Object.entries(TASKS).map(([id, name]) => h("option", { value: id }, `${id}: ${name}`)));
  task.value = seen.task ?? "classification";
  return h("div", { class: "stack appear" },
    seen.error && callout("bad", h("p", null, ticked(sentence(seen.error)))),
    guessed(state, check),
    textColumn(state.columns, state.reading.text_column, (name) => {
      state.reading = { ...seen.options, ...state.reading, text_column: name };
      check(wanted);
    }),
    facts(["File", `${state.file.name}, ${bytes(state.file.size)}`],
      seen.read && ["Read as", ticked(seen.read)],
      ["Rows", [`${count(seen.count)}${seen.whole ? "" : " in its beginning"} `, seen.usable ? badge("usable", "good") : badge("not usable", "bad")]]),
    seen.count > 0 && field("Each row answers with", task),
    problems(state, check), seen.notes.map((said) => h("p", { class: "note" }, badge("note", "accent"), " ", ticked(sentence(said)))),
    h("div", { class: "grid" }, labels(seen), sample(seen)));
}

/** What the server guesses of columns whose names it does not know, with a button that reads the file so. */
function guessed(state, check) {
  const { options, task } = state.check, { text_column: text, label_column: label, labels_columns: labels } = options;
  if (!Object.keys(options).length) return null;
  const listed = (names) => [names ?? []].flat().map((name) => `“${name}”`).join(", ");
  const said = [text && `the text is in ${listed(text)}`, label && `the label in ${listed(label)}`, labels && `a label each in ${listed(labels)}`,
    options.header === false && "the first line is a row"].filter(Boolean).join("; ");
  const read = h("button", { type: "button", name: "guess", onclick: () => { state.reading = { ...options, ...state.reading }; check(task); } }, "Read it so");
  return callout("accent", h("p", null, `It may be meant as rows of the task ${task}: ${said}. `), h("p", null, read));
}

function problems(state, check) {
  const seen = state.check;
  if (!seen.problems.length || (state.columns.length && !state.reading.text_column)) return null; // all lack a text
  const leave = seen.bad_rows <= seen.count && h("label", { class: "check" }, h("input", { type: "checkbox", name: "skip", checked: state.skip > 0,
    onchange: (event) => { state.skip = event.target.checked ? seen.bad_rows : 0; check(seen.task); } }), `Leave out the ${plural(seen.bad_rows, "row")} that cannot be used`);
  return h("div", null, leave, table("Rows that cannot be used", [
    { head: "Line", row: true, cell: (p) => count(p.line) }, { head: "What is wrong", cell: (p) => ticked(p.message.replace(/^line \d+: /, "")) }], seen.problems));
}

function labels(seen) {
  const all = Object.entries(seen.entities ?? seen.labels);
  if (!all.length) return null;
  const most = Math.max(...all.map(([, n]) => n));
  return h("div", null, h("h3", null, seen.entities ? plural(all.length, "type of entity", "types of entities") : plural(all.length, seen.task === "tagging" ? "tag" : "label")),
    bars(all.slice(0, SHOWN_LABELS).map(([name, n]) => [name, n / most, count(n)])),
    all.length > SHOWN_LABELS && h("p", { class: "note" }, `and ${all.length - SHOWN_LABELS} more`));
}

function sample(seen) {
  if (!seen.sample.length) return null;
  if (seen.task === "generation") return prompts(seen.sample);
  const text = (row) => (row.tokens ? row.tokens.join(" ") : [row.text, row.text_pair].filter(Boolean).join(" ‖ "));
  const said = (row) => [row.label ?? row.value ?? row.labels?.join(", ") ?? row.tags.join(" ")].join("");
  const columns = seen.entities ? [{ head: "Text with its entities", cell: (row) => entities(row.tokens, seen.sample_entities[seen.sample.indexOf(row)], Object.keys(seen.entities)) }]
    : [{ head: "Text", cell: text }, { head: "Answer", cell: said }];
  return h("div", null, h("h3", null, "The first rows"), table("The first rows", columns, seen.sample, true));
}

const prompts = (rows) => h("div", null, h("h3", null, "The first rows"), table("The first rows", [
  { head: "Prompt", cell: (row) => row.prompt }, { head: "What the model writes", cell: (row) => row.completion }], rows, true));

/** The words of a row, its entities marked. types: all types of the file. */
function entities(tokens, found, types) {
  const parts = [];
  let at = 0;
  for (const { label, start_word: start, end_word: end } of found) {
    parts.push(tokens.slice(at, start).join(" "), entityMark(types.indexOf(label), tokens.slice(start, end).join(" "), label));
    at = end;
  }
  return [...parts, tokens.slice(at).join(" ")].flatMap((part) => (part === "" ? [] : [part, " "]));
}
