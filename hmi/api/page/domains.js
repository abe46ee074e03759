// The version trees of domains: what each stores, covers and weighs.

import { get } from "./api.js";
import { newDomain } from "./branch.js";
import { bar } from "./chart.js";
import { announce, badge, facts, fill, h, refocus, table, title } from "./dom.js";
import { bytes, count, day, plural, score } from "./format.js";
import { start } from "./start.js";
import { session } from "./session.js";

export async function domains(main, _name, signal) {
  const [{ domains: found }, { roots }] = await Promise.all([get("/manage/domains", signal), get("/manage/roots", signal)]);
  if (signal.aborted) return;
  const head = title("Domains", "A domain's PLOT holds the precomputed states of its n-grams. Tenants of one domain share it.");
  if (!roots.length) {
    fill(main, head, session.overview && start(session.overview, signal, () => domains(main, "", signal)));
    return;
  }
  const below = new Map(found.map((d) => [d.domain, d]));
  const most = Math.max(1, ...found.map((d) => d.bytes));
  fill(main, head, h("div", { class: "stack" }, roots.map((root) => h("section", { class: "card stack", "aria-label": `Root ${root.root}` },
    h("div", { class: "row between" }, h("h2", null, `Root ${root.root}`), h("span", { class: "note" }, bytes(root.bytes))),
    facts(["Source", root.source.name], ["Layers", `${root.layers}, of which ${root.split || "none"} are looked up`],
      root.split && ["N-grams", `up to ${root.n} tokens`],
      root.fidelity.perplexity_ratio && ["Fidelity", `${score(root.fidelity.perplexity_ratio)} times the source's perplexity`],
      root.fidelity.cls_cosine && ["Fidelity", `cosine ${score(root.fidelity.cls_cosine)} to the source model`],
      root.execution && ["Runs on", [...new Set([...root.execution.executor.split(" "), root.execution.precision])].join(" ")]),
    below.has(root.root) && h("ul", { class: "tree" }, node(below.get(root.root), below, most)))),
  session.mode === "admin" && newDomain(found, signal, async (domain) => {
    await domains(main, "", signal);
    announce(`Domain ${domain} is there. New models can use it.`);
    refocus(main);
  })));
}

function node(d, below, most) {
  return h("li", null, h("div", { class: "node" },
    h("div", null, h("h3", null, d.domain), h("p", { class: "note" }, plural(d.models, "model"), " · ", plural(d.versions.length, "version"),
      d.record_misses && [" ", badge("records misses", "warn")])),
    h("dl", { class: "bars" },
      covered(d) === null ? h("div", null, h("dt", null, "coverage"), h("dd", { class: "wide note" }, "single tokens only"))
        : h("div", null, h("dt", null, "coverage"), h("dd", null, bar(covered(d) / 100)), h("dd", { class: "value" }, `${Math.round(covered(d))}%`)),
      h("div", null, h("dt", null, "on the disk"), h("dd", null, bar(d.bytes / most)), h("dd", { class: "value" }, bytes(d.bytes))))),
  h("details", null, h("summary", null, `Versions of ${d.domain}`), versions(d)),
  d.children.length > 0 && h("ul", null, d.children.filter((c) => below.has(c)).map((child) => node(below.get(child), below, most))));
}

/** Percent of its corpus' trigrams that a domain covers; null for a root without texts, which stores single tokens only. */
const covered = (d) => (d.entries.trigrams || d.entries.bigrams ? d.alpha ?? 0 : null);

function versions(d) {
  return table(`Versions of ${d.domain}, newest first`, [
    { head: "Version", row: true, cell: (v) => [h("code", null, v.version.slice(0, 9)), v.version === d.current && [" ", badge("current", "good")]] },
    { head: "Built", cell: (v) => day(v.created) },
    { head: "Covers", n: true, cell: (v) => (v.alpha === null ? "–" : `${Math.round(v.alpha)}%`) },
    { head: "Trigrams", n: true, cell: (v) => count(v.entries.trigrams ?? 0) },
    { head: "Bigrams", n: true, cell: (v) => count(v.entries.bigrams ?? 0) },
    { head: "Unigrams", n: true, cell: (v) => count(v.entries.unigrams ?? 0) },
    { head: "Corpus", n: true, cell: (v) => (v.report.documents ? plural(v.report.documents, "document") : "–") },
    { head: "Size", n: true, cell: (v) => bytes(v.bytes) },
  ], d.versions, true);
}
