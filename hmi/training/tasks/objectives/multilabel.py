"""The objective for any number of labels on a text: binary cross-entropy for each label."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import accumulate
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.errors import InvalidData
from hmi.model.tasks.multilabel import MultiLabel
from hmi.model.tenant.calibration import Floats
from hmi.model.text.batching import Encoded
from hmi.training.data.golds import Gold, refuse_many
from hmi.training.tasks.calibration import ModelDecisions
from hmi.training.tasks.objectives.base import MAX_WEIGHT, TaskObjective
from hmi.training.tasks.scoring import calibration, score_sets

THRESHOLDS = tuple(t / 100 for t in range(20, 81, 5))
MIN_ROWS_TO_CHOOSE = 50
"""With fewer held-out rows the threshold stays at 0.5, since the best one would be chance."""


@dataclass(frozen=True)
class MultiLabelObjective(TaskObjective[MultiLabel]):
    """Multi-label classification. The threshold is tuned on held-out rows."""

    @classmethod
    def learn(cls, golds: Sequence[Gold], *, paired: bool, field: str) -> MultiLabel:
        counts = Counter(label for gold in golds for label in labels_in(gold))
        if not any(0 < count < len(golds) for count in counts.values()):
            raise InvalidData(
                f"every row of {field} has the same labels ({_listed(counts)}): a model needs rows "
                "with and rows without a label",
                field=field,
            )
        refuse_many(len(counts), field)
        return MultiLabel(tuple(sorted(counts)))

    def targets(self, gold: Gold, windows: Sequence[Encoded]) -> list[list[float]]:
        mine = set(labels_in(gold))
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
        if len(golds) < MIN_ROWS_TO_CHOOSE:
            return self.task
        gold, sure = self._table(golds, merged)
        best = max(
            THRESHOLDS,
            key=lambda t: (score_sets(gold, sure >= t, self.task.labels)["micro_f1"], -abs(t - 0.5)),
        )
        return replace(self.task, rules=self.task.rules.model_copy(update={"threshold": best}))

    def chance(self, golds: Sequence[Gold]) -> float:
        """Micro F1 of answering every row with the k commonest labels, for the best k."""
        counts = Counter(label for gold in golds for label in labels_in(gold) if label in self.task.labels)
        most = list(accumulate(n for _, n in counts.most_common()))
        scores = (2 * hits / (k * len(golds) + counts.total()) for k, hits in enumerate(most, 1))
        return max(scores, default=0.0)

    def unknown(self, gold: Gold) -> set[str]:
        return set(labels_in(gold)) - set(self.task.labels)

    def _table(self, golds: Sequence[Gold], merged: Sequence[Tensor]) -> tuple[Any, Any]:
        """Right labels, bool [rows, labels], and probabilities [rows, labels]."""
        gold = np.array([[label in labels_in(g) for label in self.task.labels] for g in golds])
        return gold, torch.stack(list(merged)).sigmoid().numpy()


def labels_in(gold: Gold) -> tuple[str, ...]:
    assert isinstance(gold, tuple)
    return gold


def _listed(counts: Counter[str]) -> str:
    if not counts:
        return "no row has any"
    return ", ".join(f"{label!r} is on all" for label, _ in counts.most_common(3))
