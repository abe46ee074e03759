"""Any number of labels for a text."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hmi.core import Task
from hmi.model.batching import Encoded
from hmi.model.tasks.base import Answer, TaskKind, mean_output


@dataclass(frozen=True)
class MultiLabel(TaskKind):
    """A sigmoid for each label. The answer has the labels that reach the threshold, possibly none."""

    name: ClassVar[Task] = "multilabel"

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        return mean_output(outputs)

    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        every = dict(zip(self.labels, merged.sigmoid().tolist(), strict=True))
        given = sorted(((n, p) for n, p in every.items() if p >= self.rules.threshold), key=lambda x: -x[1])
        return Answer(labels=given, scores=every if scores else None)
