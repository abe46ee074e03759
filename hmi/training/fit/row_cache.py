"""Keeps what is computed of rows within a number of bytes, so that later epochs need not compute it again."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

Value = TypeVar("Value")
KEPT_BYTES = 64 << 20
"""The most bytes that one `RowCache` holds: the features of some 40,000 tokens of 384 numbers."""


class RowCache(Generic[Value]):
    """A function of rows' indices that computes a row's value once and keeps it, as long as there is room."""

    def __init__(
        self,
        compute: Callable[[Sequence[int]], list[Value]],
        size: Callable[[Value], int],
        most: int = KEPT_BYTES,
        *,
        cheap: bool = False,
    ) -> None:
        """compute: gives the values of rows, by their indices. size: the bytes of a value. cheap: the values
        cost little, so if less than half of the bytes fit, all are let go and none is kept again."""
        self._compute, self._size, self._most = compute, size, most
        self._cheap, self._pays = cheap, True
        self._found: dict[int, Value] = {}
        self._held = 0  # bytes of what is kept
        self._refused: dict[int, int] = {}  # rows without room -> their bytes

    def __call__(self, rows: Sequence[int]) -> list[Value]:
        missing = [row for row in rows if row not in self._found]
        fresh = dict(zip(missing, self._compute(missing), strict=True)) if missing else {}
        found = [fresh[row] if row in fresh else self._found[row] for row in rows]
        if fresh and self._pays:
            self._keep(fresh)
        return found

    def _keep(self, fresh: dict[int, Value]) -> None:
        for row, value in fresh.items():
            size = self._size(value)
            if self._held + size <= self._most:
                self._held += size
                self._found[row] = value
            else:
                self._refused[row] = size
        if self._cheap and sum(self._refused.values()) > self._most:
            self._pays = False
            self._found, self._refused = {}, {}
