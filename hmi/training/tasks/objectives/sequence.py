"""The objective for one label for a text or a pair of texts: cross-entropy."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.model.tasks.sequence import Classification, Pair
from hmi.model.tenant.calibration import Floats
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold, SoftLabel, checked_labels
from hmi.training.tasks.calibration import ModelDecisions
from hmi.training.tasks.objectives.base import TaskObjective, balanced
from hmi.training.tasks.scoring import calibration, score_labels


@dataclass(frozen=True)
class ClassificationObjective(TaskObjective[Classification]):
    """Classification, also with the soft labels of a teacher."""

    kind: ClassVar[type[Classification]] = Classification

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Classification:
        return cls.kind(tuple(sorted(checked_labels(golds, field))))

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        """The label's index, or for a soft label the probability of each label."""
        if isinstance(gold, SoftLabel):
            soft = dict(gold.each)
            return [[soft.get(label, 0.0) for label in self.task.labels]] * len(windows)
        return [[self.task.labels.index(str(gold))] for _ in windows]

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        """Cross-entropy. Soft labels are not weighted, since their teacher was trained with the weights."""
        if all(len(t) == 1 for t in targets):
            return F.cross_entropy(logits, torch.tensor([int(t[0]) for t in targets]), weights)
        hard = torch.eye(logits.shape[-1]) if weights is None else weights.diag()
        soft = torch.stack([hard[int(t[0])] if len(t) == 1 else torch.tensor(t) for t in targets])
        return -(soft * logits.log_softmax(-1)).sum() / soft.sum()

    @classmethod
    def mass(cls, targets: Sequence[Sequence[float]], weights: Tensor | None) -> float:
        """The sum of the labels' weights and of the soft labels' probabilities."""
        hard = [1.0 if weights is None else float(weights[int(t[0])]) for t in targets if len(t) == 1]
        return math.fsum(hard) + math.fsum(share for t in targets if len(t) != 1 for share in t)

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        return balanced((t[0] for t in targets), outputs)

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        answers = [self.task.answer(m) for m in merged]
        got = [a.label or "" for a in answers]
        right = [g == p for g, p in zip(golds, got, strict=True)]
        return {
            **score_labels([str(g) for g in golds], got, self.task.labels),
            "calibration": calibration([a.score or 0.0 for a in answers], right),
        }

    def parts(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Floats:
        right = [g == self.task.answer(m).label for g, m in zip(golds, merged, strict=True)]
        return np.stack([np.array(right, np.float64), np.ones(len(golds))], 1)

    def decisions(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> ModelDecisions:
        at = {label: i for i, label in enumerate(self.task.labels)}
        logits = torch.stack(list(merged)).double().numpy()
        gold = np.array([at.get(str(g), -1) for g in golds], np.int64)
        return ModelDecisions(logits, gold, logits.argmax(-1), np.arange(len(gold)))

    def chance(self, golds: Sequence[Gold]) -> float:
        """The commonest label's share of the rows."""
        return max(Counter(map(str, golds)).values(), default=0) / max(1, len(golds))

    def unknown(self, gold: Gold) -> set[str]:
        return {str(gold)} - set(self.task.labels)


@dataclass(frozen=True)
class PairObjective(ClassificationObjective):
    """Classification of pairs of texts."""

    kind = Pair
