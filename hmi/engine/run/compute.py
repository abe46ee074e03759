"""The compute threads: one for each stream, and as many for express batches.

Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hmi.engine.watch.supervisor import Broken
from hmi.engine.watch.threads import in_thread

T = TypeVar("T")


class Compute:
    """Runs the work of batches on compute threads."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._pools = {express: self._pool(express) for express in (False, True)}
        """The two pools of threads. The key is true for the threads of express batches."""

    def run(self, work: Callable[[], T], *, express: bool = False) -> asyncio.Future[T]:
        """Run `work` on a thread and return a future of its result.

        express: use the threads of express batches. If the threads have ended, or one cannot start, raises
        Broken, and the next call has new threads. The other kind of threads stays.
        """
        threads = self._pools[express]
        try:
            return in_thread(threads, work)
        except RuntimeError as error:
            self._pools[express] = self._pool(express)
            threads.shutdown(wait=False, cancel_futures=True)  # `work` may wait there: it must not run later
            raise Broken(f"the compute threads have ended ({error})") from error

    async def close(self) -> None:
        """Wait for the work that has begun, and end the threads."""
        for threads in self._pools.values():
            await asyncio.to_thread(threads.shutdown)

    def _pool(self, express: bool) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._streams, f"hmi-{'express' if express else 'engine'}")
