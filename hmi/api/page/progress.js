// A job as it runs: its progress, live, and the button that cancels it.

import { follow, get, segment, send } from "./api.js";
import { announce, badge, callout, fill, h, once, refocus } from "./dom.js";
import { count, duration, sentence } from "./format.js";
import { trouble } from "./session.js";

export const ENDED = new Set(["succeeded", "failed", "cancelled"]);
export const KINDS = { fine_tune: "fine-tuning", build_plot: "building a domain", import_root: "importing a root",
  compact_plot: "compacting a domain", erase: "erasing from a domain", profile_cascade: "profiling a cascade", shard_root: "cutting a root into shards",
  improve: "improving", count_part: "counting a part for" };
const STATES = { succeeded: "good", failed: "bad", cancelled: "warn", running: "accent", queued: "" };
const AGAIN_MS = 2000, CLOCK_MS = 1000;

const left = (eta) => (eta === null ? "" : eta < 1000 ? ", nearly done" : `, about ${duration(eta)} left`);

export const stateBadge = (job) => badge(job.cancel_requested && !ENDED.has(job.state) ? "being cancelled" : job.state, STATES[job.state]);

/** Draw a job that runs or waits into `box` until it has ended; return it as it ended. Rejects if `signal` aborts. */
export async function live(box, id, signal) {
  const bar = h("span"), text = h("p", { class: "note row between" }), state = h("span"), error = h("div");
  const meter = h("div", { class: "progress", role: "progressbar", "aria-valuemin": 0, "aria-valuemax": 100, "aria-label": "Progress of the job" }, bar);
  const cancel = h("button", { type: "button", class: "quiet small", onclick: () => once(cancel, stop) }, "Cancel");
  fill(box, h("div", { class: "row between" }, state, cancel), meter, text, error);
  let told = "";

  async function stop() {
    try {
      draw(await send("DELETE", `/manage/jobs/${segment(id)}`, undefined, signal));
    } catch (failure) {
      fill(error, trouble(failure));
    }
  }

  function draw(job) {
    const { phase, step, total, eta_ms: eta } = job.progress;
    const share = total > 1 ? Math.min(1, step / total) : null; // a phase of one step has nothing to show
    meter.classList.toggle("unknown", share === null && job.state === "running");
    bar.style.setProperty("width", `${100 * (share ?? 0)}%`);
    if (share === null) meter.removeAttribute("aria-valuenow");
    else meter.setAttribute("aria-valuenow", Math.round(100 * share));
    const what = phase || "begins";
    const over = ENDED.has(job.state), took = job.started ? (over ? Date.parse(job.ended) : Date.now()) - Date.parse(job.started) : null;
    const said = over ? `took ${duration(took ?? 0)}` : job.state === "queued" ? "waits for its turn" : share === null ? what
      : `${what}: step ${count(step)} of ${count(total)} (${Math.round(100 * share)}%)${left(eta)}`;
    meter.setAttribute("aria-valuetext", said);
    fill(text, h("span", null, said), !over && took !== null && h("span", null, duration(took)));
    fill(state, stateBadge(job));
    const held = document.activeElement === cancel;
    cancel.hidden = over || Boolean(job.cancel_requested);
    if (held && cancel.hidden) refocus(box);
    const quarter = share === null ? 0 : Math.floor(4 * share);
    const news = `${job.state} ${phase} ${quarter}`;
    if (news !== told) {
      told = news;
      announce(job.state === "running" ? said : `Job ${job.state}`);
    }
  }

  let last = null;
  const clock = setInterval(() => { // for the time that has passed
    if (signal.aborted || !box.isConnected) clearInterval(clock);
    else if (last && !ENDED.has(last.state)) draw(last);
  }, CLOCK_MS);
  for (;;) { // a server that restarts closes the stream; the job goes on after it
    let job = null;
    try {
      await follow(`/manage/jobs/${segment(id)}/events`, (event, data) => {
        if (event !== "error") { job = last = data; draw(job); }
      }, signal);
      job = await get(`/manage/jobs/${segment(id)}`, signal);
      draw(job);
      if (ENDED.has(job.state)) {
        clearInterval(clock);
        return job;
      }
    } catch (failure) {
      if (signal.aborted || [401, 403, 404].includes(failure.status)) throw failure;
      text.textContent = "The connection is lost; trying again …";
    }
    await new Promise((resolve) => { setTimeout(resolve, AGAIN_MS); });
    signal.throwIfAborted();
  }
}

/** What became of an ended job, in words; null while it runs. */
export function outcome(job) {
  if (job.state === "failed") return callout("bad", h("p", null, job.error ? sentence(job.error.message) : "The job failed."));
  if (job.state === "cancelled") return callout("warn", h("p", null, job.result?.reason ? sentence(job.result.reason) : "The job was cancelled."));
  if (job.result?.published === false) return callout("warn", h("p", null, sentence(job.result.reason)));
  return null;
}
