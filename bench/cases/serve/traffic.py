"""Traffic: the order in which tenants send texts, and throughput by their number."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from bench.cases.serve.plan import Report, ServePlan
from bench.harness.report import Figure

Shape = Literal["uniform", "zipf"]
SHAPES: tuple[Shape, ...] = ("uniform", "zipf")
FLAT_GOAL = 0.95
TEXTS = 512
"""Different texts that are asked."""
POOLS = ("default_pool", "pool_of_all")
MEMORY_SHARE = 0.7
"""The fraction of the machine's free memory that the models may take."""
WARMED = 1_000
"""At most this many tenants are asked before each measurement."""
QUIET_S = 1.1
"""Pause before each measurement: for a second, the queue keeps room for tenants that sent something."""


def tenants_in_turn(shape: Shape, tenants: int, count: int, seed: int) -> NDArray[np.int64]:
    """Return the tenants of `count` texts, int64 [count], of 0 … `tenants` - 1.

    zipf: tenant i sends in proportion to 1 / (i + 1).
    """
    draw = np.random.default_rng(seed)
    if shape == "uniform":
        return draw.integers(0, tenants, count)
    weights = 1.0 / np.arange(1, tenants + 1)
    return draw.choice(tenants, count, p=weights / weights.sum())


class Throughputs:
    """Throughput by number of tenants, in turns."""

    def __init__(self, name: str) -> None:
        """name: of the rows."""
        self._name = name
        self._found = defaultdict[int, list[tuple[float, float, float]]](list)

    def turns(
        self, plan: ServePlan, shape: Shape, asks: int, report: Report
    ) -> Iterator[tuple[int, list[int], Iterable[int]]]:
        """Yield a number of tenants, the tenants of `asks` texts, and those to be asked before these.

        In each of `plan.runs` turns all numbers come in another order.
        """
        draw = np.random.default_rng(1)
        for turn in range(plan.runs):
            report(f"{self._name}: {turn + 1} of {plan.runs}")
            for count in draw.permutation(plan.counts).tolist():
                tenants = tenants_in_turn(shape, count, asks, seed=turn).tolist()
                yield count, tenants, range(count) if count <= WARMED else dict.fromkeys(tenants[:WARMED])

    def add(self, count: int, texts_s: float, work_s: float, work_cpu_s: float) -> None:
        """Add a measurement: texts a second; work, of which ratios are, a second and a CPU second."""
        self._found[count].append((texts_s, work_s, work_cpu_s))

    def rows(self) -> Iterator[Figure]:
        """Yield one tenant's rate, and the ratios of larger numbers of tenants to it."""
        one = self._found[1]
        first = statistics.median(texts_s for texts_s, _, _ in one)
        yield Figure(f"{self._name}_1", round(first, 1), "texts/s", runs=len(one))
        for count, found in sorted(self._found.items()):
            for i, how in ((1, ""), (2, "_by_cpu")) if count > 1 else ():
                ratio = statistics.median(f[i] / o[i] for f, o in zip(found, one, strict=True))
                name, runs = f"{self._name}_{count}_over_1{how}", len(one)
                yield Figure(name, round(ratio, 3), "x", FLAT_GOAL, True, runs, "one tenant")
