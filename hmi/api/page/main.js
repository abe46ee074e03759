// Starts the page: its navigation, the view that the address names, and the announcements of changes.

import { announce, fill, h } from "./dom.js";
import { askKey, hindrance, refresh, session, trouble } from "./session.js";
import { overview } from "./overview.js";
import { teach } from "./teach.js";
import { tryText } from "./try.js";
import { models } from "./models.js";
import { model } from "./model.js";
import { jobs } from "./jobs.js";
import { tenants } from "./tenants.js";
import { domains } from "./domains.js";

// A view's `show(main, name, signal)` fills the page; `signal` aborts when another view comes.
const VIEWS = {
  "": { name: "Overview", show: overview },
  teach: { name: "New model", show: teach },
  try: { name: "Try a text", show: tryText, infer: true },
  models: { name: "Models", show: models },
  model: { name: "Model", show: model, under: "models" },
  jobs: { name: "Jobs", show: jobs },
  tenants: { name: "Tenants", show: tenants },
  domains: { name: "Domains", show: domains },
};
const RETRY_MS = 3000;
const main = document.getElementById("main");
let leaving = new AbortController();

function navigate() {
  const [, name = "", ...rest] = decodeURIComponent(location.hash).split("/");
  return [VIEWS[name] ? name : "", rest.join("/")];
}

function drawNavigation(current) {
  const shown = Object.entries(VIEWS).filter(([, v]) => !v.under && !(session.mode === "infer" && !v.infer));
  fill(document.getElementById("nav"), shown.map(([id, v]) => h("li", null, h("a", {
    href: `#/${id}`, "aria-current": id === current || VIEWS[current].under === id ? "page" : null,
  }, id === "tenants" && session.mode === "tenant" ? "Usage" : v.name))));
  const here = document.querySelector("#nav [aria-current]");
  if (here) here.closest("nav").scrollLeft = here.offsetLeft - 40;
}

async function show({ moved = true } = {}) {
  leaving.abort();
  leaving = new AbortController();
  const { signal } = leaving;
  main.setAttribute("aria-busy", "true");
  const [id, name] = navigate();
  const view = VIEWS[id];
  if (session.mode === "unknown" || session.mode === "waiting") await refresh();
  if (signal.aborted) return;
  drawNavigation(id);
  document.title = `${name || view.name} · HMI`;
  const instead = hindrance(view, restart);
  if (instead) fill(main, instead);
  else await view.show(main, name, signal).catch((error) => told(error, signal));
  if (signal.aborted) return;
  main.removeAttribute("aria-busy");
  main.dataset.shown = name ? `${id}/${name}` : id;
  if (moved) {
    main.focus({ preventScroll: true });
    scrollTo(0, 0);
    announce(document.title);
  }
  if (session.mode === "waiting") setTimeout(() => !signal.aborted && show({ moved: false }), RETRY_MS);
}

function told(error, signal) {
  if (signal.aborted || error.name === "AbortError") return;
  fill(main, trouble(error));
  if (error.status === undefined) throw error;
}

function restart() {
  session.mode = "unknown";
  show();
}

document.getElementById("key-button").addEventListener("click", () => askKey(restart));
document.getElementById("skip").addEventListener("click", (event) => {
  event.preventDefault();
  main.focus();
});
addEventListener("hashchange", () => show());
show({ moved: false });
