"""Rate-limited logging, for lines that outside callers cause: they could cause thousands a second."""

from __future__ import annotations

import logging
import time

EVERY_S = 10.0
"""Least time between two lines of a kind."""


class LimitedLog:
    """Writes at most one line of a kind every EVERY_S seconds, with the number of lines left out.

    For one thread.
    """

    def __init__(self, log: logging.Logger) -> None:
        self._log = log
        self._next: dict[str, float] = {}
        self._left_out: dict[str, int] = {}

    def warning(self, kind: str, text: str, *args: object) -> None:
        """Log a warning, unless a line of this kind was written less than EVERY_S ago."""
        at = time.monotonic()
        if at < self._next.get(kind, 0.0):
            self._left_out[kind] = self._left_out.get(kind, 0) + 1
            return
        self._next[kind] = at + EVERY_S
        left_out = self._left_out.pop(kind, 0)
        if left_out:
            text += " (and %d more since the last such line)"
            args = (*args, left_out)
        self._log.warning(text, *args)
