// The tenants and their usage over time; for a tenant's key, its own.

import { get, segment } from "./api.js";
import { lines } from "./chart.js";
import { card, fill, h, table, title } from "./dom.js";
import { bytes, count, day, duration, figure } from "./format.js";
import { tenantTable } from "./overview.js";
import { refresh, session } from "./session.js";
import { newTenant } from "./tenant.js";

const MOST = 200;
const DAY_MIN = 1440;

export async function tenants(main, name, signal) {
  const seen = (await refresh(DAY_MIN, signal)).overview;
  if (signal.aborted || !seen) return;
  const one = name || session.tenant;
  if (one) await usage(main, one, seen, signal);
  else await all(main, seen, signal);
}

async function all(main, seen, signal) {
  const { tenants: found } = await get("/manage/tenants", signal);
  if (signal.aborted) return;
  fill(main, title("Tenants", "Each has its own models, keys and share of the compute."), h("div", { class: "stack" },
    seen.tenants.length > 0 && card("Usage in the last 24 hours", tenantTable(seen.tenants)),
    card(`All tenants (${count(found.length)})`, found.length ? table("Tenants", [
      { head: "Tenant", row: true, cell: (t) => h("a", { href: `#/tenants/${segment(t.tenant)}` }, t.tenant) },
      { head: "Weight", n: true, cell: (t) => figure(t.weight) },
      { head: "Created", cell: (t) => day(t.created) },
    ], found.slice(0, MOST), true) : h("p", { class: "lead" }, "There are none yet. Create the first one below."),
    found.length > MOST && h("p", { class: "note" }, `The first ${MOST} are shown.`)),
    card("New tenant", newTenant())));
}

async function usage(main, tenant, seen, signal) {
  const use = await get(`/manage/tenants/${segment(tenant)}/usage`, signal);
  if (signal.aborted) return;
  const own = seen.tenants.find((t) => t.tenant === tenant);
  const points = seen.points.map((p, i) => ({ ...p, own: own ? own.texts_by_point[i] : 0 }));
  fill(main, title(session.tenant ? `Usage of ${tenant}` : tenant, "Since the server started, and what is stored.", !session.tenant && h("a", { href: "#/tenants" }, "All tenants")),
    h("div", { class: "stack" },
      h("dl", { class: "tiles" }, [["Calls", count(use.requests)], ["Texts", count(use.inputs)], ["Tokens", count(use.tokens)],
        ["Compute", duration(use.compute_ms)], ["Models", count(use.models)], ["Stored", bytes(use.model_bytes)]].map(([name, value]) =>
        h("div", { class: "card tile" }, h("dt", null, name), h("dd", { class: "figure" }, value)))),
      card("Last 24 hours", lines(points, [{ name: "texts a minute", of: (p) => (p.own === null ? null : (60 * p.own) / p.seconds) }],
        `Texts a minute of ${tenant}, by the time of day`, 60 * DAY_MIN))));
}
