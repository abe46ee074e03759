"""The interface of a task: what its head reads and returns, and the answer made from that."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Self

import torch
from torch import Tensor

from hmi.core import Task, TaskRules
from hmi.model.tenant.answer import InputAnswer as InputAnswer
from hmi.model.tenant.heads import Reads, reads_of
from hmi.model.text.batching import Encoded


@dataclass(frozen=True)
class TaskKind(ABC):
    """A model's task: its kind, its labels and the rules that shape its answers."""

    labels: tuple[str, ...] = ()
    rules: TaskRules = field(default_factory=TaskRules)

    name: ClassVar[Task]

    @property
    def paired(self) -> bool:
        """Whether an input is two texts."""
        return self.rules.paired

    @property
    def forms(self) -> tuple[type | tuple[type, ...], str]:
        """The Python types of an input, and their name in messages."""
        return (tuple, "text and text_pair") if self.paired else (str, "a text")

    @property
    def windowed(self) -> bool:
        """Whether a long text may be read in windows. In a pair the longer text is cut instead."""
        return not self.paired

    @property
    def reads(self) -> Reads:
        """How the head's input is pooled."""
        return reads_of(self.name, paired=self.paired, pooling=self.rules.pooling)

    @property
    @abstractmethod
    def outputs(self) -> int:
        """The number of the head's outputs: where a task has labels, one for each, in their order.

        Ramps, teachers and protocols rely on this.
        """

    @abstractmethod
    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        """Merge the head's outputs for the windows of one input. Except in tagging, a single window's output
        must come back as it is: stages leave this call out for it.

        outputs: one tensor [outputs] for each window, in tagging [T_i, outputs]. words: the number of words
        of the input; only tagging uses it.
        """

    @abstractmethod
    def answer(
        self, merged: Tensor, *, scores: bool = False, temperature: float | None = None
    ) -> InputAnswer:
        """The answer from an input's merged output. `scores` adds the probabilities of all labels.

        temperature: calibrates the probabilities (`hmi.model.tenant.calibration`). It changes no label, tag
        or set of labels, since these are decided without it. Values and vectors have no probabilities."""

    def with_transitions(self, table: Tensor | None) -> Self:
        """A copy with a model's learnt table of transitions (`Transitions`). Only tagging uses one."""
        return self


def mean_output(outputs: Sequence[Tensor]) -> Tensor:
    """The mean over windows. A single window's output is returned as it is, to the bit."""
    return outputs[0] if len(outputs) == 1 else torch.stack(list(outputs)).mean(0)
