"""The one form of every benchmark's result (docs/architecture.md): rows with a goal, and what they were measured on."""

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


@dataclass(frozen=True)
class Row:
    """One figure. `ok` None = could not be measured, with `why`; `at_least` says which way the goal points."""

    id: str
    value: float | None
    unit: str
    goal: float | None = None
    at_least: bool = True
    runs: int = 0
    peer: str | None = None
    why: str | None = None

    @property
    def ok(self) -> bool | None:
        if self.value is None or self.goal is None:
            return None
        return self.value >= self.goal if self.at_least else self.value <= self.goal


def paired_ratio(slow: Callable[[], object], fast: Callable[[], object], runs: int) -> float:
    """Median of (time of `slow` ÷ time of `fast`) over interleaved pairs, in this process's CPU time."""
    slow()
    fast()
    ratios = []
    for i in range(runs):
        # The order alternates, so that a drift of the machine falls on both.
        first, second = (slow, fast) if i % 2 else (fast, slow)
        a, b = _cpu_seconds(first), _cpu_seconds(second)
        ratios.append(a / b if i % 2 else b / a)
    return statistics.median(ratios)


def median_ms(work: Callable[[], object], runs: int) -> float:
    """Median CPU milliseconds of `work`."""
    work()
    return statistics.median(_cpu_seconds(work) for _ in range(runs)) * 1e3


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
        "rows": [{**asdict(r), "ok": r.ok} for r in rows],
    }


def _cpu_seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


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
            ["git", "rev-parse", "--short", "HEAD"], cwd=here, capture_output=True, text=True, timeout=5, check=False
        )
    except OSError:
        return None
    return done.stdout.strip() or None
