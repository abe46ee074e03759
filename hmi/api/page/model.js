// One model: its versions, its scores on held-out rows, label by label, and what its stages decide.

import { get, segment, send } from "./api.js";
import { bar } from "./chart.js";
import { announce, badge, card, facts, fill, h, once, refocus, table, ticked, title } from "./dom.js";
import { bytes, capital, count, day, figure, headline, metricName, percent, plural, score, sentence } from "./format.js";
import { trouble } from "./session.js";
import { stages } from "./stages.js";

const SHOWN_LABELS = 100;
const METERED = new Set(["mae", "root_perplexity"]); // not shares

export async function model(main, name, signal) {
  const seen = await get(`/manage/models/${segment(name)}`, signal);
  if (signal.aborted) return;
  const writes = seen.task === "generation", versions = h("div"), decisions = h("div", { class: "stack" });
  fill(main, title(name, `${seen.task} · version ${seen.current} answers`,
    h("div", { class: "row" }, h("a", { class: "button", href: `#/try/${segment(name)}` }, writes ? "Let it write" : "Try a text"),
      h("a", { class: "button quiet", href: `#/teach/${segment(name)}` }, "Teach it more"))),
  h("div", { class: "stack" },
    h("div", { class: "grid" }, scores(seen), about(seen)),
    labels(seen.metrics), versions, decisions));
  fill(versions, history(seen, signal, () => model(main, name, signal)));
  if (!writes) await stages(decisions, seen, signal); // which are for answers of a head
}

function scores({ task, metrics }) {
  const shown = ["accuracy", "reachable_accuracy", "macro_f1", "micro_f1", "entity_f1", "token_accuracy", "spearman", "mae", "r2",
    "perplexity", "root_perplexity", "exact_match", "rouge_l"].filter((m) => m in metrics);
  if (!shown.length) return card("Held-out score", h("p", { class: "lead" },
    task === "embedding" ? "An embedding is not trained, so it has no score." : "None: it was imported with its weights."));
  const best = headline(metrics), calibration = metrics.calibration;
  return card("Held-out score",
    best && h("p", null, h("span", { class: "answer-label" }, score(best[1])), ` ${best[0]} on ${metrics.rows} rows that it was not trained on`),
    facts(...shown.filter((m) => !best || metricName(m) !== best[0]).map((m) => [capital(metricName(m)), METERED.has(m) ? figure(metrics[m]) : score(metrics[m])]),
      calibration && ["Calibration error", `${score(calibration.ece)}, calibrated ${score(calibration.ece_calibrated ?? calibration.ece)}`],
      metrics.train_rows && ["Trained on", `${plural(metrics.train_rows, "row")}, ${plural(metrics.epochs_run, "epoch")}`],
      metrics.read?.data && ["Read as", ticked(metrics.read.data)]),
    (metrics.warnings ?? []).map((said) => h("p", { class: "note" }, badge("note", "warn"), " ", ticked(sentence(said)))));
}

function about(m) {
  const live = m.versions.find((v) => v.version === m.current), writes = m.task === "generation";
  return card("About", facts(
    ["Domain", h("a", { href: "#/domains" }, m.domain)],
    !writes && ["Labels", m.labels.length ? `${m.labels.length}: ${m.labels.slice(0, 12).join(", ")}${m.labels.length > 12 ? " …" : ""}` : "none"],
    ["Size", bytes(m.bytes)],
    live.module && ["Module", `${live.module.kind}, rank ${live.module.rank ?? "–"}`],
    writes ? ["Learnt from", `rows of up to ${live.max_length} tokens`]
      : ["Reads", `${live.max_length} tokens${live.rules.windows ? " at a time, longer texts in windows" : " of a text"}`],
    !writes && ["Ramps", m.ramps.length ? `before upper layer ${m.ramps.map((r) => r + 1).join(", ")}` : "none"],
    m.improving && ["Improving", h("a", { href: `#/jobs/${segment(m.improving.job)}` }, m.improving.says)],
    m.known_threshold !== null && ["Unlike its rows", `texts whose similarity to them is below ${score(m.known_threshold)}; it knows ${percent(m.known_share)} of its rows`],
    !writes && ["Calibration", m.temperature === null ? "not fitted" : `temperature ${score(m.temperature)}`]));
}

/** The held-out scores of each label, those with the most rows first. */
function labels(metrics) {
  const rows = Object.entries(metrics.per_label ?? metrics.per_entity ?? {}).sort(([, a], [, b]) => b.support - a.support);
  if (!rows.length) return null;
  const few = rows.slice(0, SHOWN_LABELS);
  return card("By label", table("Held-out scores by label", [
    { head: "Label", row: true, cell: ([name]) => name },
    { head: "F1", cell: ([, of]) => h("span", { class: "measured" }, bar(of.f1), score(of.f1)) },
    { head: "Precision", n: true, cell: ([, of]) => score(of.precision), narrow: false },
    { head: "Recall", n: true, cell: ([, of]) => score(of.recall), narrow: false },
    { head: "Rows", n: true, cell: ([, of]) => count(of.support) },
  ], few, true),
  rows.length > few.length && h("p", { class: "note" }, `and ${rows.length - few.length} more labels`));
}

function history(m, signal, again) {
  const told = h("div");
  const rollback = (version) => h("button", { type: "button", class: "quiet small", "aria-label": `Let version ${version} answer`, onclick: ({ target }) => once(target, async () => {
    try {
      await send("POST", `/manage/models/${segment(m.model)}/rollback`, { version }, signal);
      announce(`Version ${version} answers`);
      await again();
      refocus(document.querySelector("main"));
    } catch (error) {
      fill(told, trouble(error));
    }
  }) }, "Let it answer");
  return card("Versions", table("Versions, newest first", [
    { head: "Version", row: true, cell: (v) => v.version },
    { head: "State", cell: (v) => (v.version === m.current ? badge("answers", "good") : v.held_back ? badge("held back", "warn") : badge("kept")) },
    { head: "Held-out score", cell: (v) => { const best = headline(v.metrics); return best ? `${score(best[1])} ${best[0]}` : "–"; } },
    { head: "Made", cell: (v) => day(v.created), narrow: false },
    { head: "Size", n: true, cell: (v) => bytes(v.bytes), narrow: false },
    ...(m.versions.length > 1 ? [{ head: "Change", cell: (v) => (v.version === m.current ? "" : rollback(v.version)) }] : []),
  ], [...m.versions].reverse(), true),
  m.versions.filter((v) => v.held_back).map((v) => h("p", { class: "note" }, `Version ${v.version}: ${v.held_back}`)), told);
}
