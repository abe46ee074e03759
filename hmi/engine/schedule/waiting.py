"""The texts that wait for a batch, as the metrics show them."""

from __future__ import annotations

import time
from collections.abc import Sequence

from hmi.engine.texts.item import Item


class WaitingTexts:
    """The calls under way, some of whose texts may wait. Changed on the event loop's thread only."""

    def __init__(self) -> None:
        self._calls: dict[int, Sequence[Item]] = {}

    def add(self, items: Sequence[Item]) -> None:
        """Count the items of a call that is in the queue, or in batches, until `remove` of the same
        object."""
        self._calls[id(items)] = items

    def remove(self, items: Sequence[Item]) -> None:
        del self._calls[id(items)]

    def seen(self) -> tuple[int, float]:
        """Return how many texts wait for their first batch, and the age of the oldest in seconds.

        It may be called on any thread; it costs the event loop nothing.
        """
        waiting = [item.queued for items in list(self._calls.values()) for item in items if item.cut == 0]
        return len(waiting), max(0.0, time.monotonic() - min(waiting)) if waiting else 0.0
