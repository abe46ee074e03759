"""Sinks: receivers of answers. The engine knows nothing else of its caller."""

from __future__ import annotations

import asyncio
from typing import Protocol

from hmi.engine.texts.request import TextResult


class Sink(Protocol):
    """Receives one text's answer or error. Only the first call of `done` or `fail` counts.

    Used on the event loop's thread only.
    """

    @property
    def wanted(self) -> bool:
        """Whether the caller still waits. The engine begins no work for a sink that is not wanted."""
        ...

    def done(self, result: TextResult) -> None: ...

    def fail(self, error: Exception) -> None:
        """Take an error. The sink owns the object; no other sink gets the same one."""
        ...


class UnreadSink:
    """A sink of texts whose answers are read from the run itself."""

    wanted = True

    def done(self, result: TextResult) -> None: ...

    def fail(self, error: Exception) -> None: ...


class CallSink:
    """The answers of one call, which its caller awaits: a sink for each text."""

    def __init__(self, texts: int) -> None:
        self._ended: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._error: Exception | None = None
        self._found: list[TextResult | None] = [None] * texts
        self._left = texts
        if not texts:
            self._ended.set_result(None)

    @property
    def sinks(self) -> list[TextSink]:
        """A new sink for each text. They are not kept here: a cycle would wait for the garbage collector."""
        return [TextSink(self, i) for i in range(len(self._found))]

    @property
    def wanted(self) -> bool:
        """True while the caller waits: until the last text is answered, or one has failed."""
        return not self._ended.done()

    async def all(self) -> list[TextResult]:
        """Return the answers in the order of the texts, or raise the first error that a text was given."""
        await self._ended
        if self._error is not None:
            try:
                raise self._error
            finally:
                # The error's traceback refers to this frame, so to `self`. If this kept the error, as a
                # future does, the cycle would stay in memory until the garbage collector runs.
                self._error = None
        return [found for found in self._found if found is not None]

    def done(self, index: int, result: TextResult) -> None:
        self._found[index] = result
        self._left -= 1
        if not self._left:
            self._ended.set_result(None)

    def fail(self, error: Exception) -> None:
        # A coroutine cannot raise StopIteration.
        self._error = RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
        self._ended.set_result(None)

    def has(self, index: int) -> bool:
        """Return whether this text is answered."""
        return self._found[index] is not None

    def drop(self) -> None:
        """Note that the caller no longer waits."""
        self._ended.cancel()


class TextSink:
    """The sink of one text of a call."""

    __slots__ = ("_answers", "_index")

    def __init__(self, answers: CallSink, index: int) -> None:
        self._answers, self._index = answers, index

    @property
    def wanted(self) -> bool:
        return self._answers.wanted and not self._answers.has(self._index)

    def done(self, result: TextResult) -> None:
        if self.wanted:
            self._answers.done(self._index, result)

    def fail(self, error: Exception) -> None:
        if self.wanted:
            self._answers.fail(error)
