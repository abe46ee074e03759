// An answer: the label and scores, the entities in the text, and what the PLOT answered, word by word.

import { bars } from "./chart.js";
import { badge, h } from "./dom.js";
import { figure, ms, percent, plural, score } from "./format.js";
import { ORDERS } from "./overview.js";

const SHOWN_SCORES = 6;
const COLOURS = 6;

/** Draw the answer to one input. asked: {text, pair} as sent. */
export function answer(found, asked) {
  const [output] = found.outputs;
  return h("div", { class: "stack appear" }, main(output), highlighted(output, asked.text), words(output, asked),
    h("p", { class: "note" }, said(found, output)));
}

function main(output) {
  if (output.labels !== null) {
    return h("div", null, lead(output, output.labels.length ? output.labels.map((l) => l.label).join(", ") : "no label applies"),
      scores(output.scores ?? Object.fromEntries(output.labels.map((l) => [l.label, l.score]))));
  }
  if (output.value !== null) return h("div", null, lead(output, figure(output.value)));
  if (output.embedding !== null) {
    const first = output.embedding.slice(0, 8).map((x) => x.toFixed(3)).join(", ");
    return h("div", null, lead(output, `${output.embedding.length} numbers`), h("p", { class: "mono" }, `${first}, …`));
  }
  if (output.label !== null) return h("div", null, lead(output, output.label), scores(output.scores ?? { [output.label]: output.score }));
  const said = remark(output);
  return said && h("div", { class: "row" }, said);
}

/** The answer in large letters, and beside it whether the text is like the training rows. */
const lead = (output, said) => h("div", { class: "row" }, h("p", { class: "answer-label" }, said), remark(output));

/** What `known` says. It is a remark on the answer, and never stands in its place. */
function remark({ known }) {
  if (known === null || known === undefined) return null;
  return known ? badge("like its training rows", "good") : badge("unlike its training rows", "warn");
}

function scores(all) {
  const sorted = Object.entries(all).sort(([, a], [, b]) => b - a);
  if (!sorted.length) return null;
  const rest = sorted.length - SHOWN_SCORES;
  return h("div", null, h("h3", null, "Scores"), bars(sorted.slice(0, SHOWN_SCORES).map(([name, p]) => [name, p, score(p)]), true),
    rest > 0 && h("p", { class: "note" }, `and ${plural(rest, "label")} with lower scores`));
}

/** An entity in its text, with what is said of it. number: that of its type, which chooses the colour. */
export const entityMark = (number, text, said) => h("mark", { class: `entity e${1 + (number % COLOURS)}` }, text, h("small", null, said));

/** The text with its entities. */
function highlighted({ entities }, text) {
  if (entities === null) return null;
  if (!entities.length) return h("p", { class: "lead" }, "No entity was found.");
  const names = [...new Set(entities.map((e) => e.label))].sort();
  const points = [...text]; // offsets count code points, not JavaScript's halves of pairs
  const parts = [];
  let at = 0;
  for (const e of [...entities].sort((a, b) => a.start - b.start)) {
    if (e.start < at) continue;
    parts.push(points.slice(at, e.start).join(""), entityMark(names.indexOf(e.label), points.slice(e.start, e.end).join(""), `${e.label} ${score(e.score)}`));
    at = e.end;
  }
  return h("div", null, h("h3", null, "Entities in the text"), h("p", { class: "reading" }, parts, points.slice(at).join("")));
}

function words(output, asked) {
  if (!output.words?.length) return null;
  const computed = output.words.every((w) => w.order === "computed");
  const used = ORDERS.filter(([name]) => output.words.some((w) => w.order === name));
  return h("div", null, h("h3", null, "What the PLOT answered, word by word"),
    computed ? h("p", { class: "note" }, "Nothing was looked up: the lower layers were computed.")
      : [[asked.text, false], [asked.pair, true]].filter(([text]) => text).map(([text, pair]) =>
        h("p", { class: "reading" }, marked(text, output.words.filter((w) => w.pair === pair)))),
    !computed && h("ul", { class: "legend" }, used.map(([name, mark]) => h("li", null,
      h("span", { class: `word ${name}` }, name, h("sup", null, mark)), ` ${percent(share(output.words, name))}`))),
    !computed && h("p", { class: "note" }, "The number tells how many neighbouring tokens were known together: 3 is as good as computing, 0 was not stored at all."));
}

const share = (all, order) => all.filter((w) => w.order === order).length / all.length;

/** The text with each word marked. Words of a list have no offsets: they are taken in their order. */
function marked(text, all) {
  const points = [...text], parts = [];
  let at = 0;
  for (const w of all) {
    if (w.start === null) {
      if (parts.length) parts.push(" ");
      parts.push(word(w, w.text));
      continue;
    }
    parts.push(points.slice(at, w.start).join(""), word(w, points.slice(w.start, w.end).join("")));
    at = w.end;
  }
  const rest = all.some((w) => w.start === null) ? "" : points.slice(at).join("").trimEnd();
  return [parts, rest && h("span", { class: "word unread", title: "not read" }, rest)];
}

function word(w, text) {
  const mark = ORDERS.find(([name]) => name === w.order)?.[1] ?? "";
  const detail = w.orders.length > 1 ? `${w.order} (${w.orders.join(", ")})` : w.order ?? "not read";
  return h("span", { class: `word ${w.order ?? "unread"}`, title: detail }, text, h("sup", null, mark), h("span", { class: "sr" }, ` ${w.order ?? "not read"} `));
}

function said(found, output) {
  const by = found.provenance?.versions, stages = Object.entries(found.provenance?.stages ?? {});
  return [`Version ${found.version} answered in ${ms(found.timing.total_ms)}: ${ms(found.timing.retrieve_ms)} of look-ups, ${ms(found.timing.compute_ms)} of layers.`,
    by && ` Domain ${by.domain}.`, stages.length > 0 && ` Stages: ${stages.map(([name, how]) => `${name} ${how}`).join(", ")}.`,
    output.truncated && " The text was longer than the model reads; the rest was left out."];
}

