"""A pipeline of reading and computing as discrete events: one thread reads, another computes.

Layers are read in order, each as one job, and a layer is computed once it has been read and the layer below
has been computed.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Trace:
    """The course of one run, in seconds since its start."""

    read: tuple[tuple[float, float], ...]
    """[layers]: when the reading of each layer began and ended."""
    computed: tuple[tuple[float, float], ...]
    """[layers]: when the computation of each layer began and ended."""

    @property
    def stalls(self) -> tuple[float, ...]:
        """[layers]: the seconds that the computing thread waited before each layer."""
        before = (0.0, *(end for _, end in self.computed))
        return tuple(begin - end for end, (begin, _) in zip(before, self.computed, strict=False))

    @property
    def total_s(self) -> float:
        return self.computed[-1][1]


def simulate(read_s: Sequence[float], compute_s: Sequence[float], ahead: int | None = None) -> Trace:
    """Run a pipeline. read_s, compute_s: [layers], the seconds that each layer takes.

    ahead: the number of layers that may be read, or in reading, and not computed yet; None: any number.
    """
    layers = len(read_s)
    reads: list[tuple[float, float]] = []
    computes: list[tuple[float, float]] = []
    events: list[tuple[float, int, str]] = []
    reading = computing = False
    now, read, computed = 0.0, 0, 0
    while computed < layers:
        started = len(reads)
        if not reading and started < layers and (ahead is None or started - computed < ahead):
            reads.append((now, now + read_s[started]))
            heapq.heappush(events, (now + read_s[started], started, "read"))
            reading = True
        if not computing and len(computes) < read:
            layer = len(computes)
            computes.append((now, now + compute_s[layer]))
            heapq.heappush(events, (now + compute_s[layer], layer, "computed"))
            computing = True
        now, _, kind = heapq.heappop(events)
        if kind == "read":
            read, reading = read + 1, False
        else:
            computed, computing = computed + 1, False
    return Trace(tuple(reads), tuple(computes))
