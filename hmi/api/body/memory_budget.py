"""JSON bodies: the memory reserved for each, and the one thread that decompresses and parses large ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hmi.api.body.fair_threads import FairThreads
from hmi.api.body.shares import Holder, Loan, Shares
from hmi.model.memory import give_back_memory

T = TypeVar("T")
RESTS = 3
"""After each piece of work the thread rests this many times as long, so it works a quarter of the time.
Parsing holds the interpreter's lock, so all other threads wait meanwhile. A quarter of the time is enough
to parse far more than the engine can compute."""
LEAST_S = 0.001
"""Work on the event loop that is shorter than this needs no rest. Only bodies sent in tiny chunks take
longer."""
TRIM_BYTES = 4 << 20
"""Freed memory is returned to the kernel after a request that held at least this much."""
TRIM_EVERY_S = 5.0
"""Freed memory is returned to the kernel at most once in this time."""


class Bodies:
    """Owns the memory budget for request bodies in flight: `total` bytes, which `Shares` divides."""

    def __init__(self, total: int) -> None:
        self.shares = Shares(total, "bytes of request bodies")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hmi-bodies")
        self._fair = FairThreads(self._thread)
        self._trimming = False
        self._rested = 0.0
        self._resting: dict[Holder, float] = {}

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def rest(self, holder: Holder, worked_s: float) -> None:
        """Pause this request after the event loop worked `worked_s` seconds for the holder.

        The pauses of all the holder's requests add up. Other holders run meanwhile.
        """
        if worked_s < LEAST_S:
            return
        now = time.monotonic()
        until = self._resting[holder] = max(self._resting.get(holder, 0.0), now) + RESTS * worked_s
        await asyncio.sleep(until - now)
        if self._resting.get(holder) == until:
            del self._resting[holder]

    async def work(self, holder: Holder, work: Callable[[], T]) -> T:
        """Run `work()` in the thread, after the holder's earlier work, and return its result."""
        return await self._fair.work(holder, partial(self._paced, work))

    def finished(self, loan: Loan) -> None:
        """Return freed memory to the kernel a little after a large body. Other bodies skip this, since it is
        slow."""
        if loan.amount >= TRIM_BYTES and not self._trimming:
            self._trimming = True
            asyncio.get_running_loop().call_later(TRIM_EVERY_S, self._trim)

    def _trim(self) -> None:
        self._trimming = False
        with suppress(RuntimeError):  # closed meanwhile
            self._thread.submit(give_back_memory)

    def _paced(self, work: Callable[[], T]) -> T:
        time.sleep(max(0.0, self._rested - time.monotonic()))
        began = time.thread_time()
        try:
            return work()
        finally:
            self._rested = time.monotonic() + RESTS * (time.thread_time() - began)
