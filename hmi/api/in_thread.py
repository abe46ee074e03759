"""Runs long work in a thread, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
OFF_LOOP_BYTES = 1 << 18
"""The inputs of a request body larger than this are checked in a thread."""
OFF_LOOP_VALUES = 10_000
"""An answer with more labels, tags and numbers than this is encoded in a thread."""
OFF_LOOP_ROWS = 50
"""A list of more records than this is encoded in a thread. A record has up to a few kilobytes."""


async def off_loop(large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Run `work(…)`, in a thread if it is `large`. Small work takes less time than a change of threads."""
    return await asyncio.to_thread(work, *args, **kwargs) if large else work(*args, **kwargs)
