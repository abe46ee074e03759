// Controls that say how a file is read, where the file does not tell: its encoding, and the column of its text.

import { field, fill, h } from "./dom.js";

const ENCODINGS = ["utf-8", "utf-16", "windows-1250", "windows-1251", "windows-1252", "windows-1254", "iso-8859-1", "iso-8859-2",
  "iso-8859-15", "koi8-r", "mac-roman", "shift_jis", "gb18030", "big5", "euc-kr"];

/**
 * The field for a file's encoding, folded away until a file is chosen. changed(): called when another is given.
 * Returns its `box`; `value()`; `begin()`, for another file; and `wanted(seen)`, which unfolds it if the answer of a
 * check speaks of encodings.
 */
export function encodingOf(changed) {
  const input = h("input", { type: "text", list: "encodings", autocomplete: "off", spellcheck: "false", placeholder: "recognised by its bytes", onchange: told });
  let last = null;
  input.addEventListener("keydown", (event) => { // Enter must not send the form around it
    if (event.key !== "Enter") return;
    event.preventDefault();
    told();
  });
  const box = h("details", { hidden: true }, h("summary", null, "More options"),
    field("Encoding of the file", input, "Give it if letters look wrong, such as windows-1252."),
    h("datalist", { id: "encodings" }, ENCODINGS.map((name) => h("option", { value: name }))));
  function value() {
    return input.value.trim() || null;
  }

  function told() { // once by Enter, and not again when the field is left
    if (value() === last) return;
    last = value();
    changed();
  }

  return {
    box,
    value,
    begin() {
      input.value = "";
      last = null;
      box.open = box.hidden = false;
    },
    wanted(seen) {
      if ([seen.error, ...seen.notes].some((said) => /encoding/i.test(said ?? ""))) box.open = true;
    },
  };
}

/** The choice of the column that holds the text; null where the file tells. chosen(name): called with the new one. */
export function textColumn(columns, now, chosen) {
  if (!columns.length) return null;
  const select = h("select", { name: "text-column", onchange: () => chosen(select.value) });
  fill(select, !columns.includes(now) && h("option", { value: "", disabled: true }, "Choose one"), columns.map((name) => h("option", { value: name }, name)));
  select.value = columns.includes(now) ? now : "";
  return field("Column of the text", select, "The file has several texts, and their names do not tell which one the labels are about.");
}
