"""A number for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import Task, TaskRules
from hmi.errors import InvalidData
from hmi.model.batching import Encoded
from hmi.model.golds import Gold
from hmi.model.scoring import score_values
from hmi.model.tasks.base import Answer, TaskKind, mean_output


@dataclass(frozen=True)
class Regression(TaskKind):
    """Squared error in units of the training rows' standard deviation; answers are in the user's own units."""

    name: ClassVar[Task] = "regression"

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Self:
        values = np.array([number(g) for g in golds])
        centre, spread = float(values.mean()), float(values.std())
        if values.min() == values.max():
            raise InvalidData(f"every row of {field} has the value {centre:g}: there is nothing to learn", field=field)
        return cls((), TaskRules(centre=centre, spread=spread, paired=paired))

    @property
    def outputs(self) -> int:
        return 1

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        return [[(number(gold) - self.rules.centre) / self.rules.spread] for _ in windows]

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        return F.mse_loss(logits, torch.tensor(targets))

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        return mean_output(outputs)

    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        return Answer(value=float(merged[0]) * self.rules.spread + self.rules.centre)

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        got = [float(m[0]) * self.rules.spread + self.rules.centre for m in merged]
        return score_values([number(g) for g in golds], got, self.rules.centre)

    def chance(self, golds: Sequence[Gold]) -> float:
        """0: a constant correlates with nothing."""
        return 0.0


def number(gold: Gold) -> float:
    assert isinstance(gold, float)
    return gold
