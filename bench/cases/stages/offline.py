"""Figures of the planner that need no model: Algorithm 2 beside the exact program, costs, simulated loads."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from bench.cases.stages.arrivals import poisson, read_trace, traced
from bench.cases.stages.otas import algorithm_2, shares, worth
from bench.cases.stages.simulated import (
    Exact,
    Fixed,
    Otas,
    Seen,
    Table,
    bursty,
    fluctuating,
    random_groups,
    simulate,
    texts_of,
)
from bench.harness.report import Row
from hmi.stages.planning.group import GroupLimits
from hmi.stages.planning.labels import Job, Option, best

SIZES = (2, 3, 4, 5, 6)
LOADS = (0.9, 1.1, 1.3, 1.6, 2.0)
"""Arrivals a second, by the texts a second that the table's off answers at most."""
PLAN_US, FAST_US = 200.0, 20.0
"""Goals: 1% of a batch of 20 ms; the same for a plan that drops and adapts nothing."""
TEXTS = 22
"""Texts of a batch of 20 ms."""
Arrivals = Callable[[float, float], NDArray[np.float64]]
"""(texts a second, seconds) -> ascending times."""


def counterexample() -> Row:
    """The smallest instance on which Algorithm 2 falls short."""
    jobs = [Job(5.0, [Option(4.0, 1.0)]), Job(6.0, [Option(3.0, 2.0)]), Job(6.0, [Option(3.0, 100.0)])]
    found, _ = worth(0.0, jobs, algorithm_2(0.0, jobs, corrected=True))
    return Row("planner_counterexample", found, f"of {best([0.0], jobs).value:g}", peer="Algorithm 2")


def by_size(instances: int) -> Iterator[Row]:
    """The shares of random instances on which Algorithm 2 falls short, by their number of batches."""
    for size in SIZES:
        found = shares(size, instances)
        about = f"loses {found.mean_loss:.3f}; as printed {found.infeasible:.3f} miss deadlines"
        label, part = f"planner_{size}_batches", round(found.suboptimal, 4)
        yield Row(f"{label}_suboptimal", part, "of instances", runs=instances, peer=f"Algorithm 2: {about}")
        yield Row(f"{label}_below_algorithm_2", found.better, "instances", 0, False, instances)


def costs(runs: int) -> Iterator[Row]:
    """The time of a plan for 20 groups of six settings, with and without pressure."""
    table = Table(saved=(0, 0.08, 0.15, 0.28, 0.42, 0.5), accuracy=(1, 0.998, 0.995, 0.985, 0.96, 0.9))
    for name, load, goal in (("fast", 0.5, FAST_US), ("loaded", 1.5, PLAN_US)):
        took = []
        for seed in range(runs):
            policy, groups = Exact(table), random_groups(20, TEXTS, load, table, seed)
            policy.choose(groups, Seen(0.0, 0.0))
            begun = time.thread_time()
            for _ in range(20):
                policy.choose(groups, Seen(0.0, 0.0))
            took.append((time.thread_time() - begun) / 20 * 1e6)
        yield Row(f"planner_{name}_plan", round(statistics.median(took), 1), "µs", goal, False, runs)


def traces(folder: Path | None) -> dict[str, Arrivals]:
    """The arrivals by name. folder: of the trace of real traffic; None: without it."""
    found: dict[str, Arrivals] = {
        "poisson": lambda rate, seconds: poisson(int(rate * seconds), rate, 1),
        "fluctuating": lambda rate, seconds: fluctuating(rate, seconds, 1),
        "bursty": lambda rate, seconds: bursty(rate, seconds, 1),
    }
    if folder is not None:
        stamps = read_trace(folder)
        found["trace"] = lambda rate, seconds: traced(stamps, int(rate * seconds), rate, 1)
    return found


def loads(seconds: float, folder: Path | None, around: tuple[float, ...] = LOADS) -> Iterator[Row]:
    """The utility of the planner in simulated loads beside those of other ways to plan.

    Each row's value is relative to γ = 0 in the order of deadlines; the peer names the shares of all utility.
    """
    table, off = Table(), Table(saved=(0.0,), accuracy=(1.0,))
    limits, full = GroupLimits(seconds=table.seconds(TEXTS, 0)), table.rate(TEXTS, 0)
    for name, arrivals in traces(folder).items():
        for load in around:
            texts = texts_of(arrivals(load * full, seconds), 2)
            every = sum(text.utility for text in texts)
            fixed = [simulate(texts, Fixed(s), table, limits) for s in range(len(table.saved))]
            arms = {
                "γ = 0": fixed[0],
                "best other γ": max(fixed[1:], key=lambda outcome: outcome.utility),
                "OTAS": simulate(texts, Otas(table, TEXTS), table, limits),
                "γ = 0, exact": simulate(texts, Exact(off), off, limits),
                "exact": simulate(texts, Exact(table), table, limits),
            }
            parts = {arm: outcome.utility / every for arm, outcome in arms.items()}
            peer = ", ".join(f"{arm} {part:.3f}" for arm, part in parts.items())
            ratio = round(parts["exact"] / parts["γ = 0"], 3)
            yield Row(f"planner_{name}_{load}", ratio, "of γ = 0's", runs=len(texts), peer=peer)


def rows(
    instances: int = 400, runs: int = 30, seconds: float = 20.0, folder: Path | None = None
) -> Iterator[Row]:
    """All of them. Takes some two minutes of CPU with the defaults, most of them for the simulated loads."""
    yield counterexample()
    yield from by_size(instances)
    yield from costs(runs)
    yield from loads(seconds, folder)
