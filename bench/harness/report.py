"""The result of a benchmark in the form that all share: rows of figures with goals, and the machine."""

from __future__ import annotations

import itertools
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch

from hmi.core import now
from hmi.errors import HmiError, InvalidInput
from hmi.execution.machine import fingerprint

Clock = Callable[[], float]
T = TypeVar("T")


@dataclass(frozen=True)
class Figure:
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


def known(wanted: Sequence[str], every: Iterable[str]) -> Sequence[str]:
    """Return the names that --only gives. Raises InvalidInput that names an unknown one and `every` name."""
    unknown = sorted({*wanted} - {*every})
    if unknown:
        raise InvalidInput(f"there is no {unknown[0]!r}: use some of {', '.join(every)}", field="only")
    return wanted


def in_turn(works: Mapping[str, Callable[[], float]], turns: int) -> dict[str, list[float]]:
    """Return what each work returned in each of `turns` turns, in which all run once.

    A turn before them warms up. A drawn order is followed by its reverse, so that a drift in the machine's
    speed affects all alike.
    """
    draw, names = np.random.default_rng(3), list(works)
    found: dict[str, list[float]] = {name: [] for name in names}
    for turn in range(turns + 1):
        names = [names[i] for i in draw.permutation(len(names))] if turn % 2 else names[::-1]
        for name in names:
            value = works[name]()
            if turn:
                found[name].append(value)
    return found


def median_ratio(found: Mapping[str, Sequence[float]], over: str, under: str) -> float:
    """Return the median over the turns of `in_turn` of one work's value divided by another's."""
    return statistics.median(a / b for a, b in zip(found[over], found[under], strict=True))


def paired_ratio(
    slow: Callable[[], object], fast: Callable[[], object], runs: int, clock: Clock = time.process_time
) -> float:
    """Return the median of (time of `slow` / time of `fast`) over pairs that run in turn.

    The default clock is this process's CPU time.
    """
    works = {"slow": partial(seconds, slow, clock), "fast": partial(seconds, fast, clock)}
    return median_ratio(in_turn(works, runs), "slow", "fast")


def rotating(work: Callable[[int], T], count: int, start: int = 0) -> Callable[[], T]:
    """Return a function that calls `work` with the next of `count` numbers each time.

    So no call finds its data in a cache that the previous call filled.
    """
    turn = itertools.count(start)
    return lambda: work(next(turn) % count)


def median_seconds(work: Callable[[], object], runs: int, clock: Clock = time.process_time) -> float:
    """Return the median seconds of `work`, by default of this process's CPU time, after a run that does not
    count."""
    return statistics.median(in_turn({"": partial(seconds, work, clock)}, runs)[""])


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


def result(bench: str, rows: list[Figure]) -> dict[str, Any]:
    """Return the JSON object that `bench` prints, its values with five digits."""
    return {
        "bench": bench,
        "machine": {
            "cpu": fingerprint()["processor"],
            "cores": os.cpu_count(),
            "load": round(os.getloadavg()[0], 2),
            "torch": torch.__version__,
            "capability": torch.backends.cpu.get_cpu_capability(),
        },
        "date": now(),
        "commit": _commit(),
        "rows": [
            {**asdict(r), "value": _short(r.value), "ok": r.ok, "stretch_ok": r.stretch_ok} for r in rows
        ],
    }


def _commit() -> str | None:
    """Return the commit of the clone that this code runs from, or None without git."""
    command = ["git", "-C", str(Path(__file__).parent), "rev-parse", "--short", "HEAD"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=5, check=False)
    except OSError:
        return None
    return done.stdout.strip() or None


def _short(value: float | None) -> float | None:
    """Return a fraction with five digits; a whole number is a count, and stays."""
    return value if value is None or value % 1 == 0 else float(f"{value:.5g}")
