"""How much of a long text is read. Loads no torch, since files are checked without it."""

from __future__ import annotations

MAX_WINDOWS = 8
"""The most windows of a text. It bounds how long one tenant's text can delay the others."""
OVERLAP = 4
"""Consecutive windows share at least about one token in this many."""


def reach(max_length: int) -> int:
    """The number of tokens of a text that MAX_WINDOWS windows cover, special tokens included."""
    room = max_length - 2
    return room + (MAX_WINDOWS - 1) * stride(room) + 2


def stride(room: int) -> int:
    """The most tokens from the start of one window of `room` tokens to the start of the next."""
    return max(1, room - room // OVERLAP)
