// What the stages decide for a model: early exits, its cascade, token adaptation.

import { get, segment } from "./api.js";
import { bars } from "./chart.js";
import { badge, card, facts, fill, h, table } from "./dom.js";
import { count, ms, percent, score, sentence } from "./format.js";

const EXITS = { open: "good", testing: "accent", collecting: "accent", paused: "warn", off: "warn" };

/** Draw the decisions of all stages. A part that the model does not have says how to get it. */
export async function stages(box, m, signal) {
  const path = `/manage/models/${segment(m.model)}`;
  const [exits, tokens, cascade] = await Promise.all([
    get(`${path}/exits`, signal), get(`${path}/tokens`, signal), m.cascade && get(`${path}/cascade`, signal)]);
  if (signal.aborted) return;
  fill(box, h("h2", null, "Decisions"), h("div", { class: "grid two" }, objective(m), early(exits), dispatcher(cascade, m), adaptation(tokens)));
}

function objective(m) {
  const { agreement, deadline_ms: deadline, agreement_under_load: loaded } = m.objective;
  return card("Objective", agreement === null && loaded === null && deadline === null
    ? h("p", { class: "lead" }, "None: every text goes through the full model.")
    : facts(
      ["Answers as the full model's", agreement === null ? "no bound" : `at least ${percent(agreement, 1)}`],
      ["Under load", loaded === null ? "no bound" : `at least ${percent(loaded, 1)}`],
      ["Mean time", deadline === null ? "no bound" : ms(deadline)]));
}

function early(seen) {
  const report = seen.report;
  return card("Early exits", h("p", null, badge(seen.state, EXITS[seen.state])), h("p", { class: "note" }, sentence(seen.says)),
    report && report.texts > 0 && [
      facts(["Texts", count(report.texts)], ["Left early", percent(report.left_share, 1)],
        ["Layer time saved", percent(report.saved, 1)],
        report.layers_ms !== null && ["All upper layers", ms(report.layers_ms)]),
      h("h3", null, "Where they left"),
      bars(Object.entries(report.left).map(([site, n]) =>
        [`before upper layer ${Number(site) + 1}`, n / report.texts, percent(n / report.texts, 1)]))]);
}

function dispatcher(seen, m) {
  if (seen === null) {
    const possible = ["classification", "pair"].includes(m.task);
    return card("Cascade", h("p", { class: "lead" }, possible
      ? "None. A smaller model, or a ramp of this one, could answer the easy texts." : "A model of this task cannot have one."));
  }
  const traffic = seen.traffic, gone = traffic?.texts ? traffic.returned / traffic.texts : null;
  return card("Cascade", h("p", null, badge(seen.state, seen.state === "ready" ? "good" : "warn"), " ", traffic && badge(traffic.state)),
    h("p", { class: "note" }, sentence(seen.says)),
    facts(["Small level", seen.cascade.small ?? `ramp before upper layer ${seen.cascade.site + 1}`],
      ["Accuracy", `large ${score(seen.cascade.large_accuracy)}${seen.cascade.small_accuracy === null ? "" : `, small ${score(seen.cascade.small_accuracy)}`}`],
      gone !== null && ["Answered by the small level", percent(gone, 1)],
      traffic?.audited > 0 && ["Audits that disagreed", `${count(traffic.disagreed)} of ${count(traffic.audited)}`]));
}

function adaptation(seen) {
  const state = seen.tokens.state;
  return card("Token adaptation", h("p", null, badge(state, state === "allowed" ? "good" : "")), h("p", { class: "note" }, sentence(seen.tokens.says)),
    seen.points.length > 0 && table("Settings, as profiled", [
      { head: "Setting", row: true, cell: (p) => p.setting },
      { head: seen.metric ?? "Score", n: true, cell: (p) => score(p.score) },
      { head: "Agreement", n: true, cell: (p) => score(p.agreement) },
      { head: "Allowed", cell: (p) => (p.allowed ? badge("yes", "good") : h("span", { class: "note" }, p.why ?? "no")) },
    ], seen.points, true));
}
