"""Decides between two versions of a tenant's model on the same held-out rows, by a paired bootstrap.

Both versions answer the same rows, so most of the luck of the draw is in both scores and cancels in their
difference. Resampling the rows (Efron, 1979; for scores of language tasks: Koehn, 2004) gives the
distribution of that difference for any headline metric, entity F1 included.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from hmi.model.calibration import Floats
from hmi.model.tasks import TaskKind
from hmi.training.golds import Gold
from hmi.training.headline import headline
from hmi.training.objectives import objective_of
from hmi.training.objectives.base import Draws

RESAMPLES = 1_000
SURE = 0.9
"""A new version is published if it is better in at least this share of the resamples."""
Version = tuple[TaskKind, Sequence[Tensor]]
"""A version's task, and its merged outputs for some rows, which the task reads."""


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
    """Compare two versions on the same rows. golds: the right answers of these rows."""
    draws = np.random.default_rng(seed).integers(len(golds), size=(RESAMPLES, len(golds)))
    difference = _resampled(new, golds, draws) - _resampled(old, golds, draws)
    sure = float(((difference > 0) + 0.5 * (difference == 0)).mean())
    return Comparison(_score(old, golds), _score(new, golds), round(sure, 4), len(golds))


def _resampled(version: Version, golds: Sequence[Gold], draws: Draws) -> Floats:
    task, merged = version
    return objective_of(task).resampled(golds, merged, draws)


def _score(version: Version, golds: Sequence[Gold]) -> float:
    task, merged = version
    return headline(objective_of(task).score(golds, merged))
