"""Token buckets: each allows a rate in the long run, and a burst after a pause."""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import NamedTuple

SPARE = 1024
"""Full buckets are looked for when there are this many more than twice those that the last look left."""


class Rate(NamedTuple):
    """The rate and the burst that a bucket allows."""

    per_s: float
    """The amount that flows in a second: the long-run limit of what may be taken a second."""
    capacity: float
    """The most that the bucket holds: the limit of what may be taken at once after a pause."""


class Buckets:
    """One bucket for each holder. A bucket that is full again is forgotten, so memory holds only those that
    were used lately. For one thread.

    Taking may leave a bucket in debt (below 0): a large call is let through if the bucket has what it can
    hold, and what was not known beforehand is taken later.
    """

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._filled: dict[str, tuple[float, float, float]] = {}
        """By holder: the amount left, the time of that, and the time when the bucket is full."""
        self._look_at = SPARE

    def __len__(self) -> int:
        return len(self._filled)

    def left(self, holder: str, rate: Rate) -> float:
        """Return the amount that may be taken now. A bucket in debt has less than 0."""
        found = self._filled.get(holder)
        if found is None:
            return rate.capacity
        level, at, _ = found
        return min(rate.capacity, level + (self._clock() - at) * rate.per_s)

    def wait_s(self, holder: str, rate: Rate, amount: float) -> float:
        """Return the seconds until `amount` may be taken, or the full bucket if that is less; 0 if it may be
        taken now.
        """
        missing = min(amount, rate.capacity) - self.left(holder, rate)
        return max(0.0, missing / rate.per_s)

    def take(self, holder: str, rate: Rate, amount: float) -> None:
        """Take an amount, or with an amount below 0 give it back."""
        level, at = self.left(holder, rate) - amount, self._clock()
        if level >= rate.capacity:
            self._filled.pop(holder, None)
            return
        self._filled[holder] = level, at, at + (rate.capacity - level) / rate.per_s
        if len(self._filled) > self._look_at:
            self._forget_full(at)

    def _forget_full(self, at: float) -> None:
        self._filled = {holder: found for holder, found in self._filled.items() if found[2] > at}
        self._look_at = SPARE + 2 * len(self._filled)
