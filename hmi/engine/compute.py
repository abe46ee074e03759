"""The compute threads, one for each stream. Used on the event loop's thread only."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hmi.engine.interleaving import Host
from hmi.engine.supervisor import Broken
from hmi.engine.threads import contained, in_thread

T = TypeVar("T")


class Compute:
    """Runs the work of batches on compute threads."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._threads = self._new()

    def run(self, work: Callable[[], T], within: Host | None = None) -> asyncio.Future[T]:
        """Run `work` on a thread and return a future of its result.

        within: the host between whose layers the work may run. If the threads have ended, starts new ones and
        raises Broken.
        """
        try:
            if within is None:
                return in_thread(self._threads, work)
            return within.run_between(contained(work), self._threads)
        except RuntimeError as error:
            self._threads = self._new()
            raise Broken(f"the compute threads have ended ({error})") from error

    async def close(self) -> None:
        """Wait for the work that has begun, and end the threads."""
        await asyncio.to_thread(self._threads.shutdown)

    def _new(self) -> ThreadPoolExecutor:
        return ThreadPoolExecutor(self._streams, thread_name_prefix="hmi-engine")
