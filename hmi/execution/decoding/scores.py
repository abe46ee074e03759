"""The scores of all words after one row, and what a choice asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from hmi_kernels.later import Later
from numpy.typing import NDArray
from torch import Tensor

ops = Later("decoder.ops")
FEW = 64
"""The number of best words that a draw looks at first. They nearly always decide it."""
Best = tuple[NDArray[np.int64], NDArray[np.float32], float]
"""The best words' ids, int64 [count or fewer], their scores, float32, and the logarithm of the sum of the
exponentials of all words' scores times a scale."""


class ScoreRow(Protocol):
    """The scores of one row: float32. A word whose score is -inf or not-a-number must not be chosen."""

    def best(self, count: int, scale: float = 1.0) -> Best:
        """Return the `count` best words that may be chosen, the best first and of equal ones the lower id."""
        ...

    def of(self, word: int) -> float:
        """Return the score of one word."""
        ...

    def whole(self) -> NDArray[np.float32]:
        """Return all scores, [vocab or more]. The caller must not change them."""
        ...


class HostRow:
    """A `ScoreRow` in the memory of the host."""

    def __init__(self, row: NDArray[np.float32]) -> None:
        """row: float32 [vocab or more]"""
        self._row = row

    def best(self, count: int, scale: float = 1.0) -> Best:
        """See `ScoreRow.best`."""
        found: Best = ops.best(self._row, count, scale)
        return found

    def of(self, word: int) -> float:
        """See `ScoreRow.of`."""
        return float(self._row[word])

    def whole(self) -> NDArray[np.float32]:
        """See `ScoreRow.whole`."""
        return self._row


def host_rows(scores: Tensor) -> Sequence[ScoreRow]:
    """float32 [rows, vocab or more] on the host -> each row."""
    return [HostRow(row) for row in scores.numpy()]


def matrix_of(rows: Sequence[ScoreRow]) -> Tensor:
    """All scores of some rows, at least one: float32 [rows, vocab or more]."""
    return torch.from_numpy(np.stack([row.whole() for row in rows]))
