"""The compute threads: one for each stream, and as many for express batches.

Used on the event loop's thread only.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hmi.engine.supervisor import Broken
from hmi.engine.threads import in_thread

T = TypeVar("T")


class Compute:
    """Runs the work of batches on compute threads."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._begin()

    def run(self, work: Callable[[], T], *, express: bool = False) -> asyncio.Future[T]:
        """Run `work` on a thread and return a future of its result.

        within: the host between whose layers the work may run. If the threads have ended, starts new ones and
        raises Broken.
        """
        try:
            return in_thread(self._express if express else self._threads, work)
        except RuntimeError as error:
            self._begin()
            raise Broken(f"the compute threads have ended ({error})") from error

    async def close(self) -> None:
        """Wait for the work that has begun, and end the threads."""
        for threads in (self._threads, self._express):
            await asyncio.to_thread(threads.shutdown)

    def _begin(self) -> None:
        self._threads = ThreadPoolExecutor(self._streams, thread_name_prefix="hmi-engine")
        self._express = ThreadPoolExecutor(self._streams, thread_name_prefix="hmi-express")
