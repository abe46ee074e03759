"""The records of one model: texts that ran to the end, with what each of its ramps would have answered."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

MAX_RECORDS = 4096
"""Older records are dropped."""
FIRST = 128
"""The records that there is memory for at first; it doubles when they are full."""


class Records:
    """The newest MAX_RECORDS records, of 5 bytes for each ramp."""

    def __init__(self, ramps: int) -> None:
        self._uncertainty = np.empty((FIRST, ramps), np.float32)
        self._agrees = np.empty((FIRST, ramps), np.bool_)
        self._added = 0

    def __len__(self) -> int:
        return min(self._added, MAX_RECORDS)

    def add(self, uncertainty: ArrayLike, agrees: ArrayLike) -> None:
        """Add a record: both are [ramps]."""
        if self._added == len(self._agrees) < MAX_RECORDS:
            self._uncertainty = np.concatenate([self._uncertainty, np.empty_like(self._uncertainty)])
            self._agrees = np.concatenate([self._agrees, np.empty_like(self._agrees)])
        at = self._added % MAX_RECORDS
        self._uncertainty[at], self._agrees[at] = uncertainty, agrees
        self._added += 1

    def fill(self, uncertainty: NDArray[np.float32], agrees: NDArray[np.bool_]) -> None:
        """Put what `newest` gave into new records, at once."""
        self._added = len(agrees)
        size = max(FIRST, 1 << (self._added - 1).bit_length())
        self._uncertainty = np.resize(uncertainty[::-1], (size, uncertainty.shape[1]))
        self._agrees = np.resize(agrees[::-1], (size, agrees.shape[1]))

    @property
    def nbytes(self) -> int:
        """The memory that they take."""
        return self._uncertainty.nbytes + self._agrees.nbytes

    def newest(self, count: int = MAX_RECORDS) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
        """Copies of the newest records, the newest first: [at most count, ramps] twice."""
        rows = (self._added - 1 - np.arange(min(count, len(self)))) % MAX_RECORDS
        return self._uncertainty[rows], self._agrees[rows]
