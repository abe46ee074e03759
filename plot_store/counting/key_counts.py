"""Sorted distinct keys with their counts: the common form of counters, runs and sketches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from plot_store.counting.windows import Keys

Counts = NDArray[np.int64]


@dataclass(frozen=True)
class KeyCounts:
    """Keys uint64 [m, words], ascending and distinct, and their counts int64 [m]."""

    keys: Keys
    counts: Counts

    def __len__(self) -> int:
        return self.counts.size

    def part(self, begin: int, end: int) -> KeyCounts:
        """Return the entries begin..end-1, as a view."""
        return KeyCounts(self.keys[begin:end], self.counts[begin:end])

    def where(self, chosen: NDArray[np.bool_]) -> KeyCounts:
        """Return the chosen entries (bool [m]), as a copy."""
        return KeyCounts(self.keys[chosen], self.counts[chosen])


def empty(words: int) -> KeyCounts:
    """Return no entries, with keys of this many words."""
    return KeyCounts(np.empty((0, words), np.uint64), np.empty(0, np.int64))


def count_keys(keys: Keys) -> KeyCounts:
    """Count keys uint64 [m, words] in any order. Keys of one word are sorted in place."""
    if keys.shape[1] == 1:
        keys[:, 0].sort()
    else:
        keys = keys[_order(keys)]
    starts = _starts(keys)
    return KeyCounts(keys[starts], np.diff(starts, append=len(keys)))


def combined(parts: Sequence[KeyCounts]) -> KeyCounts:
    """Add up one or more key counts of the same order."""
    if len(parts) == 1:
        return parts[0]
    keys = np.concatenate([part.keys for part in parts])
    if not len(keys):
        return parts[0]
    order = _order(keys)
    keys, counts = keys[order], np.concatenate([part.counts for part in parts])[order]
    starts = _starts(keys)
    return KeyCounts(keys[starts], np.add.reduceat(counts, starts))


def up_to(keys: Keys, bound: tuple[int, ...]) -> int:
    """Return how many of the ascending keys are at most `bound` (the words of a key)."""
    begin, end = 0, len(keys)
    for word, limit in enumerate(bound):
        column, value = keys[begin:end, word], np.uint64(limit)
        begin, end = (
            begin + int(column.searchsorted(value, "left")),
            begin + int(column.searchsorted(value, "right")),
        )
    return end


def _order(keys: Keys) -> NDArray[np.intp]:
    # Stable sorts make use of ascending pieces: to merge k of them costs log k per key, not log m.
    if keys.shape[1] == 1:
        return keys[:, 0].argsort(kind="stable")
    return np.lexsort((keys[:, 1], keys[:, 0]))


def _starts(keys: Keys) -> NDArray[np.intp]:
    """Return the position of the first of each distinct key in ascending keys."""
    if not len(keys):
        return np.empty(0, np.intp)
    fresh = np.zeros(len(keys), np.bool_)
    fresh[0] = True
    for word in range(keys.shape[1]):
        fresh[1:] |= keys[1:, word] != keys[:-1, word]
    return np.flatnonzero(fresh)
