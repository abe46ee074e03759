"""Garbage collection in a server that must not stop for it.

A full collection visits every object of the process, those of all libraries, roots and tenants' modules
included, and stops all threads meanwhile: .1 s on a quiet machine. Each call under way makes some of the
objects that bring the next one nearer, so beside a flood there was one every few seconds.
"""

from __future__ import annotations

import asyncio
import atexit
import gc
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

EVERY_S = 600.0
"""All objects are visited at the first idle moment after this many seconds."""
LOOK_S = 1.0
"""Interval at which the server looks for an idle moment."""
GROWTH, SPARE = 1.25, 50_000
"""All objects are visited at once when more than GROWTH times the last visit's survivors, and SPARE more, are
left out."""


@asynccontextmanager
async def short_collections(idle: Callable[[], bool]) -> AsyncIterator[None]:
    """Keep collections short in the block: each full one leaves out what has survived one before.

    Objects that are not in cycles are freed at once, as always. A cycle of objects that survived together is
    found when all objects are visited: when the server is idle, or earlier if many objects are left out.
    `idle` says whether nobody would notice the time that takes.
    """
    survivors = _Survivors()
    gc.callbacks.append(survivors.leave_out)
    survivors.visit_all()
    visits = asyncio.create_task(_visit_all(survivors, idle))
    try:
        yield
    finally:
        gc.callbacks.remove(survivors.leave_out)
        visits.cancel()
        await asyncio.gather(visits, return_exceptions=True)
        gc.unfreeze()


def end_without_collections() -> None:
    """Let the process end at once: the interpreter's last collections would visit every object of torch and
    of numba for seconds, only to free memory that the system takes back anyway."""
    atexit.register(gc.freeze)


class _Survivors:
    """The objects that full collections leave out."""

    def __init__(self) -> None:
        self._whole = True
        """True if the next full collection visits all objects."""
        self._count = 0
        """The number of objects left out, or more: those freed since they were last counted are included."""
        self._most = 0.0

    def visit_all(self) -> None:
        self._take_back()
        gc.collect()

    def leave_out(self, phase: str, about: Mapping[str, Any]) -> None:
        """Leave out what has survived this collection, unless so much is left out that the next one is to
        visit all objects. A member of `gc.callbacks`."""
        if phase != "stop" or about["generation"] != 2:
            return
        self._count += len(gc.get_objects(generation=2))
        gc.freeze()
        if self._whole:
            self._count = gc.get_freeze_count()
            self._whole, self._most = False, GROWTH * self._count + SPARE
        elif self._count > self._most:
            self._count = gc.get_freeze_count()  # a walk through them all, so it is not done each time
            if self._count > self._most:
                self._take_back()  # a callback cannot begin a collection; the next one comes soon

    def _take_back(self) -> None:
        gc.unfreeze()
        self._whole = True


async def _visit_all(survivors: _Survivors, idle: Callable[[], bool]) -> None:
    """Visit all objects at an idle moment from time to time, forever."""
    while True:
        await asyncio.sleep(EVERY_S)
        while not idle():
            await asyncio.sleep(LOOK_S)
        survivors.visit_all()
