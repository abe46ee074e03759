// The form of a model that writes: a prompt, and its text as it comes.

import { ApiError, follow, segment } from "./api.js";
import { split } from "./chart.js";
import { announce, badge, command, field, fill, h, once, put, refocus } from "./dom.js";
import { figure, ms, percent, plural } from "./format.js";
import { trouble } from "./session.js";
import { elsewhere } from "./start.js";

const MOST_TOKENS = 200;
const MARKS = { "5gram": 5, "4gram": 4, trigram: 3, bigram: 2, unigram: 1, miss: 0 };
const ENDS = { end: "The model ended the text after", length: "The text has as much as was allowed:" };

/**
 * The form for a prompt, with the text below. modelName: gives the name. keep(controls): fills controls with what was
 * typed before. failed(error): true if it has dealt with an error.
 */
export function writing(modelName, signal, keep, failed) {
  const text = h("textarea", { rows: 5, required: true, placeholder: "The beginning of a text, which the model continues" });
  const chat = h("input", { type: "checkbox" });
  const most = h("input", { type: "number", min: 1, step: 1, value: MOST_TOKENS });
  const temperature = h("input", { type: "number", min: 0, max: 100, step: "any", value: 0 });
  keep({ text, chat, most, temperature });
  const button = h("button", { type: "submit" }, "Write");
  const stop = h("button", { type: "button", class: "quiet", hidden: true }, "Stop");
  const out = h("div", null, h("p", { class: "lead" }, "The text appears here."));

  function body() {
    const given = chat.checked ? { messages: [{ role: "user", content: text.value }] } : { prompt: text.value };
    return { ...given, temperature: Number(temperature.value), ...(most.value && { max_tokens: Number(most.value) }), stream: true };
  }

  async function write() {
    const stopped = new AbortController(), asked = body(), written = h("span"), after = h("div", { class: "stack" });
    const state = h("p", null, badge("writing", "accent"));
    const box = h("p", { class: "reading written", tabindex: 0, role: "region", "aria-label": "Written text" }, asked.prompt && h("span", { class: "lead" }, asked.prompt), written);
    let end = null;
    const on = (event, data) => {
      if (event === "text") {
        const atEnd = box.scrollTop + box.clientHeight > box.scrollHeight - 40; // nobody has scrolled back to read
        put(written, data.text);
        if (atEnd) box.scrollTop = box.scrollHeight;
      }
      else if (event === "end") end = data;
      else if (event === "error") throw new ApiError(undefined, data.error.kind, data.error.message, data.error.details);
    };
    fill(out, h("div", { class: "stack" }, h("h2", { class: "sr" }, "Text"), state, box, after));
    out.scrollIntoView({ block: "nearest" });
    stop.onclick = () => stopped.abort();
    stop.hidden = false;
    announce("The model writes");
    try {
      await follow(`/generate/${segment(modelName())}`, on, AbortSignal.any([signal, stopped.signal]), asked);
      if (end === null) throw new ApiError(0, "unreachable", "The connection to the server broke off.");
      fill(state, badge("written", "good"));
      fill(after, about(end));
      announce("The text is written");
    } catch (error) {
      if (signal.aborted || failed(error)) return;
      fill(state, badge("not finished", "warn"));
      if (stopped.signal.aborted) {
        fill(after, h("p", { class: "note" }, "You stopped it. The server writes no further."));
        announce("Stopped");
      } else fill(after, trouble(error));
    } finally {
      stop.hidden = true;
      refocus(button);
    }
  }

  text.addEventListener("keydown", (event) => { if (event.key === "Enter" && (event.ctrlKey || event.metaKey)) text.form.requestSubmit(); });
  const submit = (event) => { event.preventDefault(); once(button, write); };
  return h("div", { class: "grid" }, h("form", { onsubmit: submit },
    field("Prompt", text),
    h("div", { class: "figures" },
      field("Most tokens", most), field("Temperature", temperature, "0: always the likeliest token. Higher: more varied.")),
    h("div", { class: "row" }, button, stop, h("label", { class: "check" }, chat, "As a message of a chat")),
    h("p", { class: "note more" }, "Ctrl and Enter in the prompt writes, too. A model that learnt from chats wants a message; one that learnt from prompts wants them as they were in its rows.")), out);
}

/** How a text ended, what it cost, and what the PLOT answered. */
function about(end) {
  const { usage, timing } = end, rest = usage.written_tokens - 1;
  return [h("p", { class: "note" }, ENDS[end.finish], ` ${plural(usage.written_tokens, "token")}. The first came after ${ms(timing.first_token_ms)}`,
    rest > 0 && timing.rest_ms > 0 && `, the others at ${figure((1000 * rest) / timing.rest_ms)} a second`, ". ",
    `The prompt has ${plural(usage.prompt_tokens, "token")}`, usage.cached_tokens > 0 && `, ${usage.cached_tokens} of them known from an earlier text`, ". ",
    `Version ${end.version} wrote it.`, end.seed !== null && ` Programs get the same text with the seed ${end.seed}.`),
  h("div", null, h("h3", null, "What the PLOT answered"), answered(end.plot))];
}

/** The tokens of prompt and text by what their look-up found. A root without n-grams looks up words alone. */
function answered(plot) {
  if (!Object.keys(plot).some((name) => MARKS[name] > 1)) {
    return h("p", { class: "note" }, "Each token by itself: this root computes all of its layers.");
  }
  const parts = Object.entries(plot).map(([name, value]) => ({ name, mark: MARKS[name], cls: `o${Math.min(3, MARKS[name])}`, value }));
  return [split(parts, "Tokens of prompt and text by what answered", percent),
    h("p", { class: "note more" }, "Tokens of prompt and text, by the longest n-gram that ends there and was known. The longer, the nearer to computing; 0 was not stored at all.")];
}

/** The same text by a command. */
export const writingCommand = (name) => h("details", { class: "more" }, h("summary", null, "The same by a command"),
  command(`hmi generate ${name} "Once upon a time" --max-tokens ${MOST_TOKENS}`), elsewhere());
