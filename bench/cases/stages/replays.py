"""The same traffic through several engines in turn, and the utility that each of them earns."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.cases.serve.plots import Line, xy_svg
from bench.cases.stages.arrivals import read_trace
from bench.cases.stages.home import LARGE, Home
from bench.cases.stages.lab import Lab, requests_of
from bench.cases.stages.live import closed
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.traffic import (
    BURSTY_LOAD,
    HIGH,
    INTERVAL_TEXTS,
    LOW,
    Offered,
    Outcome,
    Traffic,
    offered,
)
from bench.harness.report import Row
from hmi.engine import Engine, TextRequest
from hmi.stages import RoundRobin

CAPACITY_TEXTS = 40
"""Texts of each task by which the capacity is measured before each replay."""
POINTS = 300
"""Points of a line in a plot."""


@dataclass(frozen=True)
class Arm:
    """An engine that is offered the traffic."""

    engine: Engine
    model: str = LARGE
    """The name of the models that it is asked."""


@dataclass
class Replays:
    """The outcomes of each arm in each replay of one trace."""

    interval_s: list[float] = field(default_factory=list)
    """[replays]"""
    load: list[float] = field(default_factory=list)
    """[replays]: arrivals a second, divided by the capacity."""
    runs: dict[str, list[Offered]] = field(default_factory=dict)
    """[replays] for each arm, by its name."""

    def ratios(self, arm: str, other: str) -> list[float]:
        """[replays]: the utility of one arm, divided by the other's."""
        pairs = zip(self.runs[arm], self.runs[other], strict=True)
        return [a.utility / max(b.utility, 1e-9) for a, b in pairs]

    def median(self, arm: str, other: str) -> tuple[float, str]:
        """The median of `ratios`, and its spread in words."""
        each = self.ratios(arm, other)
        return round(statistics.median(each), 4), f"{min(each):.3f} to {max(each):.3f}"

    def together(self, arm: str) -> list[Outcome]:
        """The outcomes of all replays."""
        return [outcome for run in self.runs[arm] for outcome in run.outcomes]


def in_turn(home: Home, count: int, name: str, model: str = LARGE) -> list[TextRequest]:
    """The first `count` texts of each task, a text of each task after the other."""
    each = [
        requests_of(home.model(t, model), [str(row.text) for row in t.stream[:count]], f"{name}-{t.name}")
        for t in home.tasks
    ]
    return [request for together in zip(*each, strict=True) for request in together]


def weights(home: Home) -> dict[str, float]:
    """Weights of the tasks' tenants, by the words of their texts. Equally many texts of each are then equal
    shares, and the traffic is as of one operator, like OTAS's."""
    return {
        home.model(task).tenant: statistics.mean(len(str(row.text).split()) for row in task.stream)
        for task in home.tasks
    }


async def capacity(lab: Lab, home: Home, plan: Plan, report: Report) -> float:
    """Texts a second of all tasks in turn, without stages, by callers that wait for their answers."""
    requests = in_turn(home, CAPACITY_TEXTS, "capacity")
    async with lab.engine(RoundRobin(), plan.deadline_batch_ms) as engine:
        asked = await closed(engine, requests, plan.callers)
    report.did(len(requests))
    return len(requests) / asked.seconds


async def replayed(
    lab: Lab, home: Home, arms: Mapping[str, Arm], plan: Plan, report: Report, seed: int = 0
) -> dict[str, Replays]:
    """Offer each replay of each trace to all arms in turn, in an order that changes.

    The capacity is measured before each, so that loads hold on a machine that others use, too. seed: of the
    first replay.
    """
    stamps = None if plan.traces is None else read_trace(plan.traces)
    found: dict[str, Replays] = {}
    for i in range(plan.replays):
        texts_s = await capacity(lab, home, plan, report)
        traffic = Traffic(home, texts_s, stamps, plan.pressure, plan.interval_s)
        for trace in traffic.traces:
            replays = found.setdefault(trace, Replays())
            arrivals = traffic.arrivals(trace, plan.intervals, seed + i)
            replays.interval_s.append(traffic.interval_s)
            replays.load.append(len(arrivals) / (plan.intervals * traffic.interval_s * traffic.capacity))
            names = list(arms)
            first = i % len(names)
            for name in names[first:] + names[:first]:
                asks = traffic.asks(len(arrivals), seed + i, trace, arms[name].model)
                run = await offered(arms[name].engine, asks, arrivals)
                replays.runs.setdefault(name, []).append(run)
                report.did(len(asks))
    return found


