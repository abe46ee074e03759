"""Waiting lines for large calls: the engine works on one of each tenant at a time.

Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from hmi.engine.texts.request import TextRequest

LARGE_CHARACTERS = 1 << 16
"""A call above this size (`size_of`) is large: it takes seconds, or most of its text is cut off."""
TEXT_CHARACTERS = 64
"""The fixed cost of a text, in characters."""


def size_of(requests: Sequence[TextRequest]) -> int:
    """The cost of admitting a call, in characters."""
    return sum(TEXT_CHARACTERS + request.characters for request in requests)


class Lines:
    """One waiting line for each tenant.

    Concurrent large calls gain a tenant nothing, since its texts share one turn. Without a line they would be
    tokenised, refused because the queue is full, and sent again at once.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def through(self, requests: Sequence[TextRequest]) -> AsyncIterator[None]:
        """Wait for the call's turn. Small calls, and calls of several tenants, do not wait."""
        tenants = {request.model.tenant for request in requests}
        if len(tenants) > 1 or size_of(requests) <= LARGE_CHARACTERS:
            yield
            return
        lock = self._locks.setdefault(tenants.pop(), asyncio.Lock())
        async with lock:
            yield
