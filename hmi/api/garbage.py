"""Garbage collection in a server that must not stop for it.

A full collection visits every object of the process, those of all libraries, roots and tenants' modules
included, and stops all threads meanwhile: .1 s on a quiet machine. Each call under way makes some of the
objects that bring the next one nearer, so beside a flood there was one every few seconds.
"""

from __future__ import annotations

import asyncio
import gc
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from typing import Any

EVERY_S = 600.0
"""All objects are visited at the first idle moment after this many seconds."""
LATEST_S = 6000.0
"""They are visited after this many seconds even if there was no idle moment."""
LOOK_S = 1.0
"""Interval at which the server looks for an idle moment."""


@asynccontextmanager
async def short_collections(idle: Callable[[], bool]) -> AsyncIterator[None]:
    """Keep collections short in the block: each full one leaves out what has survived one before.

    Objects that are not in cycles are freed at once, as always. A cycle of objects that survived together is
    found when all objects are visited. `idle` says whether nobody would notice the time that takes.
    """
    gc.collect()
    gc.freeze()
    gc.callbacks.append(_leave_out_survivors)
    visits = asyncio.create_task(_visit_all(idle))
    try:
        yield
    finally:
        gc.callbacks.remove(_leave_out_survivors)
        visits.cancel()
        await asyncio.gather(visits, return_exceptions=True)
        gc.unfreeze()


def _leave_out_survivors(phase: str, about: Mapping[str, Any]) -> None:
    if phase == "stop" and about["generation"] == 2:
        gc.freeze()


async def _visit_all(idle: Callable[[], bool]) -> None:
    """Visit all objects from time to time, forever."""
    while True:
        begun = time.monotonic()
        await asyncio.sleep(EVERY_S)
        while not idle() and time.monotonic() - begun < LATEST_S:
            await asyncio.sleep(LOOK_S)
        gc.unfreeze()
        gc.collect()
