"""Counts the values of a JSON text before it is parsed.

Parsing a text of many small values takes up to a hundred times its size in memory, and validation
as much again for the errors. Counting takes little memory, and holds the interpreter's lock for at
most a millisecond at a time.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

STEP = 1 << 20
"""Bytes that are counted at a time."""
_QUOTE, _COMMA, _COLON, _LIST, _OBJECT, _END = b'",:[{]'


@dataclass(frozen=True)
class Census:
    """The counts of a text. For a text that is not JSON they are no less than what a parser would create."""

    values: int
    """Values of any kind."""
    members: int
    """Members of objects."""
    depth: int = 0
    """Most lists and objects that are nested in one another; 0 if that was not counted."""

    def within(self, most: Census) -> bool:
        """Return whether there are no more values and members than in `most`."""
        return self.values <= most.values and self.members <= most.members


def census(data: bytes, most: Census) -> Census:
    """The counts of a JSON text.

    The quick count takes brackets and commas inside strings for values. It is returned if it is within
    `most`; otherwise the exact count is.
    """
    quick = Census(1 + data.count(b",") + data.count(b"[") + data.count(b"{"), data.count(b":"))
    return quick if quick.within(most) else exact_census(data)


def exact_census(data: bytes) -> Census:
    """The counts of what stands outside strings."""
    values, members, at, inside = 1, 0, 0, False  # inside: within a string
    level = depth = 0
    while at < len(data):
        part = data[at : at + STEP]
        if (len(part) - len(part.rstrip(b"\\"))) % 2 and at + len(part) < len(data):
            part = part[:-1]  # keep an escape sequence in one part
        at += len(part)
        plain = np.frombuffer(part.replace(b"\\\\", b"").replace(b'\\"', b""), np.uint8)
        if not len(plain):
            continue
        strings = np.logical_xor.accumulate(plain == _QUOTE) ^ inside
        inside = bool(strings[-1])
        plain = plain[~strings]
        values += sum(int(np.count_nonzero(plain == char)) for char in (_COMMA, _LIST, _OBJECT))
        members += int(np.count_nonzero(plain == _COLON))
        # Without the bit 0x20, "{" is "[" and "}" is "]". No other printable character becomes either.
        brackets = plain & 0xDF
        steps = (brackets == _LIST).astype(np.int8) - (brackets == _END)
        steps = steps[steps != 0]
        if len(steps):
            levels = level + np.cumsum(steps, dtype=np.int64)
            level, depth = int(levels[-1]), max(depth, int(levels.max()))
    return Census(values, members, depth)
