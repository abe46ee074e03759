"""Express batches: a short batch runs on a thread of its own beside another tenant's longer one, its host.

A batch that runs cannot be divided. Without express batches, other tenants' texts would wait for all of it.
Used on the event loop's thread only.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass


@dataclass(eq=False)
class MainBatch:
    """A running batch beside which others may run."""

    room_s: float
    """The predicted seconds that they may still take, all together. They delay the host by no more, on a
    machine without an idle core."""


class Hosts:
    """The batches that run now, at most one in each stream, and how many express batches run beside them.

    As many express batches run at once as there are streams.
    """

    def __init__(self, streams: int) -> None:
        self._streams = streams
        self._running: list[MainBatch] = []
        self._express = 0

    @contextmanager
    def running(self, room_s: float) -> Iterator[None]:
        """Register a batch while it runs. With `room_s` 0 no other batch runs beside it."""
        host = MainBatch(room_s)
        self._running.append(host)
        try:
            yield
        finally:
            self._running.remove(host)

    def roomiest(self) -> MainBatch | None:
        """Return the host with the most room; None if no host has any, or an express batch has no thread.

        None, too, if a stream is free: it runs the next batch.
        """
        if len(self._running) < self._streams or self._express == self._streams:
            return None
        host = max(self._running, key=lambda host: host.room_s)
        return host if host.room_s > 0 else None

    def begin(self, host: MainBatch, expected_s: float) -> None:
        """An express batch begins."""
        host.room_s -= expected_s
        self._express += 1

    def end(self) -> None:
        """An express batch has ended."""
        self._express -= 1
