"""Counting n-grams over a corpus and choosing which a PLOT stores.

Coverage is by occurrence: the most frequent n-grams that together make up α% of all occurrences (HMI section 7.7;
section 5.1's "α% of the fragments" does not fit the paper's own sizes).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Keys = NDArray[np.uint64]
Counts = NDArray[np.int64]
BITS = np.uint64(21)
_MASK = np.uint64((1 << 21) - 1)


@dataclass
class NgramCounts:
    """Sorted distinct keys and their counts, merged chunk by chunk."""

    order: int
    keys: Keys
    counts: Counts

    @classmethod
    def empty(cls, order: int) -> NgramCounts:
        return cls(order, np.empty(0, np.uint64), np.empty(0, np.int64))

    def add(self, keys: Keys) -> None:
        new, counts = np.unique(keys, return_counts=True)
        merged = np.concatenate([self.keys, new])
        self.keys, inverse = np.unique(merged, return_inverse=True)
        totals = np.bincount(inverse, weights=np.concatenate([self.counts, counts]), minlength=len(self.keys))
        self.counts = totals.astype(np.int64)

    @property
    def total(self) -> int:
        return int(self.counts.sum())

    def covering(self, alpha: float, min_count: int = 1) -> Keys:
        """The fewest n-grams whose occurrences reach `alpha` percent, the most frequent first; ties by key."""
        if alpha <= 0 or not len(self.keys):
            return np.empty(0, np.uint64)
        order = np.lexsort((self.keys, -self.counts))
        cumulative = np.cumsum(self.counts[order])
        wanted = int(np.searchsorted(cumulative, alpha / 100 * cumulative[-1] - 1e-6)) + 1
        chosen = order[:wanted]
        kept: Keys = self.keys[chosen[self.counts[chosen] >= min_count]]
        return kept


def pack(ngrams: NDArray[np.uint32]) -> Keys:
    """[m, order] token ids -> [m] keys, 21 bits a token; ascending keys are ascending n-grams."""
    keys = np.zeros(len(ngrams), np.uint64)
    for column in ngrams.T:
        keys = (keys << BITS) | column.astype(np.uint64)
    return keys


def unpack(keys: Keys, order: int) -> NDArray[np.uint32]:
    """The inverse of `pack`: [m] -> [m, order]."""
    columns = [(keys >> (BITS * np.uint64(order - 1 - i))) & _MASK for i in range(order)]
    return np.stack(columns, axis=1).astype(np.uint32)


def count_ngrams(texts: Iterable[list[int]], chunk_tokens: int = 1 << 20) -> tuple[NgramCounts, NgramCounts]:
    """Bigrams and trigrams of tokenised texts; trigrams include those at a text's ends (0 = no neighbour)."""
    bigrams, trigrams = NgramCounts.empty(2), NgramCounts.empty(3)
    for ids in _chunks(texts, chunk_tokens):
        # Texts lie end to end with two zeros between, so no n-gram joins two of them.
        tri = np.stack([ids[:-2], ids[1:-1], ids[2:]], axis=1)
        trigrams.add(pack(tri[tri[:, 1] > 0]))
        bi = np.stack([ids[:-1], ids[1:]], axis=1)
        bigrams.add(pack(bi[(bi > 0).all(axis=1)]))
    return bigrams, trigrams


def _chunks(texts: Iterable[list[int]], size: int) -> Iterator[NDArray[np.uint32]]:
    buffer: list[int] = [0]
    for text in texts:
        buffer += text
        buffer += (0, 0)
        if len(buffer) >= size:
            yield np.array(buffer, np.uint32)
            buffer = [0]
    if len(buffer) > 1:
        yield np.array(buffer, np.uint32)
