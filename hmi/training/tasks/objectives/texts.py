"""The objectives of tasks that judge whole texts or pairs: one label, any number of labels, a number."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any, ClassVar

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.core import TaskRules
from hmi.errors import InvalidData
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tasks.regression import Regression
from hmi.model.tasks.sequence import Classification, Pair
from hmi.model.tenant.calibration import Floats
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold, SoftLabel, checked_labels, refuse_many
from hmi.training.tasks.calibration import ModelDecisions
from hmi.training.tasks.objectives.base import MAX_WEIGHT, TaskObjective, balanced
from hmi.training.tasks.scoring import calibration, rank_correlation, score_labels, score_sets, score_values


@dataclass(frozen=True)
class RegressionObjective(TaskObjective[Regression]):
    """Regression. Targets are in units of the training rows' standard deviation, around their mean."""

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> Regression:
        values = np.array([_number(g) for g in golds])
        centre, spread = float(values.mean()), float(values.std())
        if values.min() == values.max():
            raise InvalidData(
                f"every row of {field} has the value {centre:g}: there is nothing to learn", field=field
            )
        return Regression((), TaskRules(centre=centre, spread=spread, paired=paired))

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        return [[(_number(gold) - self.task.rules.centre) / self.task.rules.spread] for _ in windows]

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        return F.mse_loss(logits, torch.tensor(targets))

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        got = [float(m[0]) * self.task.rules.spread + self.task.rules.centre for m in merged]
        return score_values([_number(g) for g in golds], got, self.task.rules.centre)

    def parts(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Floats:
        """Each row's right value and answer."""
        return np.array([(_number(g), float(m[0])) for g, m in zip(golds, merged, strict=True)])

    @classmethod
    def score_of_parts(cls, parts: Floats) -> float:
        """Spearman's correlation, which is no quotient of sums."""
        return rank_correlation(parts[:, 0], parts[:, 1])

    def chance(self, golds: Sequence[Gold]) -> float:
        """0, since a constant correlates with nothing."""
        return 0.0


def _number(gold: Gold) -> float:
    assert isinstance(gold, float)
    return gold


_THRESHOLDS = tuple(t / 100 for t in range(20, 81, 5))
_MIN_ROWS_TO_CHOOSE = 50
"""With fewer held-out rows the threshold stays at 0.5, since the best one would be chance."""


@dataclass(frozen=True)
class MultiLabelObjective(TaskObjective[MultiLabel]):
    """Multi-label classification. The threshold is tuned on held-out rows."""

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> MultiLabel:
        counts = Counter(label for gold in golds for label in _labels_in(gold))
        if not any(0 < count < len(golds) for count in counts.values()):
            raise InvalidData(
                f"every row of {field} has the same labels ({_listed(counts)}): a model needs rows "
                "with and rows without a label",
                field=field,
            )
        refuse_many(len(counts), field)
        return MultiLabel(tuple(sorted(counts)))

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        mine = set(_labels_in(gold))
        return [[float(label in mine) for label in self.task.labels] for _ in windows]

    @classmethod
    def loss(cls, logits: Tensor, targets: Sequence[Sequence[float]], weights: Tensor | None) -> Tensor:
        return F.binary_cross_entropy_with_logits(logits, torch.tensor(targets), pos_weight=weights)

    @classmethod
    def weights(cls, targets: Sequence[Sequence[float]], outputs: int) -> Tensor:
        """Each label's weight: rows without it ÷ rows with it, between 1 and MAX_WEIGHT."""
        has = torch.tensor(targets).sum(0)
        return ((len(targets) - has) / has.clamp(min=1)).clamp(1.0, MAX_WEIGHT)

    def score(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> dict[str, Any]:
        gold, sure = self._table(golds, merged)
        given = sure >= self.task.rules.threshold
        return {
            **score_sets(gold, given, self.task.labels),
            "threshold": self.task.rules.threshold,
            # Over all rows and labels: how often a label with probability p is right.
            "calibration": calibration(sure.ravel().tolist(), gold.ravel().tolist()),
        }

    def parts(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> Floats:
        """Return a row's parts of micro F1: twice the right labels; the labels given plus the golds."""
        gold, sure = self._table(golds, merged)
        given = sure >= self.task.rules.threshold
        both, either = (gold & given).sum(1), gold.sum(1) + given.sum(1)
        return np.stack([2.0 * both, either], 1)

    def decisions(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> ModelDecisions:
        """One for each label of each row: a sigmoid is a softmax of (0, logit)."""
        gold, _ = self._table(golds, merged)
        z = torch.stack(list(merged)).double().numpy()
        logits = np.stack([np.zeros(z.size), z.ravel()], 1)
        rows = np.repeat(np.arange(len(z)), z.shape[1])
        return ModelDecisions(logits, gold.ravel().astype(np.int64), np.ones(z.size, np.int64), rows)

    def tuned(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> MultiLabel:
        """The task with the threshold of the best micro F1; among equals, the one nearest to 0.5."""
        if len(golds) < _MIN_ROWS_TO_CHOOSE:
            return self.task
        gold, sure = self._table(golds, merged)
        best = max(
            _THRESHOLDS,
            key=lambda t: (score_sets(gold, sure >= t, self.task.labels)["micro_f1"], -abs(t - 0.5)),
        )
        return replace(self.task, rules=self.task.rules.model_copy(update={"threshold": best}))

    def chance(self, golds: Sequence[Gold]) -> float:
        """Micro F1 of answering every row with the k commonest labels, for the best k."""
        counts = Counter(label for gold in golds for label in _labels_in(gold) if label in self.task.labels)
        most = list(accumulate(n for _, n in counts.most_common()))
        scores = (2 * hits / (k * len(golds) + counts.total()) for k, hits in enumerate(most, 1))
        return max(scores, default=0.0)

    def unknown(self, gold: Gold) -> set[str]:
        return set(_labels_in(gold)) - set(self.task.labels)

    def _table(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> tuple[Any, Any]:
        """Right labels, bool [rows, labels], and probabilities [rows, labels]."""
        gold = np.array([[label in _labels_in(g) for label in self.task.labels] for g in golds])
        return gold, torch.stack(list(merged)).sigmoid().numpy()


def _labels_in(gold: Gold) -> tuple[str, ...]:
    assert isinstance(gold, tuple)
    return gold


def _listed(counts: Counter[str]) -> str:
    if not counts:
        return "no row has any"
    return ", ".join(f"{label!r} is on all" for label, _ in counts.most_common(3))


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
