"""Sinks: where answers go. The engine knows nothing else of the caller."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable
from typing import Protocol

from hmi.engine.request import InferResult


class Sink(Protocol):
    """Takes one text's answer, or an error instead. Only the first counts. Used on the event loop's thread
    only."""

    @property
    def wanted(self) -> bool:
        """Whether anybody still waits: work for nobody is not begun."""
        ...

    def done(self, result: InferResult) -> None: ...

    def fail(self, error: Exception) -> None:
        """`error` is the sink's own from here on: no other sink gets the same object."""
        ...


class Waiting:
    """A sink for a caller that awaits the answer."""

    def __init__(self) -> None:
        self._future: asyncio.Future[InferResult] = asyncio.get_running_loop().create_future()

    @property
    def wanted(self) -> bool:
        return not self._future.done()

    @property
    def answer(self) -> Awaitable[InferResult]:
        """Raises what `fail` was given."""
        return self._future

    def done(self, result: InferResult) -> None:
        if self.wanted:
            self._future.set_result(result)

    def fail(self, error: Exception) -> None:
        if self.wanted:
            # A future takes no StopIteration.
            self._future.set_exception(
                RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            )

    def drop(self) -> None:
        """Nobody waits any more."""
        self._future.cancel()
