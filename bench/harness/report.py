"""The result of a benchmark in the form that all share: rows of figures with goals, and the machine."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hmi.core import now
from hmi.errors import HmiError

Clock = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One figure of a benchmark.

    `ok` is None if the figure has no goal, or could not be measured; `why` then gives the reason. `at_least`
    says whether the goal is a lower bound. `stretch` is a second, harder goal.
    """

    id: str
    value: float | None
    unit: str
    goal: float | None = None
    at_least: bool = True
    runs: int = 0
    peer: str | None = None
    why: str | None = None
    stretch: float | None = None

    @property
    def ok(self) -> bool | None:
        return self._reached(self.goal)

    @property
    def stretch_ok(self) -> bool | None:
        return self._reached(self.stretch)

    def _reached(self, goal: float | None) -> bool | None:
        if self.value is None or goal is None:
            return None
        return self.value >= goal if self.at_least else self.value <= goal


def paired_ratio(
    slow: Callable[[], object], fast: Callable[[], object], runs: int, clock: Clock = time.process_time
) -> float:
    """Return the median of (time of `slow` / time of `fast`) over interleaved pairs.

    The default clock is this process's CPU time.
    """
    slow()
    fast()
    ratios = []
    for i in range(runs):
        # The order alternates, so that a drift in the machine's speed affects both equally.
        first, second = (slow, fast) if i % 2 else (fast, slow)
        a, b = seconds(first, clock), seconds(second, clock)
        ratios.append(a / b if i % 2 else b / a)
    return statistics.median(ratios)


def median_ms(work: Callable[[], object], runs: int) -> float:
    """Return the median CPU milliseconds of `work`."""
    work()
    return statistics.median(seconds(work) for _ in range(runs)) * 1e3


def seconds(work: Callable[[], object], clock: Clock = time.process_time) -> float:
    """Return the seconds that `work` takes, by default of this process's CPU time."""
    begun = clock()
    work()
    return clock() - begun


def quantile(ms: Sequence[float], share: float) -> float:
    """Return the value below or at which `share` of `ms` lie. Raises HmiError for none."""
    if not ms:
        raise HmiError("no request was answered within the time that the benchmark waits")
    return sorted(ms)[min(len(ms) - 1, int(share * len(ms)))]


def result(bench: str, rows: list[Row]) -> dict[str, Any]:
    """Return the JSON object that `bench` prints."""
    return {
        "bench": bench,
        "machine": {
            "cpu": _cpu_name(),
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "date": now(),
        "commit": _commit(),
        "rows": [{**asdict(r), "ok": r.ok, "stretch_ok": r.stretch_ok} for r in rows],
    }


def _cpu_name() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _commit() -> str | None:
    """Return the commit of the checkout that this code runs from, or None for an installed package."""
    here = Path(__file__).resolve().parent
    try:
        done = subprocess.run(
            ["git", "rev-parse", "--short", "HEAD"],
            cwd=here,
            capture_output=True,
            text=True,
            timeout=5,
            check=False,
        )
    except OSError:
        return None
    return done.stdout.strip() or None
