"""A sketch of bounded size that counts the n-grams that look-ups miss most.

The algorithm is Misra-Gries in the mergeable form of Agarwal et al. A batch's counts are added to the
counters. If there are then more than `capacity` counters, the (capacity + 1)-th largest count is subtracted
from all. A counter is at most `error` too low and never too high, and error ≤ seen / (capacity + 1).
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Final

import numpy as np
from hmi_kernels.lookup.layout import MAX_N, Window, words
from numpy.typing import NDArray

from plot_store.counting.key_counts import KeyCounts, combined, count_keys, empty
from plot_store.counting.windows import Strip, pack, starts_of, unpack
from plot_store.ground.arguments import check_number
from plot_store.ground.errors import Damaged, Invalid
from plot_store.ground.nouns import Hits, check_window

CAPACITY: Final = 1 << 16
BUFFER_TOKENS: Final = 1 << 18  # tokens that are buffered before they are sorted and counted
Arrays = dict[str, NDArray[np.generic]]


class MissSketch:
    """Counts the most frequent windows of `n` tokens whose own n-gram was not stored. Thread-safe.

    Causal windows that begin before their text, or contain id 0, are not counted.
    It takes (8 × words + 8) bytes for each of `capacity` n-grams and 6 bytes for each of BUFFER_TOKENS
    tokens, and about ten times the latter while they are sorted.
    """

    def __init__(self, n: int, capacity: int = CAPACITY, *, window: Window = "centred") -> None:
        """Raises Invalid."""
        check_number("n", n, f"use 1..{MAX_N}", least=1, most=MAX_N, whole=True)
        check_number("capacity", capacity, "use 1 or more", least=1, whole=True)
        self.n, self.capacity, self.window = n, capacity, check_window(window)
        self._kept = empty(words(n))
        self._error = self._seen = 0
        self._tokens = np.empty(BUFFER_TOKENS, np.int32)
        self._missed = np.empty(BUFFER_TOKENS, np.bool_)
        self._starts = np.zeros(BUFFER_TOKENS + 1, np.bool_)
        self._used = 0
        self._lock = threading.Lock()

    def add(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], hits: Hits) -> None:
        """Record a look-up: its arguments and hits. They are copied, which takes a few microseconds."""
        with self._lock:
            if tokens.size > BUFFER_TOKENS:
                self._absorb(tokens, hits.order < self.n, starts_of(offsets))
                return
            if self._used + tokens.size > BUFFER_TOKENS:
                self._flush()
            begin, end = self._used, self._used + tokens.size
            self._tokens[begin:end] = tokens
            np.less(hits.order, self.n, out=self._missed[begin:end])
            self._starts[begin + offsets] = True  # the last offset is where the next batch begins
            self._used = end

    @property
    def seen(self) -> int:
        """The number of misses so far."""
        with self._lock:
            self._flush()
            return self._seen

    def top(
        self, k: int | None = None, min_count: int = 1
    ) -> tuple[NDArray[np.uint32], NDArray[np.int64], int]:
        """Return the k n-grams missed most (None: all counters), most frequent first, ties ascending.

        Returns (n-grams uint32 [m, n], counts int64 [m], error). An n-gram was missed at least `count` and at
        most `count + error` times; min_count applies to the lower bound. Every n-gram that was missed more
        than `error` times has a counter.
        """
        with self._lock:
            self._flush()
            kept, error = self._kept.where(self._kept.counts >= min_count), self._error
        first = np.lexsort((*kept.keys.T[::-1], -kept.counts))[:k]
        return unpack(kept.keys[first], self.n), kept.counts[first], error

    def merge(self, other: MissSketch) -> None:
        """Add another sketch's counts; the errors add up. Raises Invalid if its n or window differs."""
        if (other.n, other.window) != (self.n, self.window):
            raise Invalid(
                f"a sketch of {other.window} {other.n}-grams cannot be merged into one of {self.window} "
                f"{self.n}-grams: keep them apart"
            )
        with other._lock:
            other._flush()
            kept, error, seen = other._kept, other._error, other._seen
        with self._lock:
            self._flush()
            self._error += error
            self._seen += seen
            self._keep(kept)

    def to_arrays(self) -> Arrays:
        """Return the sketch as named arrays: ngrams uint32 [m, n], counts int64 [m], figures int64 [4].

        A causal sketch has a fifth figure, 1, for which older releases refuse it.
        """
        with self._lock:
            self._flush()
            causal = [1] if self.window == "causal" else []
            figures = np.array([self.n, self.capacity, self._error, self._seen, *causal], np.int64)
            return {
                "ngrams": unpack(self._kept.keys, self.n),
                "counts": self._kept.counts.copy(),
                "figures": figures,
            }

    @classmethod
    def from_arrays(cls, arrays: Mapping[str, NDArray[np.generic]]) -> MissSketch:
        """Restore a sketch from `to_arrays`. Raises Damaged for anything else."""
        try:
            ngrams, counts, figures = (np.asarray(arrays[name]) for name in ("ngrams", "counts", "figures"))
            n, capacity, error, seen, *causal = map(int, figures)
            if causal not in ([], [1]):
                raise ValueError("a fifth figure other than 1")
            sketch = cls(n, capacity, window="causal" if causal else "centred")
        except (KeyError, ValueError, TypeError, Invalid) as wrong:
            raise Damaged(
                "these arrays are not a miss sketch: delete them, and counting starts over"
            ) from wrong
        shapes = (ngrams.shape, ngrams.dtype, counts.shape, counts.dtype)
        if shapes != ((counts.size, n), np.dtype(np.uint32), (counts.size,), np.dtype(np.int64)):
            raise Damaged(
                "a miss sketch has arrays of the wrong shape or type: delete them, and counting starts over"
            )
        # Sorted again, since the file is not trusted.
        order = np.lexsort(ngrams.T[::-1])
        sketch._kept = KeyCounts(pack(ngrams[order].astype(np.uint32)), counts[order].astype(np.int64))
        sketch._error, sketch._seen = error, seen
        return sketch

    def _flush(self) -> None:
        """Count the buffered tokens. The caller must hold the lock."""
        used, self._used = self._used, 0
        if used:
            self._absorb(self._tokens[:used], self._missed[:used], self._starts[:used])
            self._starts[: used + 1] = False

    def _absorb(
        self, tokens: NDArray[np.int32], missed: NDArray[np.bool_], starts: NDArray[np.bool_]
    ) -> None:
        """Count a batch's missed windows. The caller must hold the lock."""
        strip = Strip(tokens, starts, self.n)
        cut = strip.grams if self.window == "causal" else strip.windows
        fresh = count_keys(cut(self.n, missed))
        self._seen += int(fresh.counts.sum())
        self._keep(fresh)

    def _keep(self, more: KeyCounts) -> None:
        """Add counts, and reduce the counters to `capacity`. The caller must hold the lock."""
        kept = combined([self._kept, more])
        if len(kept) > self.capacity:
            excess = int(np.partition(kept.counts, -self.capacity - 1)[-self.capacity - 1])
            self._error += excess
            rest = kept.where(kept.counts > excess)
            kept = KeyCounts(rest.keys, rest.counts - excess)
        self._kept = kept
