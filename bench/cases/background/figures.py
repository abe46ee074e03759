"""The figures of a run, as rows and as a table with a column for each way to run the job."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from bench.cases.background.plan import COLUMNS, NONE, SATURATED
from bench.cases.background.run import Found, Pairs, Phase
from bench.harness.report import Row, quantile

GOAL = 1.05
"""The most by which a paced job may lengthen p99, and shorten the throughput."""
DRAWS = 1_000
Figure = Callable[[Sequence[Phase]], float]


def p50(phases: Sequence[Phase]) -> float:
    return quantile(_ms(phases), 0.5)


def p99(phases: Sequence[Phase]) -> float:
    return quantile(_ms(phases), 0.99)


def cpu_ms(phases: Sequence[Phase]) -> float:
    """The server's CPU milliseconds a call. Other programs change it less than times."""
    return 1e3 * sum(phase.server_cpu_s for phase in phases) / len(_ms(phases))


def seconds_a_call(phases: Sequence[Phase]) -> float:
    """Seconds for one answer, so that a larger figure is worse, as for the others."""
    return 1 / statistics.mean(phase.seen.a_second for phase in phases)


def rows(capacity: float, found: Found) -> Iterator[Row]:
    """The figures as rows. The goals are those of the paced job."""
    yield Row("background_capacity", round(capacity, 1), "calls/s")
    for (load, column), pairs in found.items():
        name = f"background_{load.replace('%', '')}_{column.replace(' ', '_')}"
        goal = GOAL if column == COLUMNS[0].name else None
        count, peer = len(pairs.beside), "the same server without the job"
        for label, figure in _figures(load).items():
            ratio = figure(pairs.beside) / figure(pairs.without)
            low, high = _interval(pairs, figure)
            judged = goal if label in ("p99", "call") else None
            why = f"95% of resampled pairs: {low:.3f} to {high:.3f}"
            yield Row(f"{name}_{label}_over_none", round(ratio, 3), "x", judged, False, count, peer, why=why)
            scale, unit = (1.0, "ms") if label != "call" else (1e3, "ms a call")
            yield Row(f"{name}_{label}", round(scale * figure(pairs.beside), 3), unit, runs=count)
            yield Row(f"{name}_{label}_none", round(scale * figure(pairs.without), 3), unit, runs=count)
        yield Row(f"{name}_job_cpu", round(_job_cpu(pairs), 3), "CPU s a second", runs=count)
        failed = sum(sum(p.seen.failed.values()) for p in (*pairs.without, *pairs.beside))
        yield Row(f"{name}_failed", failed, "calls", 0, False, count)


def table(found: Found) -> list[dict[str, Any]]:
    """A line for each load and figure: without a job, and with it in each column."""
    lines = []
    for load in dict.fromkeys(load for load, _ in found):
        by_column = {c.name: found[load, c.name] for c in COLUMNS if (load, c.name) in found}
        none = [phase for pairs in by_column.values() for phase in pairs.without]
        for label, figure in _figures(load).items():
            line = {"load": load, "figure": LABELS[label], NONE: _shown(label, figure(none))}
            for name, pairs in by_column.items():
                ratio = figure(pairs.beside) / figure(pairs.without)
                line[name] = _shown(label, figure(pairs.beside))
                line[f"{name} ÷ none"] = f"{ratio if label != 'call' else 1 / ratio:.3f}"
            lines.append(line)
        cpu = {name: f"{_job_cpu(pairs):.3f}" for name, pairs in by_column.items()}
        lines.append({"load": load, "figure": "job, CPU s a second", NONE: "", **cpu})
    return lines


LABELS = {"p50": "p50, ms", "p99": "p99, ms", "call": "calls a second", "cpu": "server, CPU ms a call"}


def _figures(load: str) -> dict[str, Figure]:
    """The figures of a load. Waiting callers have no latency of their own: their throughput counts."""
    times = {"call": seconds_a_call} if load == SATURATED else {"p50": p50, "p99": p99}
    return {**times, "cpu": cpu_ms}


def _shown(label: str, value: float) -> str:
    return f"{1 / value:.1f}" if label == "call" else f"{value:.2f}"


def _job_cpu(pairs: Pairs) -> float:
    return statistics.mean(phase.job_cpu for phase in pairs.beside)


def _ms(phases: Sequence[Phase]) -> list[float]:
    return [ms for phase in phases for ms in phase.seen.ms]


def _interval(pairs: Pairs, figure: Figure) -> tuple[float, float]:
    """The middle 95% of the ratio over resampled pairs."""
    draw, count = np.random.default_rng(0), len(pairs.beside)
    ratios = []
    for _ in range(DRAWS):
        some = draw.integers(0, count, count)
        ratios.append(figure([pairs.beside[i] for i in some]) / figure([pairs.without[i] for i in some]))
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)
