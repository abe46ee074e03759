"""A ledger of the changes that a server has acknowledged, to be held against the server after it died.

Each object has one writer, so at most one change of an object is under way when the server dies. Such a
change may or may not have happened. An acknowledged one must have happened, and a refused one must not.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

ABSENT = "absent"
"""The state of an object that does not exist."""


class Refused(Exception):
    """The server answered that it will not do it, since it stops."""


@dataclass
class Ledger:
    """The states that objects must have, and the changes whose answers never came."""

    known: dict[str, Any] = field(default_factory=dict)
    """The last acknowledged state of each object."""
    open: dict[str, Any] = field(default_factory=dict)
    """The state that an unanswered change would have led to."""
    acknowledged: int = 0

    @asynccontextmanager
    async def changing(self, name: str, to: Any) -> AsyncIterator[None]:
        """Context manager around a request that brings the object `name` to the state `to`.

        If the block ends without an error, the change is acknowledged.
        """
        self.open[name] = to
        try:
            yield
        except Refused:
            del self.open[name]
            raise
        self.known[name] = to
        del self.open[name]
        self.acknowledged += 1

    def settle(self, seen: Callable[[str], Any]) -> list[str]:
        """Compare every object with the state that `seen` returns. Returns the objects that differ.

        An unanswered change is settled either way: the ledger goes on from the state that is there.
        """
        wrong = []
        for name, want in {**dict.fromkeys(self.open, ABSENT), **self.known}.items():
            got = seen(name)
            if got != want and (name not in self.open or got != self.open[name]):
                wrong.append(f"{name}: {got!r} instead of {want!r}, open: {self.open.get(name)!r}")
            self.known[name] = got
        self.open.clear()
        return wrong
