"""Futures, and work on threads that cannot break the event loop, whatever it raises."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from hmi.errors import wrap_errors

V = TypeVar("V")


def in_thread(threads: ThreadPoolExecutor, work: Callable[[], V]) -> asyncio.Future[V]:
    """Run `work` on one of `threads` and return a future of its result.

    Raises RuntimeError if the threads have been shut down.
    """
    return asyncio.get_running_loop().run_in_executor(threads, wrap_errors(work))


async def await_all(futures: Sequence[asyncio.Future[V]]) -> list[V]:
    """Await all, and return their results. Raises the first error. A single future costs no extra turn of
    the event loop."""
    try:
        return [await futures[0]] if len(futures) == 1 else await asyncio.gather(*futures)
    finally:
        # An error's traceback refers to this frame, and its future to the error. Without this `del` the cycle
        # would stay in memory until the garbage collector runs.
        del futures
