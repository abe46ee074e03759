"""The sections and sizes of a run of `bench serve`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from bench.harness.home import Contents

IN_PROCESS = ("flat", "cold", "pieces", "memory", "isolation", "peers")
OVER_HTTP = ("http_calls", "http_flat")
"""Sections that run servers as processes of their own."""
SECTIONS = (*IN_PROCESS, *OVER_HTTP)
"""The sections. Each has a module of its name here.

A module has `steps(plan) -> int` and `measure(plan, home, report) -> Iterator[Row]`, which calls `report`
as each step begins.
"""
ON_REQUEST = ("peers",)
"""Sections that run only if they are named."""
Report = Callable[[str], None]
"""Gets a line as each step begins."""


@dataclass(frozen=True)
class ServePlan(Contents):
    """The sizes of a run. The defaults give figures; QUICK shows that the benchmark works."""

    tenants: int = 10_000
    """Tenants of the home. Counts of tenants above it are left out."""
    runs: int = 7
    """Interleaved repetitions of each ratio."""
    seconds: float = 2.0
    """Duration of each repetition under load."""
    callers: int = 64
    """Callers that each wait for one text at a time."""
    minutes: float = 30.0
    """Duration of the mixed load under which memory is watched."""
    cycles: int = 10_000
    """Loads and evictions of modules under which memory is watched."""
    answers: int = 1_000_000
    """Answers that the section `isolation` checks."""
    cold: int = 200
    """Cold tenants that are asked."""
    mixed: int = 300
    """Tenants of mixed kinds and ranks in the section `isolation`."""
    sections: tuple[str, ...] = tuple(name for name in SECTIONS if name not in ON_REQUEST)
    packages: Path | None = None
    """A folder with the packages of peers that run as processes of their own; None: this installation's."""
    quick: bool = False
    """Whether the run only shows that the benchmark works: no peers as processes of their own."""

    @property
    def counts(self) -> tuple[int, ...]:
        """The numbers of tenants that are compared."""
        return tuple(n for n in (1, 16, 100, 1_000, 10_000) if n <= self.tenants)


QUICK = ServePlan(
    tenants=16,
    runs=1,
    seconds=0.15,
    callers=8,
    minutes=0.01,
    cycles=40,
    answers=200,
    cold=3,
    mixed=6,
    quick=True,
    sections=tuple(name for name in IN_PROCESS if name not in ON_REQUEST),
)
