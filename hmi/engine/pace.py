"""Predicting the time of a batch from those that ran, so that batches can be cut to a time on any machine and
root.

The time is CPU time of one core. A busy machine makes a batch longer by the clock; if batches were cut
shorter for that, they would become less efficient just when the machine has least to spare.
"""

from __future__ import annotations

from collections.abc import Hashable

BATCH_WORK = 24.0
"""What a batch costs however small it is, in tokens."""
FIRST_S = 2e-4
"""Seconds a token, until a batch of a kind has run."""
MEMORY = 0.8
"""How much of what was known remains when another batch has run."""
LEAP = 4.0
"""A batch that took longer than so many times what was expected was held up: it counts as if it took this."""


def work_of(tokens: int, dim: int) -> float:
    """The work of one window of so many tokens, in tokens of a short one: attention is of each to each.

    A layer's products take 24 · dim² operations a token, its attention 4 · dim for each token that it sees.
    """
    return tokens * (1 + tokens / (6 * dim))


class Pace:
    """Seconds a unit of work by kind of batch: the mean over recent batches, a larger one counting more."""

    def __init__(self) -> None:
        self._seen: dict[Hashable, tuple[float, float]] = {}
        """Kind -> work and seconds, both fading."""

    def seconds(self, kind: Hashable, work: float) -> float:
        """What so much work is expected to take by itself, in a batch that has other work."""
        done, took = self._seen.get(kind, (1.0, FIRST_S))
        return work * took / done

    def ran(self, kind: Hashable, work: float, seconds: float) -> None:
        """A batch of so much work took so long."""
        work += BATCH_WORK
        done, took = self._seen.get(kind, (0.0, 0.0))
        seconds = min(seconds, LEAP * self.seconds(kind, work))
        self._seen[kind] = (MEMORY * done + work, MEMORY * took + seconds)
