"""Arrays and the records that point to them, one after another in one piece of memory."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Record = NDArray[np.int64]
Memory = NDArray[np.uint8]
LINE = 64
"""Bytes of a cache line, and of a vector of AVX-512, which is read slowly across two lines."""


class Places:
    """Collects arrays in the order of their use; `placed` copies them into one piece of memory."""

    def __init__(self) -> None:
        self._arrays: list[tuple[int, NDArray[Any]]] = []
        self.size = 0
        """Bytes so far: the next array's place."""
        self._pointers: list[tuple[Record, int, int]] = []

    def add(self, array: NDArray[Any]) -> int:
        """Return the array's place: bytes from the beginning."""
        self._arrays.append((self.size, array))
        return self._reserve(array.nbytes)

    def point(self, record: Record, field: int, array: NDArray[Any], beyond: int = 0) -> None:
        """Add an array. Its address, plus `beyond` bytes, becomes this field of a record."""
        self._pointers.append((record, field, self.add(array) + beyond))

    def point_to_zeros(self, record: Record, field: int, size: int) -> None:
        """Add this many bytes of zeros. Their address becomes this field of a record."""
        self._pointers.append((record, field, self._reserve(size)))

    def mark(self, record: Record, field: int, place: int) -> None:
        """Make the address of a place this field of a record."""
        self._pointers.append((record, field, place))

    def _reserve(self, size: int) -> int:
        begin = self.size
        self.size += -(-size // LINE) * LINE
        return begin

    def placed(self) -> tuple[Memory, int]:
        """Return the memory, which the caller keeps, and the address of its beginning, a multiple of LINE."""
        memory = np.zeros(self.size + LINE, np.uint8)
        begin = -memory.ctypes.data % LINE
        address = memory.ctypes.data + begin
        for record, field, place in self._pointers:
            record[field] = address + place
        for place, array in self._arrays:
            there = memory[begin + place : begin + place + array.nbytes].view(array.dtype)
            there.reshape(array.shape)[...] = array
        return memory, address
