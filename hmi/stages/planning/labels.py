"""The exact program over groups in the order of their deadlines: which run, and under which settings.

A label is the time at which a choice for the first groups ends, and its value. Of two labels of the same
groups, one that ends no later and is worth no less is at least as good however the others are chosen, so only
the non-dominated ones are kept. If all groups are ready, running the chosen ones in the order of their
deadlines meets every deadline that any order meets. So the best label at the end is optimal. OTAS's
Algorithm 2 keeps one state for each (group, setting) instead, and loses the optimum.
"""

from __future__ import annotations

import math
from bisect import insort
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from hmi_kernels.later import Later
from numpy.typing import NDArray

WORK = 6144
"""The number of groups times the number of labels that a front may have. So a plan's time is bounded."""
SEVERAL_WORK = 640
"""The same for several streams, where labels are compared in pairs."""
LEAST, MOST = 16, 512
"""The bounds of the number of labels."""

_kernels = Later("planning.labels")
Floats = NDArray[np.float64]


@dataclass(frozen=True)
class Option:
    """One setting for a group."""

    seconds: float
    value: float
    """-inf: not allowed."""
    margin: float = 0.0
    """Seconds before the deadline at which the group has to be expected to end."""
    memory: float = 0.0
    """Bytes that it needs."""


@dataclass(frozen=True)
class SchedulingJob:
    """One group. It is feasible under a setting if it is expected to end before its deadline, strictly."""

    deadline: float
    options: Sequence[Option]


@dataclass(frozen=True)
class Choice:
    """The choice of the program."""

    settings: tuple[int | None, ...]
    """[jobs], in their order: the index of each one's option; None: it is dropped."""
    value: float
    lost: float = 0.0
    """A bound of the value that was lost to a limit of labels. 0: the choice is optimal."""


def in_order(jobs: Sequence[SchedulingJob]) -> list[int]:
    """Return the indexes of the jobs in the order of their deadlines."""
    return sorted(range(len(jobs)), key=lambda i: jobs[i].deadline)


def allowed(option: Option, memory: float = math.inf) -> bool:
    """Return whether an option may be chosen: it fits in memory, and is worth something."""
    return option.memory <= memory and option.value > 0.0


@dataclass(frozen=True)
class _Label:
    clocks: tuple[float, ...]
    """The time at which each stream is free, ascending."""
    value: float
    parent: _Label | None = None
    option: int | None = None


def exact(start: Sequence[float], jobs: Sequence[SchedulingJob], memory: float = math.inf) -> Choice:
    """Return an optimal choice in plain Python: the reference for `best`.

    start: the time at which each stream is free. memory: options that need more are not offered. A job is put
    on each stream in turn, so with several streams the work is exponential in the worst case.
    """
    front = [_Label(tuple(sorted(start)), 0.0)]
    order = in_order(jobs)
    for j in order:
        found = [_Label(label.clocks, label.value, label) for label in front]
        for s, option in enumerate(jobs[j].options):
            if not allowed(option, memory):
                continue
            for label in front:
                for stream, clock in enumerate(label.clocks):
                    if clock + option.seconds + option.margin < jobs[j].deadline:
                        clocks = [*label.clocks[:stream], *label.clocks[stream + 1 :]]
                        insort(clocks, clock + option.seconds)
                        found.append(_Label(tuple(clocks), label.value + option.value, label, s))
        front = _non_dominated(found)
    last = max(front, key=lambda label: label.value)
    at: _Label | None = last
    chosen: list[int | None] = [None] * len(jobs)
    for j in reversed(order):
        assert at is not None
        chosen[j], at = at.option, at.parent
    return Choice(tuple(chosen), last.value)


def _non_dominated(labels: Sequence[_Label]) -> list[_Label]:
    """Keep the labels that no other label matches or beats in value and in all clocks."""
    kept: list[_Label] = []
    for label in sorted(labels, key=lambda label: (-label.value, label.clocks)):
        if not any(all(a <= b for a, b in zip(k.clocks, label.clocks, strict=True)) for k in kept):
            kept.append(label)
    return kept


def best(
    start: Sequence[float], jobs: Sequence[SchedulingJob], memory: float = math.inf, limit: int = 0
) -> Choice:
    """Return an optimal choice, or one within `Choice.lost` of the optimum if labels exceed the limit.

    limit: the labels that a front may have, 3 at least; 0: as many as WORK or SEVERAL_WORK allow. Beyond it,
    the label that is free soonest is kept in each bucket of values. Other arguments: as of `exact`.
    """
    order = in_order(jobs)
    width = max((len(job.options) for job in jobs), default=0)
    seconds, values = np.zeros((len(jobs), width)), np.full((len(jobs), width), -math.inf)
    latest = np.full((len(jobs), width), -math.inf)
    for row, j in enumerate(order):
        for s, option in enumerate(jobs[j].options):
            seconds[row, s], latest[row, s] = option.seconds, jobs[j].deadline - option.margin
            values[row, s] = option.value if allowed(option, memory) else -math.inf
    found, value, lost = chosen_of(start, seconds, values, latest, limit)
    settings: list[int | None] = [None] * len(jobs)
    for row, j in enumerate(order):
        settings[j] = None if found[row] < 0 else found[row]
    return Choice(tuple(settings), value, lost)


def chosen_of(
    start: Sequence[float], seconds: Floats, values: Floats, latest: Floats, limit: int = 0
) -> tuple[list[int], float, float]:
    """Choose for groups that are given as arrays, in the order in which they run.

    seconds, values, latest float64 [groups, settings]: what a setting takes and is worth (-inf: not allowed),
    and the time before which it has to end. start, limit: as of `best`. Returns the setting of each group
    (-1: dropped), the value, and a bound of what a limit of labels lost.
    """
    chosen = np.empty(len(seconds), np.int64)
    if not len(seconds):
        return [], 0.0, 0.0
    work = WORK if len(start) == 1 else SEVERAL_WORK
    limit = limit or max(LEAST, min(MOST, work // len(seconds)))
    if len(start) == 1:
        value, lost = _kernels.one_stream(float(start[0]), seconds, values, latest, limit, chosen)
    else:
        clocks = np.sort(np.asarray(start, np.float64))
        value, lost = _kernels.streams(clocks, seconds, values, latest, limit, chosen)
    return chosen.tolist(), value, lost
