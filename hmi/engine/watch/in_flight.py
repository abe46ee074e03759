"""A counter of the work in flight that can be awaited to reach zero. Used on the event loop's thread."""

from __future__ import annotations

import asyncio
from types import TracebackType
from typing import Any


class InFlight:
    """Counts work: use `with in_flight:` around it, or `until_done` for a task."""

    def __init__(self) -> None:
        self.count = 0
        self._none = asyncio.Event()
        self._none.set()

    def __enter__(self) -> None:
        self.count += 1
        self._none.clear()

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.count -= 1
        if not self.count:
            self._none.set()

    def until_done(self, work: asyncio.Task[Any]) -> None:
        """Count a task until it is done, even if it is cancelled before its first step."""
        self.__enter__()
        work.add_done_callback(lambda _: self.__exit__(None, None, None))

    async def none(self) -> None:
        """Wait until nothing is in flight."""
        await self._none.wait()
