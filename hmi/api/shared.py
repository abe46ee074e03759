"""Answers that are the same for all callers: computed once, off the event loop, and reused for a while."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Shared(Generic[T]):
    """The result of `work`, computed by one caller at a time and kept for `for_s` seconds. For one event
    loop.

    Work that failed is not kept: those who waited for it get its error, the next caller tries again.
    """

    def __init__(self, work: Callable[[], T], for_s: float) -> None:
        self._work, self._for_s = work, for_s
        self._made: asyncio.Task[T] | None = None
        self._until = 0.0

    async def get(self) -> T:
        made = self._made
        if made is None or (
            made.done() and (time.monotonic() >= self._until or made.exception() is not None)
        ):
            made = self._made = asyncio.create_task(self._make())
        # Shielded: a client that goes away must not take the work from the others, nor have it begun anew.
        return await asyncio.shield(made)

    async def _make(self) -> T:
        value = await asyncio.to_thread(self._work)
        self._until = time.monotonic() + self._for_s
        return value
