"""Early exits on streams of real texts: agreement, latency, and what static thresholds would have done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from bench.cases.serve.plots import xy_svg
from bench.cases.stages import static, tuning
from bench.cases.stages.home import SHUFFLED, Home
from bench.cases.stages.lab import Lab, opened, requests_of
from bench.cases.stages.live import closed
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.records import Records, joined, recorded
from bench.cases.stages.streams import CAPACITY_TEXTS, PACES, Streamed, pacing, seconds_of, streamed
from bench.cases.stages.tasks import TaskRows, drifted
from bench.harness.report import Row

STREAMS = ("stationary", "drift")
P50_GOAL, P50_STRETCH, P95_GOAL = -0.14, -0.25, 0.02
"""Changes of the latency's median and 95th percentile, as fractions (Apparate's on 6 layers)."""
SHUFFLED_GOAL = 0.01
"""The most texts that may leave at ramps that were taught on shuffled answers, as a fraction."""
HARD = 0.15
"""The part of the texts after a drift of which ramps are sure, and wrong."""
POINTS = 100
"""Points of a curve in a plot."""


def texts(plan: Plan) -> int:
    paced = plan.texts - plan.warm
    each = 2 * CAPACITY_TEXTS + 2 * plan.texts - plan.drift_at + 2 * (plan.warm + 2 * paced) + plan.texts
    return len(plan.tasks) * each


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    for task in home.tasks:
        yield from asyncio.run(_task(plan, home, task, report))


async def _task(plan: Plan, home: Home, task: TaskRows, report: Report) -> list[Row]:
    model, still = home.model(task), [str(row.text) for row in task.stream]
    async with opened(home.data, [model]) as lab:
        lab.agree(model, None)
        report.say(f"exits: {task.name}, records of every ramp")
        records = await recorded(lab, model, still, plan.callers)
        moved = mixed(
            [drifted(text, i) for i, text in enumerate(still[plan.drift_at :])],
            [still[i] for i in static.misled(plan, records)],
        )
        after = await recorded(lab, model, moved, plan.callers)
        report.did(len(still) + len(moved))
        pace = await pacing(lab, model, still, plan, report)
        lab.agree(model, plan.agreement)
        rows = [Row(f"{task.name}_arrivals", round(pace.rate, 1), "texts a second")]
        known = {"stationary": records, "drift": joined(records, plan.drift_at, after)}
        for name, texts in (("stationary", still), ("drift", [*still[: plan.drift_at], *moved])):
            report.say(f"exits: {task.name}, {name} stream of {len(texts)} texts")
            found = await streamed(lab, model, texts, pace, plan, report)
            rows += figures(f"{task.name}_{name}", plan, found, known[name])
            rows += static.rows(f"{task.name}_{name}", plan, known[name], drifts=name == "drift")
            _plot(plan, f"{task.name}-{name}", found)
        report.say(f"exits: {task.name}, ramps taught on shuffled answers")
        rows += await _shuffled(lab, plan, home, task, still, report)
        return [*rows, *tuning.rows(task.name, plan, records)]


def mixed(texts: Sequence[str], hard: Sequence[str]) -> list[str]:
    """Put one of the hard texts in the place of a part of the texts, at random."""
    draw = random.Random(0)
    return [draw.choice(hard) if hard and draw.random() < HARD else text for text in texts]


async def _shuffled(
    lab: Lab, plan: Plan, home: Home, task: TaskRows, texts: Sequence[str], report: Report
) -> list[Row]:
    model = home.model(task, SHUFFLED)
    lab.agree(model, plan.agreement)
    async with lab.engine() as engine:
        asked = await closed(engine, requests_of(model, texts, "shuffled"), plan.callers)
    report.did(len(texts))
    left = sum(answer.layers < lab.depth(model) for answer in asked.answers)
    share = round(left / len(texts), 4)
    return [Row(f"{task.name}_shuffled_ramps_left", share, "of texts", SHUFFLED_GOAL, False, len(texts))]


def figures(name: str, plan: Plan, found: Streamed, records: Records) -> Iterator[Row]:
    """Agreement with the full model over the whole stream, who left where, and changes of latency and CPU."""
    texts, layers = len(found.staged), np.array([answer.layers for answer in found.staged])
    wrong = sum(a.label != full for a, full in zip(found.staged, records.labels, strict=True))
    agreement = 1 - wrong / texts
    yield Row(f"{name}_agreement", round(agreement, 5), "of answers", plan.agreement, runs=texts)
    yield Row(f"{name}_disagreements", wrong, "answers", runs=texts)
    plain = sum(a.label != full for a, full in zip(found.plain, records.labels[found.warm :], strict=True))
    yield Row(f"{name}_without_stages_unlike_recorded", plain, "answers", 0, False, len(found.plain))
    left = np.flatnonzero(layers < records.layers)
    first = int(left[0]) if len(left) else None
    why = None if len(left) else "no text left early"
    yield Row(f"{name}_first_left", first, "text", why=why)
    yield Row(f"{name}_left", round(len(left) / texts, 4), "of texts", runs=texts)
    if first is not None:
        since = layers[first:]
        yield Row(f"{name}_left_since_first", round(float((since < records.layers).mean()), 4), "of texts")
        for site in sorted(set(since.tolist()) - {records.layers}):
            share = float((since == site).mean())
            yield Row(f"{name}_left_at_{site}_since_first", round(share, 4), "of texts")
    if found.report is not None:
        state = f"{found.report.state}, sites {list(found.report.sites)}"
        yield Row(f"{name}_audits", found.report.audits, "texts", peer=state)
        yield Row(f"{name}_alarms", found.report.alarms, "alarms")
    cpu = found.cpu_s["staged"] / found.cpu_s["plain"] - 1
    yield Row(f"{name}_cpu_change", round(cpu, 4), "of none's", runs=len(found.plain))
    yield from _latencies(name, plan, found, first)


def _latencies(name: str, plan: Plan, found: Streamed, first: int | None) -> Iterator[Row]:
    """Latency with stages beside that without, over several parts of the paced texts."""
    plain, staged = seconds_of(found.plain), seconds_of(found.staged[found.warm :])
    at, pace = found.warm + np.arange(len(plain)), np.array(found.pace)
    parts = {"": at >= 0}
    if first is not None:
        parts["_since_first"] = at >= first
    if name.endswith("drift"):
        parts |= {"_before_drift": at < plan.drift_at, "_after_drift": at >= plan.drift_at}
    parts |= {f"_{kind}": pace == kind for kind in PACES if kind in found.pace}
    for part, mask in parts.items():
        if not mask.any():
            continue
        goals = name.endswith("stationary") and part in ("", "_since_first")
        for figure, of in (("p50", 50), ("p95", 95), ("mean", None)):
            a, b = (
                float(s[mask].mean() if of is None else np.percentile(s[mask], of)) for s in (plain, staged)
            )
            row = Row(f"{name}_{figure}_change{part}", round(b / a - 1, 4), "of none's", at_least=False)
            if goals and figure == "p50":
                row = replace(row, goal=P50_GOAL, stretch=P50_STRETCH)
            elif goals and figure == "p95":
                row = replace(row, goal=P95_GOAL)
            yield replace(row, runs=int(mask.sum()), peer=f"{1e3 * a:.1f} -> {1e3 * b:.1f} ms")


def _plot(plan: Plan, name: str, found: Streamed) -> None:
    if plan.plots is not None:
        lines = {
            "without stages": curve(seconds_of(found.plain)),
            "with exits": curve(seconds_of(found.staged[found.warm :])),
        }
        file = plan.plots / f"exits-{name}.svg"
        file.write_text(xy_svg(f"{name}: from arrival to answer", "ms", "fraction of texts", lines))


def curve(seconds: np.ndarray) -> list[tuple[float, float]]:
    """The distribution's points (ms, fraction of texts) up to the 99th percentile."""
    shares = np.linspace(0, 0.99, POINTS)
    return [(1e3 * float(np.quantile(seconds, share)), float(share)) for share in shares]
