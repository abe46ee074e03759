"""JSON bodies: the memory reserved for each, and the one thread that expands and parses large ones."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from typing import TypeVar

from hmi.api.line import Line
from hmi.api.shares import Holder, Loan, Shares
from hmi.model.memory import give_back_memory

T = TypeVar("T")
RESTS = 3
"""The thread works for a quarter of the time: after each piece of work it rests three times as long. Parsing
holds the interpreter's lock, so all others wait meanwhile. A quarter still parses far more than the engine
can compute."""
LEAST_S = 0.001
"""Less work of the event loop at a time needs no rest. Bodies in chunks of one byte take many times as
long."""
TRIM_BYTES = 4 << 20
"""After a request that held more than this, memory is given back to the kernel."""
TRIM_EVERY_S = 5.0


class Bodies:
    """Owns the budget for request bodies in flight. `total` bytes, as `Shares` divides them."""

    def __init__(self, total: int) -> None:
        self.shares = Shares(total, "bytes of request bodies")
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="hmi-bodies")
        self._line = Line(self._thread)
        self._trimming = False
        self._rested = 0.0
        self._resting: dict[Holder, float] = {}

    def close(self) -> None:
        self._thread.shutdown(wait=False, cancel_futures=True)

    async def rest(self, holder: Holder, worked_s: float) -> None:
        """Let others have the event loop after it worked so long for the holder, whose rests add up."""
        now = time.monotonic()
        until = max(self._resting.get(holder, 0.0), now) + RESTS * worked_s
        if worked_s < LEAST_S:
            until = now
        else:
            self._resting[holder] = until
        await asyncio.sleep(until - now)
        if self._resting.get(holder) == until:
            del self._resting[holder]

    async def work(self, holder: Holder, work: Callable[[], T]) -> T:
        """`work()` off the event loop, after what the holder asked for before."""
        return await self._line.work(holder, partial(self._paced, work))

    def finished(self, loan: Loan) -> None:
        """Give freed memory back to the kernel after a large body: now and then, since it takes a while."""
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
