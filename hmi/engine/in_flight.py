"""What is under way, counted once, with a way to wait for its end. Owned by the event loop's thread."""

from __future__ import annotations

import asyncio
from types import TracebackType


class InFlight:
    """`with in_flight:` around each piece of work."""

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

    async def none(self) -> None:
        """Wait until nothing is under way."""
        await self._none.wait()
