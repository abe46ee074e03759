"""A vector for a text, by the convention of the root's authors. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from hmi.core import Task
from hmi.model.tasks.base import InputAnswer, TaskKind
from hmi.model.text.batching import Encoded


@dataclass(frozen=True)
class Embedding(TaskKind):
    """The mean of the last layer's rows or its [CLS] row, by the root's convention scaled to length 1."""

    name: ClassVar[Task] = "embedding"

    @property
    def windowed(self) -> bool:
        return False

    @property
    def outputs(self) -> int:
        return 0

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        (only,) = outputs
        return only

    def answer(
        self, merged: Tensor, *, scores: bool = False, temperature: float | None = None
    ) -> InputAnswer:
        vector = F.normalize(merged, dim=-1) if self.rules.normalise else merged
        return InputAnswer(embedding=vector.tolist())
