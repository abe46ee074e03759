"""The parts of the asynchronous client that differ from the synchronous one: connections, waits, streams,
several calls at a time.

`hmi.client.sync.io` has the same names for threads. All else is written once: see `scripts/sync_client.py`.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import suppress
from typing import TypeVar

import httpx

from hmi.client.config import Config
from hmi.client.wire import connection_settings

T = TypeVar("T")
R = TypeVar("R")


def connections(config: Config) -> httpx.AsyncClient:
    return httpx.AsyncClient(**connection_settings(config))


async def sleep(seconds: float) -> None:
    await asyncio.sleep(seconds)


async def stream(pieces: Iterator[bytes]) -> AsyncIterator[bytes]:
    """Yield pieces that are read, compressed or made of rows in a thread."""
    while (piece := await asyncio.to_thread(next, pieces, None)) is not None:
        yield piece


async def in_order(
    function: Callable[[T], Awaitable[R]], items: Iterator[T], at_once: int
) -> AsyncIterator[R]:
    """Yield function(item) for each item, in order, with at most `at_once` under way. Items are taken as
    places become free. An error cancels the others."""
    under_way: deque[asyncio.Task[R]] = deque()

    async def run(item: T) -> R:
        return await function(item)

    try:
        for item in items:
            under_way.append(asyncio.create_task(run(item)))
            if len(under_way) >= at_once:
                yield await under_way.popleft()
        while under_way:
            yield await under_way.popleft()
    finally:
        for task in under_way:
            task.cancel()
        for task in under_way:
            with suppress(asyncio.CancelledError, Exception):
                await task
