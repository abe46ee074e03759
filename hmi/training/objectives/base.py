"""The interface of an objective: targets, loss and metrics of a task, and the task that
training rows describe."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import torch
from torch import Tensor

from hmi.errors import InvalidInput
from hmi.model.batching import Encoded
from hmi.model.tasks import TaskKind
from hmi.training.golds import Gold

IGNORE = -100
"""The target of a token that is not scored."""
HEAVIEST = 10.0
"""No class weighs more than this: beyond it a handful of rows would steer every step."""

K = TypeVar("K", bound=TaskKind)


@dataclass(frozen=True)
class Objective(ABC, Generic[K]):
    """One task's objective. The class methods need no task, which is enough to train a batch."""

    task: K

    @classmethod
    @abstractmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> K:
        """The task with labels and rules as the training rows have them. Raises
        InvalidData naming `field`."""

    @abstractmethod
    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        """One row's training targets: a list for each of its windows."""

    @classmethod
    @abstractmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        """The mean loss of a batch. logits [B, outputs], of tagging [B, T, outputs]; weights:
        those of `weights`."""

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        """Balanced class weights [outputs]: rows ÷ (classes × the class' rows), at most HEAVIEST.

        Raises InvalidInput where the task has no classes.
        """
        raise InvalidInput(
            "class_weights apply to labels, and regression has none: leave class_weights out",
            field="options.class_weights",
        )

    @abstractmethod
    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        """Held-out metrics, with those that a report draws."""

    @abstractmethod
    def chance(self, golds: Sequence[Gold]) -> float:
        """The headline score, on these rows, of the best answer that is the same for every row."""

    def tuned(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> K:
        """The task with what is chosen on held-out rows."""
        return self.task

    def unknown(self, gold: Gold) -> set[str]:
        """Labels of a held-out row that the training rows lack."""
        return set()


def balanced(ids: Iterable[float], outputs: int) -> Tensor:
    """Weights [outputs] by which every class counts alike, bounded by HEAVIEST; 1 for a
    class without rows."""
    counts = Counter(int(i) for i in ids if i != IGNORE)
    seen = sum(counts.values())
    return torch.tensor(
        [min(HEAVIEST, seen / (len(counts) * counts[i])) if counts[i] else 1.0 for i in range(outputs)]
    )
