"""Decides whether a background job fits into the memory that is left.

A job's spec names the bytes of its peak (`memory_bytes`). A job without this entry may start. The room keeps
a running job's whole peak for it, since its process takes the memory little by little.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress

from hmi.core import Progress
from hmi.errors import NotFound
from hmi.jobs.runtime.folders import JobFolder
from hmi.model.memory import memory_left
from hmi.resident import resident
from hmi.sizes import size
from hmi.stores.layout import Layout
from hmi.stores.registry import Registry

SPARE_BYTES = 256 << 20
"""So much is left to other processes, which may grow, too."""
RETRY_S = 15.0
"""A job that did not fit is asked again after this time."""
A_SECOND = 40
"""The most jobs that are asked in a second. Each costs a look at its record."""


class MemoryRoom:
    """The memory that the background jobs of one server share. Not thread-safe."""

    def __init__(
        self, registry: Registry, layout: Layout, most: int, left: Callable[[], int] = memory_left
    ) -> None:
        """most: the bytes that they may take together; 0: as many as are left. left: tells how many."""
        self._registry, self._layout, self._most, self._left = registry, layout, most, left
        self._running: dict[str, int] = {}  # job -> its process
        self._again: dict[str, float] = {}  # job that did not fit -> when it is asked again
        self._second, self._asked = 0.0, 0

    def took(self, job: str, process: int) -> None:
        """Note that a job has started."""
        self._running[job] = process

    def ended(self, job: str) -> None:
        """Note that a job's process has ended. Does nothing for other jobs."""
        self._running.pop(job, None)

    def lets(self, job: str) -> bool:
        """Return whether a job may start. If it does not fit, its progress says so."""
        at = time.monotonic()
        if at - self._second >= 1:
            self._second, self._asked = at, 0
            self._again = {other: when for other, when in self._again.items() if when > at}
        if job in self._again or self._asked == A_SECOND:
            return False
        self._asked += 1
        why = self.refuses(job)
        if why is not None:
            self._again[job] = at + RETRY_S
            folder, said = JobFolder(self._layout.jobs, job), Progress(phase=why)
            if folder.read_progress() != said:
                with suppress(OSError):  # the job is gone, or the disk is full
                    folder.write_progress(said)
        return why is None

    def refuses(self, job: str) -> str | None:
        """Say why a job must wait, or None if it may start."""
        need = self._need(job)
        if not need:
            return None
        taken = [(self._need(other), _held(process)) for other, process in self._running.items()]
        left = self._left() - SPARE_BYTES - sum(max(0, most - now) for most, now in taken)
        if self._most:
            left = min(left, self._most - sum(most for most, _ in taken))
        if need <= left:
            return None
        return f"waiting for memory: it takes up to {size(need)}, and {size(max(0, left))} are left for it"

    def _need(self, job: str) -> int:
        with suppress(NotFound):
            return int(self._registry.job(job).spec.get("memory_bytes", 0))
        return 0


def _held(process: int) -> int:
    with suppress(OSError):  # it has ended
        return resident(process).all
    return 0
