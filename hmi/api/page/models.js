// The list of models.

import { pages, segment } from "./api.js";
import { badge, fill, h, table, title } from "./dom.js";
import { bytes, headline, plural, score } from "./format.js";

const MOST = 500;

export async function models(main, _name, signal) {
  const [found, more] = await pages("/manage/models", "models", MOST, signal);
  if (signal.aborted) return;
  const add = h("a", { class: "button", href: "#/teach" }, "New model");
  if (!found.length) {
    fill(main, title("Models", null, add), h("div", { class: "card" }, h("p", { class: "lead" },
      "There are no models yet. Upload labelled rows, and a model of your own answers about a minute later.")));
    return;
  }
  const list = h("div");
  const search = h("input", { type: "search", "aria-label": "Find a model by name, domain or task", placeholder: "Find …", oninput: draw });
  function draw() {
    const wanted = search.value.trim().toLowerCase();
    const some = found.filter((m) => [m.model, m.domain, m.task].some((text) => text.includes(wanted)));
    fill(list, some.length ? rows(some) : h("p", { class: "lead" }, "No model has this name, domain or task."));
  }
  draw();
  fill(main, title("Models", `${plural(found.length, "model")}${more ? " and more" : ""}, each with its version that answers.`, add),
    h("div", { class: "card stack" }, found.length > 8 && search, list));
}

function rows(found) {
  return table("Models and the scores of their versions on held-out rows", [
    { head: "Model", row: true, cell: (m) => h("a", { href: `#/model/${m.model}` }, m.model) },
    { head: "Task", cell: (m) => m.task, narrow: false },
    { head: "Version", cell: (m) => `${m.current} of ${m.versions.length}`, n: true, narrow: false },
    { head: "Held-out score", cell: heldOut },
    { head: "Labels", cell: (m) => m.labels.length || "–", n: true, narrow: false },
    { head: "Domain", cell: (m) => h("a", { href: "#/domains" }, m.domain), narrow: false },
    { head: "Size", cell: (m) => bytes(m.bytes), n: true, narrow: false },
    { head: "State", cell: states, narrow: false },
    { head: "Try", cell: (m) => h("a", { href: `#/try/${segment(m.model)}`, "aria-label": `Try ${m.model}` }, "Try") },
  ], found, true);
}

function heldOut(m) {
  const best = headline(m.metrics);
  return best ? h("span", null, h("b", null, score(best[1])), ` ${best[0]}`) : "not trained";
}

/** The version that answers, and the stages that may answer before the whole model. */
export function states(m) {
  const held = m.versions.find((v) => v.version > m.current && v.held_back);
  return h("span", { class: "row" }, badge("answers", "good"),
    held && badge(`version ${held.version} held back`, "warn"),
    m.objective.agreement !== null && badge(`${Math.round(1e4 * m.objective.agreement) / 100}% promised`, "accent"),
    m.cascade && badge("cascade", "accent"),
    m.tokens.state === "allowed" && badge("merges tokens", "accent"));
}
