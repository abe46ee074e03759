"""Threads that callers share in turns."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import Executor
from dataclasses import dataclass, field
from typing import TypeVar

from hmi.api.shares import Holder

T = TypeVar("T")


@dataclass
class Turn:
    """One holder's place in line."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class Line:
    """Each holder has one piece of work in the threads at a time: however much one brings, another that comes
    waits for one piece of each of those before it. Of one event loop."""

    def __init__(self, threads: Executor) -> None:
        self._threads = threads
        self._turns: dict[Holder, Turn] = {}

    async def work(self, holder: Holder, work: Callable[[], T]) -> T:
        """`work()` off the event loop, after what the holder asked for before."""
        turn = self._turns.setdefault(holder, Turn())
        turn.users += 1
        try:
            async with turn.lock:
                return await asyncio.get_running_loop().run_in_executor(self._threads, work)
        finally:
            turn.users -= 1
            if not turn.users:
                del self._turns[holder]
