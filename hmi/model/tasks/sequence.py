"""One label for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hmi.core import Task
from hmi.model.tasks.base import InputAnswer, TaskKind, mean_output
from hmi.model.text.batching import Encoded


@dataclass(frozen=True)
class Classification(TaskKind):
    """A softmax over the labels. A long text's logits are the mean over its windows."""

    name: ClassVar[Task] = "classification"

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        return mean_output(outputs)

    def answer(
        self, merged: Tensor, *, scores: bool = False, temperature: float | None = None
    ) -> InputAnswer:
        probabilities: list[float] = merged.softmax(-1).tolist()
        best = probabilities.index(max(probabilities))
        if temperature is not None:
            probabilities = (merged / temperature).softmax(-1).tolist()
        every = dict(zip(self.labels, probabilities, strict=True)) if scores else None
        return InputAnswer(label=self.labels[best], score=probabilities[best], scores=every)


@dataclass(frozen=True)
class Pair(Classification):
    """One label for a pair of texts."""

    name: ClassVar[Task] = "pair"

    @property
    def paired(self) -> bool:
        return True
