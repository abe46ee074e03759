"""The figures of a run, as rows."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence

import numpy as np

from bench.cases.background.run import SATURATED, Found, Neighbour, Pairs, PhaseFigures
from bench.harness.report import Figure, quantile

DRAWS = 1_000
Statistic = Callable[[Sequence[PhaseFigures]], float]


def rows(neighbour: Neighbour, capacity: float, found: Found) -> Iterator[Figure]:
    """The figures as rows. The goals are those of the first column."""
    yield Figure("background_capacity", round(capacity, 1), "calls/s")
    for (load, column), pairs in found.items():
        name = f"background_{load.replace('%', '')}_{column.replace(' ', '_')}"
        goal = neighbour.goal if column == next(iter(neighbour.columns)) else None
        count, peer = len(pairs.beside), "the same server alone"
        for label, figure in _figures(load).items():
            without, beside = figure(pairs.without), figure(pairs.beside)
            low, high = _interval(pairs, figure)
            why = f"95% of resampled pairs: {low:.3f} to {high:.3f}"
            judged = None if label in ("p50", "cpu") else goal
            ratio = round(beside / without, 3)
            yield Figure(f"{name}_{label}_over_none", ratio, "x", judged, False, count, peer, why=why)
            unit = "ms a call" if label in ("call", "cpu") else "ms"
            yield Figure(f"{name}_{label}", round(beside, 3), unit, runs=count)
            yield Figure(f"{name}_{label}_none", round(without, 3), unit, runs=count)
        work = statistics.mean(phase.work for phase in pairs.beside)
        yield Figure(f"{name}_{neighbour.work}", round(work, 3), neighbour.unit, runs=count)
        failed = sum(phase.seen.failures for phase in (*pairs.without, *pairs.beside))
        yield Figure(f"{name}_failed", failed, "calls", 0, False, count)


def _figures(load: str) -> dict[str, Statistic]:
    """The figures of a load. Waiting callers have no latency of their own: their throughput counts."""
    if load == SATURATED:
        return {"call": _ms_a_call, "cpu": _cpu_ms}
    return {
        "p50": lambda some: quantile(_ms(some), 0.5),
        "p99": lambda some: quantile(_ms(some), 0.99),
        "cpu": _cpu_ms,
    }


def _ms(phases: Sequence[PhaseFigures]) -> list[float]:
    return [ms for phase in phases for ms in phase.seen.ms]


def _cpu_ms(phases: Sequence[PhaseFigures]) -> float:
    """The server's CPU milliseconds a call. Other programs change it less than times."""
    return 1e3 * sum(phase.server_cpu_s for phase in phases) / len(_ms(phases))


def _ms_a_call(phases: Sequence[PhaseFigures]) -> float:
    """Milliseconds for one answer, so that a larger figure is worse, as for the others."""
    return 1e3 / statistics.mean(phase.seen.a_second for phase in phases)


def _interval(pairs: Pairs, figure: Statistic) -> tuple[float, float]:
    """The middle 95% of the ratio over resampled pairs."""
    draw, count = np.random.default_rng(0), len(pairs.beside)
    ratios = []
    for _ in range(DRAWS):
        some = draw.integers(0, count, count)
        ratios.append(figure([pairs.beside[i] for i in some]) / figure([pairs.without[i] for i in some]))
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
