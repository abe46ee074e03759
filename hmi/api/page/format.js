// Figures and times as people read them.

const whole = new Intl.NumberFormat("en", { maximumFractionDigits: 0 });
const some = new Intl.NumberFormat("en", { maximumSignificantDigits: 3 });

export const count = (n) => whole.format(n);
export const figure = (x) => (x >= 1000 ? whole.format(x) : some.format(x));
export const percent = (x, digits = 0) => `${(100 * x).toFixed(digits)}%`;
/** A probability or a score, with two decimals; never 0 or 1 for what is only near. */
export const score = (x) => (x > 0.995 && x < 1 ? "> 0.99" : x > 0 && x < 0.005 ? "< 0.01" : x.toFixed(2));

export function bytes(n) {
  if (n < 1024) return `${n} B`;
  const units = ["KiB", "MiB", "GiB", "TiB"];
  let at = -1;
  do { n /= 1024; at += 1; } while (n >= 1000 && at < units.length - 1);
  return `${n.toFixed(n < 10 ? 1 : 0)} ${units[at]}`;
}

export function ms(x) {
  if (x === null || x === undefined) return "–";
  return x < 1000 ? `${some.format(x)} ms` : duration(x);
}

export function duration(x) {
  const s = Math.max(0, Math.round(x / 1000));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min ${s % 60 ? `${s % 60} s` : ""}`.trim();
  if (s < 86400) return `${Math.floor(s / 3600)} h ${Math.floor((s % 3600) / 60)} min`;
  return `${Math.floor(s / 86400)} d ${Math.floor((s % 86400) / 3600)} h`;
}

/** How long ago, in its largest unit. */
export const ago = (iso) => (iso ? `${coarse(Date.now() - Date.parse(iso))} ago` : "–");
export const coarse = (x) => duration(x).split(" ").slice(0, 2).join(" ");
export const capital = (text) => text.charAt(0).toUpperCase() + text.slice(1);
/** A message of the server as a sentence. */
export const sentence = (text) => capital(text) + (/[.!?]$/.test(text) ? "" : ".");
export const clock = (seconds) =>
  new Date(1000 * seconds).toLocaleTimeString([], { hour: "2-digit", minute: "2-digit" });
export const day = (iso) => new Date(iso).toLocaleString([], { dateStyle: "medium", timeStyle: "short" });
export const plural = (n, one, many = `${one}s`) => `${count(n)} ${n === 1 ? one : many}`;

const METRICS = { accuracy: "accuracy", macro_f1: "macro F1", micro_f1: "micro F1", entity_f1: "entity F1",
  spearman: "rank correlation", token_accuracy: "token accuracy", rouge_l: "ROUGE-L", mae: "mean absolute error", r2: "R²" };
export const metricName = (name) => METRICS[name] ?? name.replaceAll("_", " ");

/** The metric that a model is judged by, as the server chooses it: [name, value], or null if it has none. */
export function headline(metrics) {
  const name = ["entity_f1", "accuracy", "micro_f1", "spearman", "token_accuracy", "perplexity"].find((m) => m in metrics);
  return name ? [metricName(name), metrics[name]] : null;
}
