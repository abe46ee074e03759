"""Running long work on a thread, so that it does not block the event loop."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")
OFF_LOOP_BYTES = 1 << 18
"""Inputs of larger request bodies are converted in a thread."""
OFF_LOOP_VALUES = 10_000
"""Answers of more labels, tags and scores than this are rendered in a thread."""
OFF_LOOP_ROWS = 50
"""Longer lists of records, which are up to some kilobytes each, are rendered in a thread."""


async def off_loop(large: bool, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """`work(…)`, in a thread where it is `large`: a hop costs more than small work."""
    return await asyncio.to_thread(work, *args, **kwargs) if large else work(*args, **kwargs)
