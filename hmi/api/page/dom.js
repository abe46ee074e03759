// Builds the page's elements. Texts become text nodes and nothing else, so that a tenant's text, label or
// name can never become markup. Trusted types (see the policy that the server sends) make sure of that.

const SVG = "http://www.w3.org/2000/svg";

function filled(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes ?? {})) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) node.addEventListener(name.slice(2), value);
    else if (name === "style") for (const [rule, given] of Object.entries(value)) node.style.setProperty(rule, given);
    else if (name === "value" || name === "checked") node[name] = value;
    else node.setAttribute(name, value === true ? "" : String(value));
  }
  put(node, ...children);
  return node;
}

/** Append children: nodes, texts, numbers, lists of them; null, undefined and false add nothing. */
export function put(node, ...children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    node.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
  return node;
}

/** Create an element. `on…` attributes are listeners; `style` holds CSS properties. */
export const h = (tag, attributes, ...children) => filled(document.createElement(tag), attributes, children);
export const svg = (tag, attributes, ...children) => filled(document.createElementNS(SVG, tag), attributes, children);

/** Replace what a node contains. */
export function fill(node, ...children) {
  node.replaceChildren();
  return put(node, ...children);
}

export const title = (heading, lead, ...end) =>
  h("div", { class: "title" }, h("div", null, h("h1", null, heading), lead && h("p", null, lead)), end);

export const card = (heading, ...children) =>
  h("section", { class: "card", "aria-label": heading }, heading && h("h2", null, heading), children);

/** A table with a caption. columns: {head, cell(row), n: is it a number, row: does it name its row, narrow: hide}. */
export function table(caption, columns, rows, quiet = false) {
  const cls = (c) => [c.n && "n", c.narrow === false && "hide-narrow"].filter(Boolean).join(" ") || null;
  return h("div", { class: "scroll", tabindex: 0, role: "region", "aria-label": caption },
    h("table", null,
      h("caption", { class: quiet ? "sr" : null }, caption),
      h("thead", null, h("tr", null, columns.map((c) => h("th", { scope: "col", class: cls(c) }, c.head)))),
      h("tbody", null, rows.map((row) => h("tr", null, columns.map((c) =>
        h(c.row ? "th" : "td", { scope: c.row ? "row" : null, class: cls(c) }, c.cell(row))))))));
}

/** A text in which `backticks` mark what is code. */
export const ticked = (text) => text.split("`").map((part, i) => (i % 2 ? h("code", null, part) : part));

export const badge = (text, kind) => h("span", { class: `badge ${kind ?? ""}` }, text);

export const facts = (...pairs) => h("dl", { class: "facts" }, pairs.filter(Boolean).map(([name, value]) =>
  [h("dt", null, name), h("dd", null, value)]));

/**
 * Do `work` unless the button is at it already. A button that were disabled meanwhile would lose the keyboard's focus.
 */
export async function once(button, work) {
  if (button.getAttribute("aria-disabled") === "true") return;
  button.setAttribute("aria-disabled", "true");
  try {
    await work();
  } finally {
    button.removeAttribute("aria-disabled");
  }
}

/** Give the focus to an element if nothing has it, since what had it is gone or hidden. */
export function refocus(node) {
  const held = document.activeElement;
  if (!node || (held && held !== document.body && held.checkVisibility())) return;
  if (!node.matches("a, button, input, select, textarea, [tabindex]")) node.tabIndex = -1;
  node.focus({ preventScroll: true });
}

let fields = 0;
/** A labelled input, with a note that is read out with it. */
export function field(label, input, note) {
  const id = `field-${++fields}`;
  input.id = id;
  if (note) input.setAttribute("aria-describedby", `${id}-note`);
  return h("div", { class: "field" }, h("label", { for: id }, label), input,
    note && h("p", { class: "note", id: `${id}-note` }, note));
}

export function command(text) {
  const button = h("button", { type: "button", class: "quiet small", onclick: async () => {
    try {
      await navigator.clipboard.writeText(text);
      button.textContent = "Copied";
      announce("Copied");
    } catch {
      getSelection().selectAllChildren(code);
      button.textContent = "Selected";
    }
    setTimeout(() => { button.textContent = "Copy"; }, 2000);
  }, "aria-label": `Copy: ${text}` }, "Copy");
  const code = h("code", null, text);
  return h("div", { class: "command" }, code, button);
}

export const callout = (kind, ...children) =>
  h("div", { class: `callout ${kind}`, role: kind === "bad" ? "alert" : null }, children);

/** Tell a screen reader. */
export function announce(text) {
  document.getElementById("announcer").textContent = text;
}
