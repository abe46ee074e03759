"""Decides between two versions of a tenant's model on the same held-out rows, by a paired bootstrap.

Both versions answer the same rows, so most of the luck of the draw is in both scores and cancels in their
difference. Resampling the rows (Efron, 1979) gives the distribution of that difference for any metric.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hmi.model.tasks import TaskKind
from hmi.training.golds import Gold
from hmi.training.headline import headline
from hmi.training.objectives import objective_of

RESAMPLES = 200
SURE = 0.9
"""A new version is published if it is better in at least this share of the resamples."""
Version = tuple[TaskKind, Sequence[Tensor]]


@dataclass(frozen=True)
class Comparison:
    """The difference of two headline scores on the same rows. `sure`: the share of resamples in which the new
    version is better; a tie counts half."""

    before: float
    after: float
    sure: float
    rows: int

    @property
    def gain(self) -> float:
        return self.after - self.before

    @property
    def better(self) -> bool:
        """Return whether the new version is better with confidence."""
        return self.sure >= SURE


def compare(golds: Sequence[Gold], old: Version, new: Version, seed: int) -> Comparison:
    """Compare two versions on rows with these right answers. old, new: a version's task, and its merged
    outputs for the rows, which the task reads."""
    draws = np.random.default_rng(seed).integers(len(golds), size=(RESAMPLES, len(golds)))
    differences = [_score(new, golds, draw) - _score(old, golds, draw) for draw in draws.tolist()]
    better = [1.0 if difference > 0 else 0.5 * (difference == 0) for difference in differences]
    whole = range(len(golds))
    before, after = _score(old, golds, whole), _score(new, golds, whole)
    return Comparison(before, after, round(sum(better) / RESAMPLES, 4), len(golds))


def _score(version: Version, golds: Sequence[Gold], which: Sequence[int]) -> float:
    task, merged = version
    return headline(objective_of(task).score([golds[i] for i in which], [merged[i] for i in which]))
