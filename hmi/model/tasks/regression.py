"""A number for a text, or for a pair of texts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from hmi.core import Task
from hmi.model.tasks.base import InputAnswer, TaskKind, mean_output
from hmi.model.text.batching import Encoded


@dataclass(frozen=True)
class Regression(TaskKind):
    """The output is standardised by the training rows' mean and spread; answers are in the rows' units."""

    name: ClassVar[Task] = "regression"

    @property
    def outputs(self) -> int:
        return 1

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        return mean_output(outputs)

    def answer(
        self, merged: Tensor, *, scores: bool = False, temperature: float | None = None
    ) -> InputAnswer:
        return InputAnswer(value=float(merged[0]) * self.rules.spread + self.rules.centre)
