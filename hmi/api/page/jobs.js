// The jobs: a list, and one job with its live progress.

import { get, pages, segment } from "./api.js";
import { badge, card, facts, fill, h, table, title } from "./dom.js";
import { ago, bytes, day, duration, headline, score } from "./format.js";
import { poll } from "./poll.js";
import { ENDED, KINDS, live, outcome, stateBadge } from "./progress.js";
import { trouble } from "./session.js";

const MOST = 200;

export async function jobs(main, id, signal) {
  if (id) await one(main, id, signal);
  else await all(main, signal);
}

async function all(main, signal) {
  const list = h("div", { class: "card" });
  await poll(async () => {
    const [found, more] = await pages("/manage/jobs", "jobs", MOST, signal);
    if (signal.aborted || list.contains(document.activeElement)) return;
    if (!list.isConnected) fill(main, title("Jobs", "Everything that takes a while: fine-tuning, building a domain, importing a root."), list);
    if (!found.length) fill(list, h("p", { class: "lead" }, "There are no jobs yet. ", h("a", { href: "#/teach" }, "Teach a model"), " to start one."));
    else fill(list, jobRows(found, "Jobs, newest first"), more && h("p", { class: "note" }, `The newest ${MOST} are shown.`));
  }, (error) => fill(list, trouble(error)), signal);
}

export function jobRows(found, caption) {
  return table(caption, [
    { head: "Job", row: true, cell: (job) => h("a", { href: `#/jobs/${segment(job.job)}` }, KINDS[job.kind] ?? job.kind, " ", job.target) },
    { head: "State", cell: stateBadge },
    { head: "Progress", cell: progress },
    { head: "Created", cell: (job) => ago(job.created), narrow: false },
  ], found, true);
}

function progress(job) {
  const { step, total, eta_ms: eta } = job.progress;
  if (job.state === "running") return `${total > 1 ? `${Math.round((100 * step) / total)}%` : "…"}${eta === null ? "" : `, ${duration(eta)} left`}`;
  if (job.state === "succeeded") {
    if (job.kind === "improve") return job.result.version ? `version ${job.result.version}` : "nothing better";
    const best = headline(job.result?.metrics ?? {});
    return best ? `${best[0]} ${score(best[1])}` : "done";
  }
  return job.state === "failed" ? (job.error?.kind ?? "").replaceAll("_", " ") : "";
}

async function one(main, id, signal) {
  let job = await get(`/manage/jobs/${segment(id)}`, signal);
  const box = h("div"), after = h("div", { class: "stack" });
  fill(main, title(`${KINDS[job.kind] ?? job.kind} ${job.target}`, null, h("a", { href: "#/jobs" }, "All jobs")),
    h("div", { class: "stack" }, h("section", { class: "card", "aria-label": "Progress" }, box), after));
  if (!ENDED.has(job.state)) job = await live(box, id, signal);
  else fill(box, stateBadge(job));
  fill(after, outcome(job), details(job));
}

function details(job) {
  const best = job.result?.metrics && headline(job.result.metrics);
  const took = job.started && job.ended ? duration(Date.parse(job.ended) - Date.parse(job.started)) : null;
  return card("Details", facts(
    job.kind === "fine_tune" && job.state === "succeeded" && ["Model", h("a", { href: `#/model/${job.target}` }, job.target, " version ", job.result.version)],
    job.kind === "improve" && job.result?.reason && ["Result", job.result.reason],
    best && ["Held-out score", `${best[0]} ${score(best[1])} on ${job.result.metrics.rows} rows`],
    ["Created", day(job.created)],
    took && ["Took", took],
    job.cost && ["Compute", `${duration(job.cost.cpu_ms)} of processor time, ${job.cost.peak_bytes ? bytes(job.cost.peak_bytes) : "unknown"} memory at most`],
    job.tenant && ["Tenant", job.tenant],
    job.server && ["Server", job.server],
    job.attempts > 1 && ["Attempts", badge(String(job.attempts), "warn")],
    ["Id", h("code", null, job.job)]));
}
