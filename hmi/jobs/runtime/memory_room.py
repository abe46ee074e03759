"""Decides which background jobs fit into the memory that is left.

A job's spec names the bytes of its peak (`memory_bytes`), and of its peak with larger teachers
(`larger_bytes`). A job without these entries may start. The room keeps a running job's whole peak for it,
since its process takes the memory little by little.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime

from hmi.config import Settings
from hmi.core import Progress
from hmi.errors import NotFound
from hmi.jobs.runtime.folders import JobFolder
from hmi.model.memory import memory_left, usable_memory
from hmi.resident import resident
from hmi.sizes import size
from hmi.stores.layout import Layout
from hmi.stores.records.registry import Registry

SPARE_BYTES = 256 << 20
"""So much is left to other processes, which may grow, too."""
LARGER_WAIT_S = 3600.0
"""A job waits at most so long for what its larger teachers take. Then it starts if it fits without them."""
TOLD_A_ROUND = 20
"""The most jobs whose progress is written in a round."""


def most_bytes(settings: Settings) -> int:
    """The memory that a background job can have at most on this machine, even if it runs alone."""
    machine = usable_memory() - SPARE_BYTES
    return min(machine, settings.background_bytes or machine)


def left_for_me(settings: Settings) -> int:
    """The memory that this process, a background job, may hold, by what is left now."""
    return min(most_bytes(settings), memory_left() - SPARE_BYTES + resident().all)


@dataclass(frozen=True)
class _Peak:
    own: int
    larger: int
    until: float
    """Unix time until which the job waits for `larger`."""

    def now(self) -> int:
        return max(self.own, self.larger) if time.time() < self.until else self.own


class MemoryRoom:
    """The memory that the background jobs of one server share. Not thread-safe."""

    def __init__(
        self, registry: Registry, layout: Layout, most: int, left: Callable[[], int] = memory_left
    ) -> None:
        """most: the bytes that they may take together; 0: as many as are left. left: tells how many."""
        self._registry, self._layout, self._most, self._left = registry, layout, most, left
        self._running: dict[str, tuple[int, int]] = {}  # job -> its peak and its process
        self._peaks: dict[str, _Peak] = {}  # of jobs that wait
        self._told: dict[str, None] = {}  # jobs that wait and were told so, the one told longest ago first

    def took(self, job: str, process: int) -> None:
        """Note that a job has started."""
        self._running[job] = self._peak(job).now(), process
        if job in self._told:
            del self._told[job]
            self._say(job, Progress())

    def ended(self, job: str) -> None:
        """Note that a job's process has ended. Does nothing for other jobs."""
        self._running.pop(job, None)

    def fitting(self, jobs: Sequence[str]) -> list[str]:
        """Return those of all jobs that wait which may start now. The progress of the others says so."""
        self._peaks = {job: self._peak(job) for job in jobs}
        needs = {job: peak.now() for job, peak in self._peaks.items()}
        room = self._room() if any(needs.values()) else 0
        found = [job for job, need in needs.items() if need <= room or not need]
        for job in self._to_tell([job for job, need in needs.items() if need and need > room]):
            why = f"it takes up to {size(needs[job])}, and {size(max(0, room))} are left for it"
            self._say(job, Progress(phase=f"waiting for memory: {why}"))
        return found

    def _room(self) -> int:
        running = self._running.values()
        left = (
            self._left()
            - SPARE_BYTES
            - sum(max(0, peak - _resident_bytes(process)) for peak, process in running)
        )
        return min(left, self._most - sum(peak for peak, _ in running)) if self._most else left

    def _to_tell(self, jobs: Sequence[str]) -> Iterator[str]:
        """Some of the jobs, in turns."""
        old, waiting = self._told, set(jobs)
        turns = [*(job for job in jobs if job not in old), *(job for job in old if job in waiting)]
        self._told = dict.fromkeys([*turns[TOLD_A_ROUND:], *turns[:TOLD_A_ROUND]])
        yield from turns[:TOLD_A_ROUND]

    def _say(self, job: str, said: Progress) -> None:
        folder = JobFolder(self._layout.jobs, job)
        if folder.read_progress() != said:
            with suppress(OSError):  # the job is gone, or the disk is full
                folder.write_progress(said)

    def _peak(self, job: str) -> _Peak:
        if (known := self._peaks.get(job)) is not None:
            return known
        with suppress(NotFound):
            record = self._registry.job(job)
            own, larger = (int(record.spec.get(name, 0)) for name in ("memory_bytes", "larger_bytes"))
            return _Peak(own, larger, datetime.fromisoformat(record.created).timestamp() + LARGER_WAIT_S)
        return _Peak(0, 0, 0.0)


def _resident_bytes(process: int) -> int:
    with suppress(OSError):  # it has ended
        return resident(process).all
    return 0
