"""What a reader gets of one answer: its pieces as they come, then its end."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from dataclasses import dataclass, field

from hmi.core import ModelVersion
from hmi.engine.writing.request import WriteRequest, WrittenPiece, WrittenText
from hmi.errors import CutShort, DeadlineExceeded

Event = WrittenPiece | WrittenText | Exception


@dataclass(eq=False)
class Pieces:
    """The events of an answer. It implements `WrittenPieces` but for `tokens`. Used on the event loop."""

    request: WriteRequest
    version: ModelVersion
    outcome: WrittenText | Exception | None = field(default=None, kw_only=True)
    """Its last event, once that was sent."""
    release: Callable[[], object] = field(default=lambda: None, kw_only=True)
    """Called when its last event is sent: from then on it needs only its reader."""
    _events: asyncio.Queue[Event] = field(default_factory=asyncio.Queue, init=False)

    @property
    def number(self) -> int:
        """See `WrittenPieces`."""
        return self.version.version

    @property
    def at_fault(self) -> bool:
        """True if it failed by a fault that is not its caller's."""
        failed = isinstance(self.outcome, Exception)
        return failed and not isinstance(self.outcome, DeadlineExceeded | CutShort)

    def send(self, event: Event) -> None:
        """Give an event to the reader. What follows the last one is dropped."""
        if self.outcome is None:
            self._events.put_nowait(event)
            if not isinstance(event, WrittenPiece):
                self.outcome = event
                self.release()

    async def __aiter__(self) -> AsyncIterator[WrittenPiece | WrittenText]:
        """See `WrittenPieces`."""
        while True:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            yield event
            if isinstance(event, WrittenText):
                return
