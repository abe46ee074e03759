"""Lines of large calls: of each tenant one is in the engine at a time. Owned by the event loop's thread."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from weakref import WeakValueDictionary

from hmi.engine.request import InferRequest

LARGE_CHARACTERS = 1 << 16
"""More work than this, by `size_of`, is a large call: it takes some seconds, or nearly all of it is cut
off."""
TEXT_CHARACTERS = 64
"""What a text costs besides its characters."""


def size_of(requests: Sequence[InferRequest]) -> int:
    """A call's work before anything computes, in characters."""
    return sum(
        TEXT_CHARACTERS + (len(r.text) if isinstance(r.text, str) else sum(map(len, r.text)))
        for r in requests
    )


class Lines:
    """One line for each tenant. A second large call at once would bring it nothing, since a tenant's texts
    share one turn. The call would be tokenised, refused because the queue is full, and sent again at once.
    """

    def __init__(self) -> None:
        self._locks: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()

    @asynccontextmanager
    async def through(self, requests: Sequence[InferRequest]) -> AsyncIterator[None]:
        """Once it is the call's turn. A small call, and one of several tenants, has no line."""
        tenants = {request.model.tenant for request in requests}
        if len(tenants) > 1 or size_of(requests) <= LARGE_CHARACTERS:
            yield
            return
        lock = self._locks.setdefault(tenants.pop(), asyncio.Lock())
        async with lock:
            yield