def texts_of(plan: Plan, arms: int) -> int:
    """About how many texts `replayed` asks."""
    loads = [(LOW + HIGH) / 2, *([] if plan.traces is None else [BURSTY_LOAD])]
    asked = sum(loads) * plan.pressure * plan.intervals * INTERVAL_TEXTS
    return round(plan.replays * (CAPACITY_TEXTS * len(plan.tasks) + arms * asked))


def rows(name: str, replays: Replays) -> Iterator[Row]:
    """Yield each arm's utility, answers, accuracy and latencies. name: the beginning of the rows' ids."""
    count = len(replays.load)
    whole = sum(outcome.ask.utility for outcome in replays.together(next(iter(replays.runs))))
    interval = f"intervals of {1e3 * statistics.median(replays.interval_s):.0f} ms"
    yield Row(
        f"{name}_load", round(statistics.mean(replays.load), 3), "of capacity", runs=count, peer=interval
    )
    for arm in replays.runs if whole else ():  # very short traces may have no arrivals
        outcomes = replays.together(arm)
        answered = [outcome for outcome in outcomes if outcome.result is not None]
        label, texts = f"{name}_{arm}", len(outcomes)
        earned = sum(outcome.earned for outcome in outcomes)
        yield Row(f"{label}_utility", round(earned / whole, 4), "of all", runs=texts, peer=_taken(answered))
        yield Row(f"{label}_answered", round(len(answered) / texts, 4), "of texts", runs=texts)
        if answered:
            right = sum(outcome.right for outcome in answered) / len(answered)
            yield Row(f"{label}_accuracy", round(right, 4), "of answered", runs=len(answered))
            for part in (50, 95):
                ms = 1e3 * float(np.percentile([outcome.seconds for outcome in answered], part))
                yield Row(f"{label}_p{part}", round(ms, 1), "ms", runs=len(answered))


def _taken(answered: Sequence[Outcome]) -> str:
    """The settings under which texts were answered, with their shares."""
    found: Counter[str] = Counter()
    for outcome in answered:
        assert outcome.result is not None
        made_by = outcome.result.provenance
        assert made_by is not None, "it was asked for"
        found[
            ", ".join(f"{stage} {setting}" for stage, setting in sorted(made_by.stages.items())) or "off"
        ] += 1
    return "; ".join(f"{name}: {count / len(answered):.0%}" for name, count in found.most_common(4))


def plot(plan: Plan, name: str, replays: Replays, arms: Sequence[str]) -> None:
    """Draw the utility that some arms had earned by each moment, one replay after the other."""
    if plan.plots is not None:
        lines = {arm: _earned(replays, arm, plan.intervals) for arm in arms}
        title = f"{name}: utility by time"
        (plan.plots / f"{name}.svg").write_text(xy_svg(title, "seconds", "utility earned", lines))


def _earned(replays: Replays, arm: str, intervals: int) -> Line:
    """The points of one arm's line, some of the moments at which texts were answered."""
    line, begun, earned = [(0.0, 0.0)], 0.0, 0.0
    for run, interval_s in zip(replays.runs[arm], replays.interval_s, strict=True):
        for outcome in sorted(run.outcomes, key=lambda outcome: outcome.ended_s):
            earned += outcome.earned
            line.append((begun + outcome.ended_s, earned))
        begun = max(begun + intervals * interval_s, line[-1][0])
    return line[:: max(1, len(line) // POINTS)]
