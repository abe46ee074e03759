"""The interface of a task: the head's input and output, targets, loss, answers, metrics."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Self

import torch
from torch import Tensor

from hmi.core import Task, TaskRules
from hmi.errors import InvalidInput
from hmi.model.answer import Answer as Answer
from hmi.model.batching import Encoded
from hmi.model.golds import Gold
from hmi.model.heads import Reads, reads_of

IGNORE = -100
"""The target of a token that is not scored."""
HEAVIEST = 10.0
"""No class weighs more than this: beyond it a handful of rows would steer every step."""


@dataclass(frozen=True)
class TaskKind(ABC):
    """One model's task: its kind, its labels and the rules that its answers follow.

    The class methods know the kind only, which is enough to train a batch.
    """

    labels: tuple[str, ...] = ()
    rules: TaskRules = field(default_factory=TaskRules)

    name: ClassVar[Task]

    @property
    def paired(self) -> bool:
        """Whether an input is two texts."""
        return self.rules.paired

    @property
    def form(self) -> tuple[type, str]:
        """The type of an input, and what to call it."""
        return (tuple, "text and text_pair") if self.paired else (str, "a text")

    @property
    def windowed(self) -> bool:
        """Whether a long text may be read in windows; a pair's longer text loses its end instead."""
        return not self.paired

    @property
    def reads(self) -> Reads:
        """What the head reads."""
        return reads_of(self.name, paired=self.paired, pooling=self.rules.pooling)

    @classmethod
    @abstractmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Self:
        """Labels and rules as the training rows have them. Raises InvalidData naming `field`."""

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The size of the head's output."""

    @abstractmethod
    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        """One row's training targets: a list for each of its windows."""

    @classmethod
    @abstractmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        """The mean loss of a batch. logits [B, outputs], of tagging [B, T, outputs]; weights: those of `weights`."""

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        """Balanced class weights [outputs]: rows ÷ (classes × the class' rows), at most HEAVIEST.

        Raises InvalidInput where the task has no classes.
        """
        raise InvalidInput(
            f"class_weights apply to labels, and {cls.name} has none: leave class_weights out",
            field="options.class_weights",
        )

    @abstractmethod
    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        """One row's output from its windows' ([outputs], of tagging [T_i, outputs]); it has so many words."""

    @abstractmethod
    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        """The decision from one row's merged output."""

    @abstractmethod
    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        """Held-out metrics, with those that a report draws."""

    @abstractmethod
    def chance(self, golds: Sequence[Gold]) -> float:
        """The headline score, on these rows, of the best answer that is the same for every row."""

    def tuned(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Self:
        """This task with what is chosen on held-out rows."""
        return self

    def with_transitions(self, table: Tensor | None) -> Self:
        """This task with what a model has learnt of which answer follows which (`Transitions`), where it has any."""
        return self

    def unknown(self, gold: Gold) -> set[str]:
        """Labels of a held-out row that the training rows lack."""
        return set()


def mean_output(outputs: Sequence[Tensor]) -> Tensor:
    """The mean over windows; of one window its own bits."""
    return outputs[0] if len(outputs) == 1 else torch.stack(list(outputs)).mean(0)


def balanced(ids: Iterable[float], outputs: int) -> Tensor:
    """Weights [outputs] by which every class counts alike, bounded by HEAVIEST; 1 for a class without rows."""
    counts = Counter(int(i) for i in ids if i != IGNORE)
    seen = sum(counts.values())
    return torch.tensor([min(HEAVIEST, seen / (len(counts) * counts[i])) if counts[i] else 1.0 for i in range(outputs)])
