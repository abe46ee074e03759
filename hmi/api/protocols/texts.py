"""The texts that one call lets a model write, side by side."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Hashable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field

from hmi.core import ModelId
from hmi.engine.writing.request import WriteRequest, WrittenPiece, WrittenPieces, WrittenText

Write = Callable[[WriteRequest], AbstractAsyncContextManager[WrittenPieces]]
"""Lets one text of a call be written in a block. See `Engine.admitted`."""
Indexed = tuple[int, WrittenPiece | WrittenText]
"""A piece of a text, or the whole text after its pieces, with the index of the text in its call."""


@dataclass(frozen=True)
class Cost:
    """What a text of a model is charged: a number of tokens."""

    model: ModelId
    tokens: int


@dataclass
class Texts:
    """The texts of a call while they are written."""

    wants: Sequence[WriteRequest]
    _events: asyncio.Queue[Indexed | Exception] = field(default_factory=asyncio.Queue)
    _begun: dict[int, WrittenPieces] = field(default_factory=dict)
    """The texts that have a place, by index."""

    done: dict[int, WrittenText] = field(default_factory=dict)
    """Those that are whole, by index."""

    @property
    def version(self) -> int:
        """The number of the model's version that writes. There must have been a piece."""
        return next(iter(self._begun.values())).number

    @property
    def costs(self) -> list[Cost]:
        """What each text that has begun is charged so far."""
        return [Cost(self.wants[index].model, pieces.tokens) for index, pieces in self._begun.items()]

    async def __aiter__(self) -> AsyncIterator[Indexed]:
        """The pieces of all texts as they come. Each text ends with its `WrittenText`. To be iterated once.

        Raises the HmiError of the first text that fails.
        """
        missing = len(self.wants)
        while missing:
            event = await self._events.get()
            if isinstance(event, Exception):
                raise event
            if isinstance(event[1], WrittenText):
                missing -= 1
                self.done[event[0]] = event[1]
            yield event

    async def whole(self) -> list[WrittenText]:
        """All texts, in the order of `wants`. Raises as iterating."""
        async for _ in self:
            pass
        return self.ordered

    @property
    def ordered(self) -> list[WrittenText]:
        """The texts that are whole, in the order of `wants`."""
        return [self.done[index] for index in sorted(self.done)]

    async def read(
        self, write: Write, want: WriteRequest, after: asyncio.Event | None, begun: asyncio.Event
    ) -> None:
        """Let one text be written once `after` is set, and set `begun` when there is something of it."""
        try:
            if after is not None:
                await after.wait()
            async with write(want) as pieces:
                self._begun[want.index] = pieces
                async for piece in pieces:
                    begun.set()
                    self._events.put_nowait((want.index, piece))
        except Exception as error:
            self._events.put_nowait(error)


@asynccontextmanager
async def written_together(write: Write, wants: Sequence[WriteRequest]) -> AsyncIterator[Texts]:
    """Context manager: texts are being written in the block. Leaving it early drops them.

    wants: one request for each text, in the order of their `index`. Of those with the same prompt, the first
    begins alone, and the others when it has read the prompt, so that they find the keys and values of its
    full pages. Texts of different prompts begin at once.
    """
    texts, read, tasks = Texts(wants), dict[Hashable, asyncio.Event](), list[asyncio.Task[None]]()
    for want in wants:
        prompt = want.prompt if isinstance(want.prompt, Hashable) else id(want.prompt)
        begun = asyncio.Event()
        tasks.append(asyncio.create_task(texts.read(write, want, read.get(prompt), begun)))
        read.setdefault(prompt, begun)
    try:
        yield texts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
