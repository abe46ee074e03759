// Who looks at the page: what the key may do, and the state of the server. Views ask this first.

import { ApiError, get, keyOf, setKey } from "./api.js";
import { announce, callout, fill, h, ticked } from "./dom.js";
import { sentence } from "./format.js";

export const session = {
  mode: "unknown", // admin | tenant | infer (may only try) | locked (needs a key) | waiting (server not ready)
  tenant: null,
  overview: null,
  why: null, // the error behind locked and waiting
};

/** Ask the server who we are. */
export async function refresh(minutes = 60, signal = undefined) {
  try {
    const seen = await get(`/manage/overview?minutes=${minutes}`, signal);
    const mode = seen.caller.tenant === null && seen.caller.scopes.includes("admin") ? "admin" : "tenant";
    Object.assign(session, { mode, tenant: seen.caller.tenant, overview: seen, why: null });
  } catch (error) {
    if (!(error instanceof ApiError)) throw error;
    const mode = { 401: "locked", 403: keyOf() ? "infer" : "locked", 429: session.mode }[error.status] ?? "waiting";
    Object.assign(session, { mode, tenant: null, overview: null, why: error });
  }
  showState();
  return session;
}

function showState() {
  const { mode, overview } = session;
  const [kind, text] = mode === "locked" ? ["warn", "key needed"]
    : mode === "infer" ? ["accent", "key may only try models"]
    : mode === "waiting" ? ["bad", session.why.details.phase ?? "no answer"]
    : overview.ready ? ["good", "serving"] : ["warn", overview.phase];
  fill(document.getElementById("state"), h("span", { class: `badge ${kind}` }, text),
    session.tenant && h("span", { class: "hide-narrow" }, session.tenant));
  document.getElementById("key-button").textContent = keyOf() ? "Key ✓" : "Key";
}

/** The dialog for the key. `done` runs after it has changed. */
export function askKey(done) {
  const input = h("input", { type: "password", id: "key", autocomplete: "off", spellcheck: "false", "aria-describedby": "key-note" });
  const told = h("div", { "aria-live": "polite" });
  const dialog = h("dialog", { "aria-labelledby": "key-title" },
    h("h2", { id: "key-title" }, "Access key"),
    h("form", { onsubmit: save },
      h("div", { class: "field" }, h("label", { for: "key" }, "Key"), input,
        h("p", { class: "note", id: "key-note" }, "It is kept in this tab until you close it, and sent to this server only. ",
          "A tenant's key shows that tenant's models; an administrator's shows everything.")),
      told,
      h("div", { class: "row" }, h("button", { type: "submit" }, "Use this key"),
        keyOf() && h("button", { type: "button", class: "quiet", onclick: forget }, "Forget the key"),
        h("button", { type: "button", class: "quiet", onclick: () => dialog.close() }, "Cancel"))));
  async function save(event) {
    event.preventDefault();
    const before = keyOf();
    setKey(input.value.trim());
    await refresh();
    if (session.mode === "locked") {
      fill(told, callout("bad", h("p", null, session.why.message)));
      setKey(before);
      return;
    }
    finish("The key is in use");
  }
  function forget() {
    setKey(null);
    finish("The key is forgotten");
  }
  function finish(said) {
    dialog.close();
    announce(said);
    done();
  }
  dialog.addEventListener("close", () => { dialog.remove(); document.getElementById("key-button").focus(); });
  document.body.append(dialog);
  dialog.showModal();
}

/** What a view shows instead of itself while it cannot be shown; null if it can. */
export function hindrance(view, retry) {
  const { mode, why } = session;
  if (mode === "locked") {
    return h("div", { class: "card stack" }, h("h1", null, "This server wants a key"),
      h("p", { class: "lead" }, keyOf() ? why.message : "Ask your administrator for a key of your tenant. On the server's machine, ‘hmi key create --admin’ makes an administrator's key, and ‘hmi tenant create NAME’ a tenant with its first key."),
      h("div", null, h("button", { type: "button", onclick: () => askKey(retry) }, "Enter a key")));
  }
  if (mode === "waiting") {
    return h("div", { class: "card" }, h("h1", null, "The server is not ready"),
      h("p", { class: "lead" }, why.message), h("p", null, "This page tries again every few seconds."));
  }
  if (mode === "infer" && !view.infer) {
    return h("div", { class: "card" }, h("h1", null, "Not with this key"),
      h("p", { class: "lead" }, "This key may ask models, and see nothing else. ", h("a", { href: "#/try" }, "Try a text"),
        ", or enter a key with the scope ‘manage’."));
  }
  if (view.admin && mode !== "admin") {
    return h("div", { class: "card" }, h("h1", null, "For administrators"), h("p", { class: "lead" }, "A tenant's key cannot see this."));
  }
  return null;
}

/** An error of a call, told kindly. */
export function trouble(error) {
  const hint = { 401: "Enter another key with the button at the top.", 403: "Use a key with a wider scope.",
    429: "Wait a little, and try again.", 503: "Try again in a few seconds." }[error.status];
  return callout("bad", h("p", null, ticked(sentence(error.message))), hint && h("p", { class: "note" }, hint));
}
