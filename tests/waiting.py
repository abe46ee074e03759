"""Waiting for a condition, with a limit that a busy machine stays within."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable

LIMIT_S = 60.0


async def until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Let other tasks run until `condition()` is true; TimeoutError after `limit_s`."""
    async with asyncio.timeout(limit_s):
        while not condition():
            await asyncio.sleep(0.001)


def wait_until(condition: Callable[[], object], limit_s: float = LIMIT_S) -> None:
    """Sleep until `condition()` is true; TimeoutError after `limit_s`."""
    end = time.monotonic() + limit_s
    while not condition():
        if time.monotonic() > end:
            raise TimeoutError(f"the condition did not hold within {limit_s} s")
        time.sleep(0.01)
