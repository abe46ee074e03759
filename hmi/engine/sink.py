"""Sinks: receivers of answers. The engine knows nothing else of its caller."""

from __future__ import annotations

import asyncio
from typing import Protocol

from hmi.engine.request import TextResult


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


class Waiting:
    """A sink whose caller awaits the answer."""

    def __init__(self) -> None:
        self._future: asyncio.Future[TextResult] = asyncio.get_running_loop().create_future()

    @property
    def wanted(self) -> bool:
        return not self._future.done()

    @property
    def answer(self) -> asyncio.Future[TextResult]:
        """The answer; awaiting it raises the error that `fail` was given."""
        return self._future

    def done(self, result: TextResult) -> None:
        if self.wanted:
            self._future.set_result(result)

    def fail(self, error: Exception) -> None:
        if self.wanted:
            # A future takes no StopIteration.
            self._future.set_exception(
                RuntimeError(repr(error)) if isinstance(error, StopIteration) else error
            )

    def drop(self) -> None:
        """Note that the caller no longer waits."""
        self._future.cancel()
