"""The objective for a number for a text or a pair of texts: squared error."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import TaskRules
from hmi.errors import InvalidData
from hmi.model.tasks.regression import Regression
from hmi.model.tenant.calibration import Floats
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold
from hmi.training.tasks.objectives.base import TaskObjective
from hmi.training.tasks.scoring import rank_correlation, score_values


@dataclass(frozen=True)
class RegressionObjective(TaskObjective[Regression]):
    """Regression. Targets are in units of the training rows' standard deviation, around their mean."""

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Regression:
        values = np.array([number(g) for g in golds])
        centre, spread = float(values.mean()), float(values.std())
        if values.min() == values.max():
            raise InvalidData(
                f"every row of {field} has the value {centre:g}: there is nothing to learn", field=field
            )
        return Regression((), TaskRules(centre=centre, spread=spread, paired=paired))

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        return [[(number(gold) - self.task.rules.centre) / self.task.rules.spread] for _ in windows]

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        return F.mse_loss(logits, torch.tensor(targets))

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        got = [float(m[0]) * self.task.rules.spread + self.task.rules.centre for m in merged]
        return score_values([number(g) for g in golds], got, self.task.rules.centre)

    def parts(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Floats:
        """Each row's right value and answer."""
        return np.array([(number(g), float(m[0])) for g, m in zip(golds, merged, strict=True)])

    @classmethod
    def score_of_parts(cls, parts: Floats) -> float:
        """Spearman's correlation, which is no quotient of sums."""
        return rank_correlation(parts[:, 0], parts[:, 1])

    def chance(self, golds: Sequence[Gold]) -> float:
        """0, since a constant correlates with nothing."""
        return 0.0


def number(gold: Gold) -> float:
    assert isinstance(gold, float)
    return gold
