"""Any number of labels for a text: yes or no for each label."""

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
    """A sigmoid for each label; given are those that reach the threshold, maybe none."""

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
