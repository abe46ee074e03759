"""Sizes such as 50M, 1.5 GB, 64KiB, 4096, where K, M, G and T are powers of 1024 in all spellings; and counts
such as 1 row."""

from __future__ import annotations

import re
from typing import Final

_SIZE: Final = re.compile(r"([0-9]+(?:\.[0-9]*)?|\.[0-9]+)\s*(?:([kmgt])(?:i?b)?|b)?", re.IGNORECASE)
_POWERS: Final = "KMGT"
FORMS: Final = "bytes, or with K, M, G or T (in 1024s; KB and KiB are the same): 50M"
"""How to write a size, for errors and help texts."""


def parse_bytes(text: str, least: int = 0) -> int:
    """Parse a size: "50M", "50 MB" and "50MiB" → 52428800.

    Raises ValueError if `text` is no size, or the size is not from `least` to 2⁶⁰ - 1.
    """
    found = _SIZE.fullmatch(text.strip())
    if found is None:
        raise ValueError(f"{text!r} is no size")
    number, unit = found.groups()
    count = float(number) * 1024 ** (_POWERS.index(unit.upper()) + 1 if unit else 0)
    if not least <= count < 1 << 60:
        raise ValueError(f"{text!r} is outside {least} to 2**60")
    return int(count) if unit or "." in number else int(number)


def size(count: float) -> str:
    """Return a number of bytes with a binary unit, such as "1.5 MiB"."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if abs(count) < 1024:
            return f"{count:.0f} {unit}" if unit == "B" else f"{count:.1f} {unit}"
        count /= 1024
    return f"{count:.1f} TiB"


def counted(count: int, one: str, several: str = "") -> str:
    """Return a number of things: "1 row", "2 rows". `several` is the plural if it is not `one` with an s."""
    return f"{count:,} {one if count == 1 else several or f'{one}s'}"
