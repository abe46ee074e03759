// Small charts as inline SVG, each with a sentence and a table that say the same.

import { h, svg, table } from "./dom.js";
import { clock, figure } from "./format.js";

const WIDE = 560, NARROW = 320, H = 170, LEFT = 46, RIGHT = 8, TOP = 8, BOTTOM = 22;

/** A line without axes. values: numbers, null where there is none. says: the text for screen readers. */
export function spark(values, says) {
  const top = Math.max(1e-9, ...values.filter((v) => v !== null));
  const x = (i) => (values.length > 1 ? (100 * i) / (values.length - 1) : 100);
  const y = (v) => 28 - (26 * v) / top;
  const known = values.map((v, i) => (v === null ? null : `${x(i).toFixed(1)},${y(v).toFixed(1)}`)).filter(Boolean);
  if (known.length < 2) return null;
  return svg("svg", { class: "spark", viewBox: "0 0 100 30", preserveAspectRatio: "none", role: "img", "aria-label": says },
    svg("polygon", { class: "area", points: `${known[0].split(",")[0]},30 ${known.join(" ")} 100,30` }),
    svg("polyline", { class: "l1", points: known.join(" "), "vector-effect": "non-scaling-stroke" }));
}

/**
 * Lines over time. points: with `at` (Unix seconds). series: {name, of(point)} (null where there is no value).
 * about: what the chart shows, with its unit. spanS: the seconds that it covers, up to the last point. shown: how
 * a value is written.
 */
export function lines(points, series, about, spanS, shown = figure) {
  const columns = series.map((s) => points.map(s.of));
  const top = nice(Math.max(0, ...columns.flat().filter((v) => v !== null)));
  const W = innerWidth < 640 ? NARROW : WIDE; // so that its texts can be read on a phone, too
  const end = points.at(-1).at + points.at(-1).seconds;
  const along = (at) => LEFT + (W - LEFT - RIGHT) * Math.max(0, 1 - (end - at) / spanS);
  const x = (i) => along(points[i].at + points[i].seconds);
  const y = (v) => TOP + (H - TOP - BOTTOM) * (1 - v / top);
  const rules = [0, 0.5, 1].map((share) => [
    svg("line", { class: "rule", x1: LEFT, x2: W - RIGHT, y1: y(share * top), y2: y(share * top) }),
    svg("text", { x: LEFT - 6, y: y(share * top) + 4, "text-anchor": "end" }, shown(share * top)),
  ]);
  const ticks = [1, 0.5, 0].map((back, n) => [end - back * spanS, ["start", "middle", "end"][n]]).map(([at, anchor]) =>
    svg("text", { x: along(at), y: H - 5, "text-anchor": anchor }, clock(at)));
  const paths = columns.map((values, n) => [
    svg("path", { class: `l${n + 1}`, d: path(values, x, y) }),
    lone(values).map((i) => svg("circle", { cx: x(i), cy: y(values[i]), r: 2.5, fill: `var(--c${n + 1})` })),
  ]);
  const nothing = columns.flat().every((v) => !v) && svg("text", { x: (W + LEFT) / 2, y: H / 2, "text-anchor": "middle" }, "No calls in this time yet");
  const says = `${about}. ${series.map((s, n) => `${s.name}: ${summary(columns[n], shown)}`).join(". ")}.`;
  return h("figure", { class: "chart" },
    svg("svg", { viewBox: `0 0 ${W} ${H}`, role: "img", "aria-label": says }, rules, ticks, paths, nothing),
    series.length > 1 && h("ul", { class: "legend" }, series.map((s, n) => h("li", null,
      svg("svg", { class: "key-line", viewBox: "0 0 30 8", "aria-hidden": "true" },
        svg("path", { class: `l${n + 1}`, d: "M1 4H29" })), " ", s.name))),
    asTable(points, series, columns, about, shown));
}

function asTable(points, series, columns, about, shown) {
  const details = h("details", null, h("summary", null, "As a table"));
  details.addEventListener("toggle", () => {
    if (!details.open || details.childElementCount > 1) return;
    const rows = points.map((p, i) => [clock(p.at), ...columns.map((c) => (c[i] === null ? "–" : shown(c[i])))]).reverse();
    details.append(table(about, ["From", ...series.map((s) => s.name)].map((head, i) =>
      ({ head, cell: (row) => row[i], n: i > 0, row: i === 0 })), rows));
  });
  return details;
}

/** A path that breaks where there is no value. */
function path(values, x, y) {
  let pen = "M";
  return values.map((v, i) => {
    if (v === null) { pen = "M"; return ""; }
    const at = `${pen}${x(i).toFixed(1)} ${y(v).toFixed(1)}`;
    pen = "L";
    return at;
  }).join("");
}

/** The indices of values without neighbours, which a line would not show. */
const lone = (values) => values.map((v, i) => i).filter((i) =>
  values[i] !== null && (values[i - 1] ?? null) === null && (values[i + 1] ?? null) === null);

function summary(values, shown) {
  const known = values.filter((v) => v !== null);
  if (!known.length) return "no values yet";
  return `last ${shown(known.at(-1))}, most ${shown(Math.max(...known))}`;
}

/** The next round number. */
function nice(most) {
  if (most <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(most));
  return [1, 2, 4, 5, 10].map((m) => m * power).find((v) => v >= most);
}

/** Parts of a whole, side by side. parts: {name, value, cls, mark}. */
export function split(parts, about, shown) {
  const whole = parts.reduce((sum, p) => sum + p.value, 0) || 1;
  const says = `${about}: ${parts.map((p) => `${p.name} ${shown(p.value / whole)}`).join(", ")}`;
  return h("div", null,
    h("div", { class: "split", role: "img", "aria-label": says }, parts.filter((p) => p.value).map((p) =>
      h("span", { class: p.cls, style: { "flex-grow": p.value } }))),
    h("ul", { class: "legend" }, parts.map((p) => h("li", null,
      h("span", { class: `word ${p.cls}` }, p.mark), ` ${p.name} ${shown(p.value / whole)}`))));
}

/** A bar for a share from 0 to 1. Its value stands beside it as text, so it is decoration. */
export const bar = (share) => h("span", { class: "bar", "aria-hidden": "true" },
  h("span", { style: { width: `${100 * Math.max(0, Math.min(1, share))}%` } }));

/** Bars with their names and values: items of [name, share, value]. The first may stand out. */
export const bars = (items, first = false) => h("dl", { class: "bars" }, items.map(([name, share, value], i) =>
  h("div", { class: first && i === 0 ? "first" : null }, h("dt", null, name),
    h("dd", null, bar(share)), h("dd", { class: "value" }, value))));
