"""A vector for a text, computed as the root's authors compute it. Nothing is trained."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch.nn.functional as F
from torch import Tensor

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.model.batching import Encoded
from hmi.model.golds import Gold
from hmi.model.tasks.base import Answer, TaskKind


@dataclass(frozen=True)
class Embedding(TaskKind):
    """The mean of the last layer's rows (or its [CLS] row), scaled to length 1 where the root's convention is so."""

    name: ClassVar[Task] = "embedding"

    @property
    def windowed(self) -> bool:
        return False

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Self:
        raise InvalidInput("an embedding model learns nothing from rows: leave the data out", field=field)

    @property
    def outputs(self) -> int:
        return 0

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        raise AssertionError("an embedding has no targets")

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        raise AssertionError("an embedding has no loss")

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        (only,) = outputs
        return only

    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        vector = F.normalize(merged, dim=-1) if self.rules.normalise else merged
        return Answer(embedding=vector.tolist())

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        return {}

    def chance(self, golds: Sequence[Gold]) -> float:
        return 0.0
