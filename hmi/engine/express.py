"""Express batches: a short batch runs on a thread of its own beside another tenant's longer one, its host.

A batch that runs cannot be divided. Without express batches, other tenants' texts would wait for all of it.
Used on the event loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager


class Host:
    """A running batch beside which others may run.

    All of them together take at most `room_s` predicted seconds: they delay the host by no more on a machine
    without an idle core.
    """

    def __init__(self, room_s: float) -> None:
        self._left_s = room_s
        self.occupied = False
        """Whether an express batch has the host's only slot."""

    @property
    def room_s(self) -> float:
        """The most seconds that an express batch may take now."""
        return 0.0 if self.occupied else self._left_s

    def reserve(self, expected_s: float, at_hand: bool) -> None:
        """Reserve time for a batch, and the slot if its modules are at hand.

        A batch that must load modules first takes no slot, since the load may outlast the host. The caller
        resets `occupied` when the batch ends.
        """
        self.occupied, self._left_s = at_hand, self._left_s - expected_s


class Hosts:
    """The batches that run now, at most one in each stream; express batches are not among them."""

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._running: list[Host] = []

    @contextmanager
    def running(self, room_s: float) -> Iterator[None]:
        """Register a batch while it runs. With `room_s` 0 no other batch runs beside it."""
        host = Host(room_s)
        self._running.append(host)
        try:
            yield
        finally:
            self._running.remove(host)

    def roomiest(self) -> Host | None:
        """Return the host with the most room; None if a stream is free or no host has room."""
        if len(self._running) < self._streams:
            return None
        host = max(self._running, key=lambda host: host.room_s)
        return host if host.room_s > 0 else None
