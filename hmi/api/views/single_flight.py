"""A single-flight cache for answers that are the same for all callers."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class SingleFlight(Generic[T]):
    """The result of `work`, computed in a thread, once at a time, and reused for `for_s` seconds.

    For one event loop. An error is not kept: the callers that waited for the work get it, and
    the next caller tries again.
    """

    def __init__(self, work: Callable[[], T], for_s: float) -> None:
        self._work, self._for_s = work, for_s
        self._task: asyncio.Task[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        """The result. Raises what `work` raises."""
        made = self._task
        if made is None or (
            made.done() and (time.monotonic() >= self._until or made.exception() is not None)
        ):
            made = self._task = asyncio.create_task(self._make())
        # Shielded: a client that disconnects must not cancel the work that others wait for.
        return await asyncio.shield(made)

    async def _make(self) -> T:
        value = await asyncio.to_thread(self._work)
        self._until = time.monotonic() + self._for_s
        return value
