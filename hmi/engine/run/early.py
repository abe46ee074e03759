"""Answers of texts that left before their batch ended, on their way to their callers."""

from __future__ import annotations

import asyncio
from contextlib import suppress

from hmi.engine.texts.item import Item
from hmi.engine.texts.request import TextResult


class EarlyAnswers:
    """Hands the early answers of one batch on. Made on the event loop's thread, called on another."""

    def __init__(self) -> None:
        self._loop = asyncio.get_running_loop()
        self.items: list[Item] = []
        """Those that were handed on, in the event loop's thread."""

    def __call__(self, answers: list[tuple[Item, TextResult]]) -> None:
        with suppress(RuntimeError):  # the loop has ended, and with it all callers
            self._loop.call_soon_threadsafe(self._deliver, answers)

    def _deliver(self, answers: list[tuple[Item, TextResult]]) -> None:
        for item, answer in answers:
            self.items.append(item)
            item.sink.done(answer)
