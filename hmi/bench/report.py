"""The result of a benchmark, in one form for all: rows with a goal, and the machine they were measured on."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from hmi.core import now

Clock = Callable[[], float]


@dataclass(frozen=True)
class Row:
    """One figure. `ok` None = it has no goal, or could not be measured, with `why`; `at_least` says which way
    the goal points. `stretch` is a second, harder goal."""

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
    """Median of (time of `slow` ÷ time of `fast`) over interleaved pairs, by default in this process's CPU
    time."""
    slow()
    fast()
    ratios = []
    for i in range(runs):
        # The order alternates, so that a drift of the machine falls on both.
        first, second = (slow, fast) if i % 2 else (fast, slow)
        a, b = seconds(first, clock), seconds(second, clock)
        ratios.append(a / b if i % 2 else b / a)
    return statistics.median(ratios)


def median_ms(work: Callable[[], object], runs: int) -> float:
    """Median CPU milliseconds of `work`."""
    work()
    return statistics.median(seconds(work) for _ in range(runs)) * 1e3


def seconds(work: Callable[[], object], clock: Clock = time.process_time) -> float:
    """How long `work` takes, by default in this process's CPU time."""
    begun = clock()
    work()
    return clock() - begun


def result(bench: str, rows: list[Row]) -> dict[str, Any]:
    """The JSON object that `hmi bench` prints and keeps."""
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
    """The commit of the checkout that this runs from; None for an installed package."""
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
