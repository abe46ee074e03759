"""Keeps what is computed of rows within a number of bytes, so that later epochs need not compute it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")
KEPT_BYTES = 64 << 20
"""The most bytes that one `Kept` holds: the features of some 40,000 tokens of 384 numbers."""


class Kept(Generic[Value]):
    """A function of rows' indices that computes a row's value once and keeps it, as long as there is room."""

    def __init__(
        self,
        compute: Callable[[Sequence[int]], list[Value]],
        size: Callable[[Value], int],
        most: int = KEPT_BYTES,
    ) -> None:
        """compute: gives the values of rows, by their indices. size: the bytes of a value."""
        self._compute, self._size, self._room = compute, size, most
        self._found: dict[int, Value] = {}

    def __call__(self, rows: Sequence[int]) -> list[Value]:
        missing = [row for row in rows if row not in self._found]
        fresh = dict(zip(missing, self._compute(missing), strict=True)) if missing else {}
        for row, value in fresh.items():
            size = self._size(value)
            if size <= self._room:
                self._room -= size
                self._found[row] = value
        return [fresh[row] if row in fresh else self._found[row] for row in rows]
