"""The interface of a task: the head's input and output, and the answer that they give."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from hmi.core import Task, TaskRules
from hmi.model.answer import Answer as Answer
from hmi.model.batching import Encoded
from hmi.model.heads import Reads, reads_of


@dataclass(frozen=True)
class TaskKind(ABC):
    """One model's task: its kind, its labels and the rules that its answers follow."""

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

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The size of the head's output."""

    @abstractmethod
    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        """One row's output from its windows' ([outputs], of tagging [T_i, outputs]); it has so many words."""

    @abstractmethod
    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        """The decision from one row's merged output."""

    def with_transitions(self, table: Tensor | None) -> Self:
        """This task with what a model has learnt of which answer follows which (`Transitions`), where it has
        any."""
        return self


def mean_output(outputs: Sequence[Tensor]) -> Tensor:
    """The mean over windows; of one window its own bits."""
    return outputs[0] if len(outputs) == 1 else torch.stack(list(outputs)).mean(0)
