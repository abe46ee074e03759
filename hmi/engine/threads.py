"""Work on threads, of which nothing can end more than itself."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

V = TypeVar("V")


def in_thread(threads: ThreadPoolExecutor, work: Callable[[], V]) -> asyncio.Future[V]:
    """The result of `work`, which runs on one of `threads`. Raises RuntimeError where these were shut
    down."""
    return asyncio.get_running_loop().run_in_executor(threads, contained(work))


def contained(work: Callable[[], V]) -> Callable[[], V]:
    """The same work, which raises nothing but errors that an event loop survives.

    A SystemExit would end the event loop, a StopIteration would leave its future unanswered for ever, and a
    panic of a library in Rust is no Exception, so that nobody would handle it.
    """

    def run() -> V:
        try:
            return work()
        except BaseException as error:
            if isinstance(error, Exception) and not isinstance(error, StopIteration):
                raise
            raise RuntimeError(
                f"the work of a thread was ended by {type(error).__name__}: {error}"
            ) from error

    return run
