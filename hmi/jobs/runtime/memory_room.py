"""Whether a background job fits into the memory that is left.

A job's spec says how much it takes at its peak (`memory_bytes`); one that does not say may start. A process
that has started holds less at first, so what it has not taken yet counts as taken.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import suppress

from hmi.errors import NotFound
from hmi.model.memory import memory_left
from hmi.resident import resident
from hmi.sizes import size
from hmi.stores.registry import Registry

SPARE_BYTES = 256 << 20
"""So much is left to other processes, which may grow, too."""


class MemoryRoom:
    """The memory that the background jobs of one server share. Not thread-safe."""

    def __init__(self, registry: Registry, most: int, left: Callable[[], int] = memory_left) -> None:
        """most: the bytes that they may take together; 0: as many as are left. left: tells how many."""
        self._registry, self._most, self._left = registry, most, left

    def refuses(self, job: str, running: Mapping[str, int]) -> str | None:
        """Say why a job must wait, or None if it may start. running: background jobs' processes, by job."""
        need = self._need(job)
        if not need:
            return None
        taken = {other: (self._need(other), _held(process)) for other, process in running.items()}
        left = self._left() - SPARE_BYTES - sum(max(0, all_ - now) for all_, now in taken.values())
        if self._most:
            left = min(left, self._most - sum(all_ for all_, _ in taken.values()))
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
