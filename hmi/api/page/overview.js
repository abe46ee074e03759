// The overview: what the server does at the moment, and did in the last hours.

import { get } from "./api.js";
import { bar, lines, spark, split } from "./chart.js";
import { badge, card, facts, fill, h, put, table, title } from "./dom.js";
import { bytes, coarse, count, duration, figure, ms, percent, plural } from "./format.js";
import { jobRows } from "./jobs.js";
import { poll } from "./poll.js";
import { refresh, session, trouble } from "./session.js";
import { start, startNeeded } from "./start.js";

const SPANS = [[60, "1 hour"], [360, "6 hours"], [1440, "24 hours"]];
export const ORDERS = [["trigram", "3"], ["bigram", "2"], ["unigram", "1"], ["miss", "0"]];
let minutes = 60;

export async function overview(main, _name, signal) {
  const top = h("div"), first = h("div"), parts = h("div", { class: "stack" });
  fill(main, top, h("div", { class: "stack" }, first, parts));
  let drawn = null, shown = "";
  const steps = (seen) => { // drawn anew only when a step is done, so that a job's progress stays
    const counts = JSON.stringify(seen.counts);
    if (counts === shown) return;
    shown = counts;
    fill(first, startNeeded(seen) && start(seen, signal, () => steps(session.overview)));
  };
  await poll(async () => {
    const [{ overview: seen }, jobs] = [await refresh(minutes, signal), await get("/manage/jobs?limit=5", signal)];
    const all = seen?.caller.tenant === null ? await get("/manage/servers", signal) : { servers: [] };
    if (signal.aborted || !seen) return;
    const whole = seen.caller.tenant === null;
    if (drawn === null) {
      fill(top, title(whole ? "Overview" : `Overview of ${seen.caller.tenant}`,
        startNeeded(seen) ? "Three steps to a model that answers." : whole ? "The whole server at a glance. The figures renew themselves." : "What your tenant's models do. The figures renew themselves.",
        !startNeeded(seen) && spans(() => again())));
    }
    steps(seen);
    // Do not take away what somebody reads by keyboard, or has unfolded.
    if (parts.contains(document.activeElement) || parts.querySelector("details[open]")) return;
    fill(parts, figures(seen), servers(all), recent(jobs.jobs));
    drawn = seen;
  }, (error) => fill(top, trouble(error)), signal);
  const again = async () => {
    await refresh(minutes, signal);
    if (!signal.aborted) main.dispatchEvent(new Event("again"));
  };
  main.addEventListener("again", () => {
    const seen = session.overview;
    if (seen) fill(parts, figures(seen));
  }, { signal });
}

/** What there is to show: nothing but the server itself before the first model. */
function figures(seen) {
  if (startNeeded(seen)) return seen.caller.tenant === null && server(seen);
  return seen.caller.tenant === null ? wholeServer(seen) : ownTenant(seen);
}

function spans(changed) {
  return h("fieldset", null, h("legend", { class: "sr" }, "Time shown"), h("div", { class: "switch" }, SPANS.map(([value, name]) =>
    h("label", null, h("input", { type: "radio", name: "span", value, checked: value === minutes,
      onchange: () => { minutes = value; changed(); } }), name))));
}

const rate = (point, of) => (point.seconds ? of(point) / point.seconds : 0);
/** The last whole minute, or the present one if the server has just started. */
const lately = (points) => (points.length > 1 && points.at(-1).seconds < 20 ? points.at(-2) : points.at(-1));

function wholeServer(seen) {
  const now = lately(seen.points), { pool } = seen;
  return [
    h("dl", { class: "tiles" },
      tile("Texts a second", figure(rate(now, (p) => p.texts)), `${count(seen.since_start.texts)} since the start`,
        spark(seen.points.map((p) => rate(p, (q) => q.texts)), "Texts a second over the time shown")),
      tile("Median response", ms(now.p50_ms), now.p95_ms === null ? "no calls in the last minute" : `95% within ${ms(now.p95_ms)}`,
        spark(seen.points.map((p) => p.p50_ms), "Median response over the time shown")),
      tile("Waiting", count(seen.queue.texts), seen.queue.texts ? `the oldest for ${ms(seen.queue.oldest_ms)}` : "nothing waits",
        spark(seen.points.map((p) => p.queue_texts), "Texts that waited over the time shown")),
      tile("Models in memory", pool ? bytes(pool.bytes) : "–",
        pool ? `of at most ${bytes(pool.limit_bytes)} · ${pool.hits + pool.misses ? percent(pool.hits / (pool.hits + pool.misses)) : "no"} hits` : "",
        pool && bar(pool.bytes / pool.limit_bytes))),
    h("div", { class: "grid" },
      card("Texts a second", lines(seen.points, [{ name: "texts a second", of: (p) => rate(p, (q) => q.texts) }], "Texts a second, by the time of day", 60 * minutes)),
      card("Response times in ms", lines(seen.points, [{ name: "median", of: (p) => p.p50_ms }, { name: "95% within", of: (p) => p.p95_ms }],
        "Response times in milliseconds, by the time of day", 60 * minutes))),
    h("div", { class: "grid" },
      h("div", { class: "stack" }, looked(seen), seen.tenants.length > 0 && card("Busiest tenants", tenantTable(seen.tenants.slice(0, 5)))),
      server(seen)),
  ];
}

