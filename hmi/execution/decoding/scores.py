"""The scores of all words after one row, and what a choice asks of them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np
import torch
from hmi_kernels.later import Later
from numpy.typing import NDArray
from torch import Tensor

from hmi.model.text.guides import Guide

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

    def first(self) -> tuple[int, float]:
        """Return the best word that may be chosen, of equal ones the lower id, and its score; -inf: there is
        none."""
        ...

    def of(self, word: int) -> float:
        """Return the score of one word."""
        ...

    def whole(self) -> NDArray[np.float32]:
        """Return all scores, [vocab or more]. The caller must not change them."""
        ...


class HostRow:
    """A `ScoreRow` in the memory of the host."""

    def __init__(
        self, row: NDArray[np.float32], tops: NDArray[np.float32] | None = None, first: int | None = None
    ) -> None:
        """row: float32 [vocab or more]. tops: the greatest of each 64, if they are known. first: the best
        word, if it is known."""
        self._row, self._tops, self._first = row, tops, first

    def best(self, count: int, scale: float = 1.0) -> Best:
        """See `ScoreRow.best`."""
        found: Best = ops.best(self._row, count, scale, self._tops)
        return found

    def first(self) -> tuple[int, float]:
        """See `ScoreRow.first`."""
        if self._first is None:
            return first_of(self.best(1, 0.0))  # without the sum
        return self._first, self.of(self._first)

    def of(self, word: int) -> float:
        """See `ScoreRow.of`."""
        return float(self._row[word])

    def whole(self) -> NDArray[np.float32]:
        """See `ScoreRow.whole`."""
        return self._row


class GuidedRow:
    """A `ScoreRow` of which only those words may be chosen that a guide allows."""

    def __init__(self, row: ScoreRow, guide: Guide) -> None:
        self._row, self._guide = row, guide
        self._kept: HostRow | None = None

    def best(self, count: int, scale: float = 1.0) -> Best:
        """See `ScoreRow.best`."""
        return self._host().best(count, scale)

    def first(self) -> tuple[int, float]:
        """See `ScoreRow.first`. All words are looked at only if the best of all may not come."""
        found = self._row.first()
        return found if self._guide.allows(found[0]) else self._host().first()

    def of(self, word: int) -> float:
        """See `ScoreRow.of`."""
        return self._row.of(word) if self._guide.allows(word) else -np.inf

    def whole(self) -> NDArray[np.float32]:
        """See `ScoreRow.whole`."""
        return self._host().whole()

    def _host(self) -> HostRow:
        if self._kept is None:
            self._kept = HostRow(self._guide.kept(self._row.whole()))
        return self._kept


def first_of(best: Best) -> tuple[int, float]:
    """The first of the best words, and its score; -inf if there is none."""
    ids, scores, _ = best
    return (int(ids[0]), float(scores[0])) if len(ids) else (0, -np.inf)


def host_rows(scores: Tensor) -> Sequence[ScoreRow]:
    """float32 [rows, vocab or more] on the host -> each row."""
    return [HostRow(row) for row in scores.numpy()]


def matrix_of(rows: Sequence[ScoreRow]) -> Tensor:
    """All scores of some rows, at least one: float32 [rows, vocab or more]."""
    return torch.from_numpy(np.stack([row.whole() for row in rows]))
