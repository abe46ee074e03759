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
from hmi.model.tasks import TaskKind
from hmi.model.tenant.calibration import Floats
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold
from hmi.training.tasks.calibration import ModelDecisions

IGNORE = -100
"""The target of a token that is not scored."""


class SoftTarget(float):
    """A tag's id that a teacher gave in doubt. `each` has the ids of tags with their probabilities."""

    __slots__ = ("each",)
    each: tuple[tuple[int, float], ...]

    def __new__(cls, each: tuple[tuple[int, float], ...]) -> SoftTarget:
        """The first id of `each` is the tag that the teacher gave."""
        made = super().__new__(cls, each[0][0])
        made.each = each
        return made

    def __reduce__(self) -> tuple[type[SoftTarget], tuple[tuple[tuple[int, float], ...]]]:
        """Return how to make a copy."""
        return SoftTarget, (self.each,)


def likely(targets: Sequence[float], labels: int) -> Tensor:
    """The probability of each label at some words, [words, labels]. targets: ids and soft targets."""
    words, tags, shares = list[int](), list[int](), list[float]()
    for word, target in enumerate(targets):
        for tag, share in target.each if isinstance(target, SoftTarget) else ((int(target), 1.0),):
            words.append(word)
            tags.append(tag)
            shares.append(share)
    out = torch.zeros(len(targets), labels)
    out[words, tags] = torch.tensor(shares)
    return out / out.sum(-1, keepdim=True)  # stored probabilities are rounded


MAX_WEIGHT = 10.0
"""The largest weight of a class. With a larger one, a handful of rows would dominate every step."""

K = TypeVar("K", bound=TaskKind)


@dataclass(frozen=True)
class TaskObjective(ABC, Generic[K]):
    """One task's objective. Its class methods need no task; they suffice to train a batch."""

    task: K

    @classmethod
    @abstractmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> K:
        """The task with labels and rules from the training rows. Raises InvalidData, which names `field`."""

    @abstractmethod
    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        """One row's training targets: a list for each of its windows."""

    @classmethod
    @abstractmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        """The mean loss of a batch. logits: [B, outputs], for tagging [B, T, outputs]; weights:
        from the method `weights`."""

    @classmethod
    def mass(cls, targets: Sequence[Sequence[float]], weights: Tensor | None) -> float:
        """The number that `loss` divides by.

        A batch's loss is the mean of the losses of its parts, each weighted by its mass.
        """
        return float(len(targets))

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        """Balanced class weights [outputs]: rows ÷ (classes × the class' rows), at most MAX_WEIGHT.

        Raises InvalidInput if the task has no classes.
        """
        raise InvalidInput(
            "class_weights apply to labels, and regression has none: leave class_weights out",
            field="options.class_weights",
        )

    @abstractmethod
    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        """Held-out metrics, including the tables that a report draws. merged: each row's output."""

    def decisions(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> ModelDecisions | None:
        """The decisions whose probabilities a temperature calibrates; None if the task gives none.

        golds, merged: as in `score`.
        """
        return None

    @abstractmethod
    def parts(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Floats:
        """Each row's part in the headline score, [rows, 2], which `score_of_parts` reads.

        golds, merged: as in `score`.
        """

    @classmethod
    def score_of_parts(cls, parts: Floats) -> float:
        """The headline score of rows from their `parts`: the first ones' sum divided by the second ones'."""
        right, all_ = parts.sum(0)
        return float(right / max(all_, 1))

    @abstractmethod
    def chance(self, golds: Sequence[Gold]) -> float:
        """The headline score on these rows of the best constant answer."""

    def tuned(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> K:
        """The task with those rules that are tuned on held-out rows."""
        return self.task

    def unknown(self, gold: Gold) -> set[str]:
        """Labels of a held-out row that the training rows lack."""
        return set()


def balanced(ids: Iterable[float], outputs: int) -> Tensor:
    """Weights [outputs] that make every class count alike, at most MAX_WEIGHT; 1 for a class without rows."""
    counts = Counter(int(i) for i in ids if i != IGNORE)
    seen = sum(counts.values())
    return torch.tensor(
        [min(MAX_WEIGHT, seen / (len(counts) * counts[i])) if counts[i] else 1.0 for i in range(outputs)]
    )
