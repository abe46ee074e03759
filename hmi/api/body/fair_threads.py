"""Threads that callers share fairly."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from hmi.api.body.shares import Holder

T = TypeVar("T")


@dataclass
class _Queue:
    """The pieces of work of one holder: the one that runs, and those that wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class FairThreads:
    """Gives each holder one piece of work in the threads at a time. For one event loop.

    However much work one holder brings, another waits for at most one piece of each holder before it.
    """

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._queues: dict[Holder, _Queue] = {}

    async def work(self, holder: Holder, work: Callable[[], T]) -> T:
        """Run `work()` in a thread, after the holder's earlier work, and return its result."""
        queue = self._queues.setdefault(holder, _Queue())
        queue.users += 1
        try:
            async with queue.lock:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            queue.users -= 1
            if not queue.users:
                del self._queues[holder]
