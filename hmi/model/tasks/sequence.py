"""One label for a text, or for a pair of texts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import Task
from hmi.model.batching import Encoded
from hmi.model.golds import Gold, Odds, checked_labels
from hmi.model.scoring import calibration, score_labels
from hmi.model.tasks.base import Answer, TaskKind, balanced, mean_output


@dataclass(frozen=True)
class Classification(TaskKind):
    """Softmax over the labels; of a long text, over the mean of its windows' logits."""

    name: ClassVar[Task] = "classification"

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Self:
        return cls(tuple(sorted(checked_labels(golds, field))))

    @property
    def outputs(self) -> int:
        return len(self.labels)

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        """The label's index; of odds a probability for each label."""
        if isinstance(gold, Odds):
            odds = dict(gold.each)
            return [[odds.get(label, 0.0) for label in self.labels]] * len(windows)
        return [[self.labels.index(str(gold))] for _ in windows]

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        """Cross-entropy. Odds are not weighed: their teacher learnt with these weights."""
        if all(len(t) == 1 for t in targets):
            return F.cross_entropy(logits, torch.tensor([int(t[0]) for t in targets]), weights)
        sure = torch.eye(logits.shape[-1]) if weights is None else weights.diag()
        odds = torch.stack([sure[int(t[0])] if len(t) == 1 else torch.tensor(t) for t in targets])
        return -(odds * logits.log_softmax(-1)).sum() / odds.sum()

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        return balanced((t[0] for t in targets), outputs)

    def merge(self, outputs: Sequence[Tensor], windows: Sequence[Encoded], words: int) -> Tensor:
        return mean_output(outputs)

    def answer(self, merged: Tensor, *, scores: bool = False) -> Answer:
        probabilities = merged.softmax(-1)
        best = int(probabilities.argmax())
        every = dict(zip(self.labels, probabilities.tolist(), strict=True)) if scores else None
        return Answer(label=self.labels[best], score=float(probabilities[best]), scores=every)

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        answers = [self.answer(m) for m in merged]
        got = [a.label or "" for a in answers]
        right = [g == p for g, p in zip(golds, got, strict=True)]
        return {
            **score_labels([str(g) for g in golds], got, self.labels),
            "calibration": calibration([a.score or 0.0 for a in answers], right),
        }

    def chance(self, golds: Sequence[Gold]) -> float:
        """The commonest label's share of the rows."""
        return max(Counter(map(str, golds)).values(), default=0) / max(1, len(golds))

    def unknown(self, gold: Gold) -> set[str]:
        return {str(gold)} - set(self.labels)


@dataclass(frozen=True)
class Pair(Classification):
    """One label for a pair of texts."""

    name: ClassVar[Task] = "pair"

    @property
    def paired(self) -> bool:
        return True
