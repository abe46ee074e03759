"""Prediction of a batch's time from earlier batches, so that batches can be cut to a given time.

The time is CPU time of one core. On a busy machine a batch takes longer by the clock. If that made batches
shorter, they would become less efficient just when the machine has least to spare.
"""

from __future__ import annotations

from collections.abc import Hashable

BATCH_WORK = 38.0
"""The fixed cost of a batch, in tokens. It is fitted as `hmi.engine.texts.item.TEXT_WORK` is."""
FIRST_S = 2e-4
"""Seconds per token, assumed until a batch of the kind has run."""
DECAY = 0.8
"""The weight of earlier batches decays by this factor with each new batch."""
MAX_OVERRUN = 4.0
"""A batch counts as at most this many times its predicted time: beyond that, something else held it up."""


class Pace:
    """Seconds per unit of work, by kind of batch: a decaying mean over batches, weighted by their work."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, float]] = {}
        """Decaying sums of work and of seconds, by kind."""

    def seconds(self, kind: Hashable, work: float) -> float:
        """Predicted seconds of `work` within a batch, without the batch's fixed cost."""
        done, took = self._seen.get(kind, (1.0, FIRST_S))
        return work * took / done

    def ran(self, kind: Hashable, work: float, seconds: float) -> None:
        """Learn from a batch: its work and the CPU seconds that it took."""
        work += BATCH_WORK
        done, took = self._seen.get(kind, (0.0, 0.0))
        seconds = min(seconds, MAX_OVERRUN * self.seconds(kind, work))
        self._seen[kind] = (DECAY * done + work, DECAY * took + seconds)
