"""Any number of labels for a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hmi.core import Task
from hmi.model.tasks.base import InputAnswer, TaskKind, mean_output
from hmi.model.text.batching import Encoded


@dataclass(frozen=True)
class MultiLabel(TaskKind):
    """A sigmoid for each label. The answer has the labels that reach the threshold, possibly none."""

    name: ClassVar[Task] = "multilabel"

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        return mean_output(outputs)

    def answer(
        self, merged: Tensor, *, scores: bool = False, temperature: float | None = None
    ) -> InputAnswer:
        """See `TaskKind.answer`. With a temperature, a label that is given may have a probability below the
        threshold, and one that is not given may have one above it."""
        every = plain = dict(zip(self.labels, merged.sigmoid().tolist(), strict=True))
        if temperature is not None:
            every = dict(zip(self.labels, (merged / temperature).sigmoid().tolist(), strict=True))
        given = [(name, every[name]) for name, p in plain.items() if p >= self.rules.threshold]
        given.sort(key=lambda pair: -plain[pair[0]])
        return InputAnswer(labels=given, scores=every if scores else None)
