// Calls of this page's own server. The key is kept in this tab's session storage only, and is sent in a header
// only: it is never part of an address.

const KEPT = "hmi-key";

export const keyOf = () => sessionStorage.getItem(KEPT);
export function setKey(key) {
  if (key) sessionStorage.setItem(KEPT, key);
  else sessionStorage.removeItem(KEPT);
}

/** An error that the server answered with, or that kept it from answering (kind `unreachable`). */
export class ApiError extends Error {
  constructor(status, kind, message, details = {}) {
    super(message);
    Object.assign(this, { status, kind, details });
  }
}

// Relative to the page, so that it also works below a path of a proxy.
const address = (path) => new URL(path.replace(/^\//, ""), document.baseURI).href;

async function answered(path, options) {
  const key = keyOf();
  const headers = { ...options.headers, ...(key && { Authorization: `Bearer ${key}` }) };
  let response;
  try {
    response = await fetch(address(path), { ...options, headers, cache: "no-store" });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError(0, "unreachable", "The server does not answer. Is it running?");
  }
  if (response.ok) return response;
  const body = await response.json().catch(() => null);
  const told = body?.error ?? { kind: "internal", message: `The server answered with ${response.status}.` };
  throw new ApiError(response.status, told.kind, told.message, told.details);
}

export const get = async (path, signal) => (await answered(path, { signal })).json();

export async function send(method, path, body, signal) {
  const form = body instanceof FormData;
  const headers = body === undefined || form ? {} : { "Content-Type": "application/json" };
  const given = body === undefined ? undefined : form ? body : JSON.stringify(body);
  return (await answered(path, { method, headers, body: given, signal })).json();
}

/** A call with files: `spec` is the JSON, `files` the parts by name. */
export function upload(path, spec, files, signal) {
  const form = new FormData();
  form.append("spec", new Blob([JSON.stringify(spec)], { type: "application/json" }));
  for (const [name, file] of Object.entries(files)) form.append(name, file, "file");
  return send("POST", path, form, signal);
}

/** Follow server-sent events. (EventSource can send neither key nor body.) `on` gets each event's name and data. */
export async function follow(path, on, signal, body) {
  const sent = body && { method: "POST", body: JSON.stringify(body) };
  const headers = { Accept: "text/event-stream", ...(sent && { "Content-Type": "application/json" }) };
  const response = await answered(path, { ...sent, signal, headers });
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      throw error.name === "AbortError" ? error : new ApiError(0, "unreachable", "The connection to the server broke off.");
    });
    if (done) return;
    const blocks = (waiting + value).split("\n\n");
    waiting = blocks.pop();
    for (const block of blocks) {
      const said = Object.fromEntries(block.split("\n").filter((l) => !l.startsWith(":")).map((line) => {
        const at = line.indexOf(": ");
        return [line.slice(0, at), line.slice(at + 2)];
      }));
      if (said.event) on(said.event, JSON.parse(said.data));
    }
  }
}

/** All pages of a list, up to `most` items: [items, whether there are more]. */
export async function pages(path, name, most, signal) {
  const found = [];
  let after = null;
  do {
    const sep = path.includes("?") ? "&" : "?";
    const page = await get(`${path}${sep}limit=100${after ? `&after=${encodeURIComponent(after)}` : ""}`, signal);
    found.push(...page[name]);
    after = page.next;
  } while (after && found.length < most);
  return [found, Boolean(after)];
}

export const segment = encodeURIComponent;