function ownTenant(seen) {
  const now = lately(seen.points), use = seen.since_start;
  return [
    h("dl", { class: "tiles" },
      tile("Models", count(seen.counts.models), h("a", { href: "#/models" }, "See them")),
      tile("Texts a second", figure(rate(now, (p) => p.texts)), `${count(use.texts)} since the server started`),
      tile("Calls", count(use.requests), "since the server started"),
      tile("Compute", duration(use.compute_ms), "since the server started")),
    card("Texts a second", lines(seen.points, [{ name: "texts a second", of: (p) => (p.known ? rate(p, (q) => q.texts) : null) }],
      "Your texts a second, by the time of day", 60 * minutes)),
  ];
}

function tile(name, value, note, more) {
  return h("div", { class: "card tile" }, h("dt", null, name),
    h("dd", null, h("div", { class: "figure" }, value), h("p", { class: "note" }, note), more));
}

function looked(seen) {
  const parts = ORDERS.map(([name, mark]) => ({ name, mark, cls: `o${mark}`, value: seen.plot_lookups[name] ?? 0 }));
  return card("What the PLOT answered",
    parts.some((p) => p.value)
      ? put(h("div"), h("p", { class: "note" }, "Tokens since the start, by the longest n-gram that was found. The more trigrams, the nearer to the full encoder."),
        split(parts, "Tokens by what answered", percent))
      : h("p", { class: "lead" }, "No text has come yet. ", h("a", { href: "#/try" }, "Try one.")));
}

function server(seen) {
  const point = seen.points.reduce((sum, p) => ({ refused: sum.refused + p.refused, failed: sum.failed + p.failed }), { refused: 0, failed: 0 });
  return card("Server", facts(
    ["State", h("span", null, badge(seen.ready ? "serving" : seen.phase, seen.ready ? "good" : "warn"), ` for ${coarse(Date.now() - Date.parse(seen.started))}`)],
    ["Stores", [plural(seen.counts.roots, "root"), plural(seen.counts.domains, "domain"), plural(seen.counts.tenants, "tenant"), plural(seen.counts.models, "model")].join(", ")],
    ["Memory", `${bytes(seen.memory_bytes.anonymous ?? 0)} its own, ${bytes(seen.memory_bytes.files ?? 0)} of mapped files`],
    ["Refused calls", point.refused ? `${count(point.refused)} in the time shown` : "none in the time shown"],
    ["Failed calls", point.failed ? badge(`${count(point.failed)} in the time shown`, "bad") : "none in the time shown"],
    ["Keys", seen.caller.keyless ? badge("none: this machine only", "warn") : "needed"],
    ["Release", seen.version]));
}

export function tenantTable(tenants) {
  return table("Texts by tenant in the time shown, the busiest first", [
    { head: "Tenant", cell: (t) => t.tenant, row: true },
    { head: "Calls", cell: (t) => count(t.requests), n: true },
    { head: "Texts", cell: (t) => count(t.texts), n: true },
    { head: "Compute", cell: (t) => ms(Math.round(t.compute_ms)), n: true },
    { head: "Over time", cell: (t) => spark(t.texts_by_point, `${t.tenant}: texts over the time shown`), narrow: false },
  ], tenants, true);
}

/** All servers, if several share a bucket. */
function servers(all) {
  const of = (cell) => (one) => (one.view === null ? "–" : cell(one.view));
  return all.servers.length > 1 && card("Servers", table("Servers that share the bucket", [
    { head: "Server", row: true, cell: (one) => [one.url.replace(/^https?:\/\//, ""), one.view?.primary && [" ", badge("primary")]] },
    { head: "State", cell: (one) => badge(one.view?.phase ?? "does not answer", one.view?.ready ? "good" : "warn") },
    { head: "Models", n: true, cell: of((v) => count(v.models)) },
    { head: "Texts", n: true, cell: of((v) => count(v.since_start.texts)) },
    { head: "Waiting", n: true, cell: of((v) => ms(Math.round(1000 * v.wait_s))) },
    { head: "Passed on", n: true, cell: of((v) => count(v.passed)), narrow: false },
    { head: "For others", n: true, cell: of((v) => count(v.answered)), narrow: false },
  ], all.servers, true));
}

function recent(jobs) {
  return jobs.length > 0 && card("Latest jobs", jobRows(jobs, "The latest jobs"), h("p", { class: "more" }, h("a", { href: "#/jobs" }, "All jobs")));
}
