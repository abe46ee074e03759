"""A teacher for few rows: a logistic regression on a source's embeddings of the rows.

Some twenty rows do not suffice to fine-tune an encoder by their labels, but its embeddings already tell much
apart, more so after the encoder was tuned to contrast the rows (SetFit, Tunstall et al., 2022). For pairs of
texts the source stays frozen: their labels do not say that two texts are alike.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.model.tagging import Floats
from hmi.model.tasks.sequence import Classification
from hmi.training.contrasting import Embedder
from hmi.training.headline import headline
from hmi.training.objectives import objective_of
from hmi.training.recipe import HELD_OUT
from hmi.training.reports import PhaseReport
from hmi.training.said import Said
from hmi.training.teachers import REPORT_EVERY, TeacherSource, TextLesson

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of regularisation to choose from; embeddings have length 1."""
CONTRASTED_STRENGTH = 10.0
"""The strength for a contrasted source. Cross-validation cannot choose it: the source has seen all rows."""
FOLDS = 5


def can_probe(lesson: TextLesson) -> bool:
    """Return whether a probe can learn the lesson: rows have one label of several, and texts are not read in
    windows."""
    one_label = isinstance(lesson.task, Classification) and not lesson.task.rules.windows
    return one_label and len({row.label for row in lesson.train}) > 1


def probe_with(
    source: TeacherSource, lesson: TextLesson, seed: int, report: PhaseReport, *, contrast: bool = True
) -> Said:
    """Fit a probe on the lesson's rows and let it answer dev and the texts. `can_probe` must hold.

    contrast: whether to tune a copy of the source before. Pairs of texts do without.

    If dev has few rows, `outside` has cross-validated answers to the training rows. They are the frozen
    source's even if it is contrasted: an encoder that was tuned on all rows says nothing about rows that it
    has not seen. `score` is that of dev, or of these. Raises InvalidData (diverged).
    """
    begun, task = time.process_time(), lesson.task
    embed, contrast = Embedder(source, lesson.max_length), contrast and not task.paired
    regression = _Regression.of(lesson)
    outside: list[Tensor] | None = None
    strength = CONTRASTED_STRENGTH
    if not contrast or len(lesson.dev) < HELD_OUT.enough:
        strengths = (CONTRASTED_STRENGTH,) if contrast else STRENGTHS
        strength, outside = regression.chosen(embed(lesson.train), strengths)
    if contrast:
        embed.contrast(
            lesson.train,
            regression.labels.tolist(),
            seed,
            lambda step, total, loss: report("training a teacher", step, total, loss),
        )
    model = regression.fitted(embed(lesson.train), regression.labels, strength)
    dev, texts = regression.answers(model, embed(lesson.dev)), list[Tensor]()
    for at in range(0, len(lesson.texts), REPORT_EVERY):
        texts += regression.answers(model, embed(lesson.texts[at : at + REPORT_EVERY]))
        report("labelling texts", len(texts), len(lesson.texts), None)
    if len(lesson.dev) >= HELD_OUT.enough:
        outside = None
    score = objective_of(task).score(
        [row.label for row in (lesson.train if outside else lesson.dev)], outside or dev
    )
    return Said(source.name, task, dev, texts, headline(score), time.process_time() - begun, outside)


@dataclass(frozen=True)
class _Regression:
    """The logistic regression of a lesson: its rows' labels int64 [rows], the number of labels that the task
    has, and the weights of the labels that rows have."""

    labels: NDArray[np.int64]
    count: int
    weights: dict[int, float] | None

    @classmethod
    def of(cls, lesson: TextLesson) -> _Regression:
        names = lesson.task.labels
        labels = np.array([names.index(str(row.label)) for row in lesson.train])
        weights = lesson.weights and {label: lesson.weights[label] for label in set(labels.tolist())}
        return cls(labels, len(names), weights or None)

    def chosen(self, rows: Floats, strengths: Sequence[float]) -> tuple[float, list[Tensor]]:
        """The strength with the likeliest answers in cross-validation, and these answers for each row.

        A label with one row is unknown where that row is left out.
        """
        from sklearn.model_selection import KFold  # imported here, since it takes a second

        best: tuple[float, float, list[Tensor]] = (-math.inf, strengths[0], [])
        for strength in strengths:
            outside = [torch.empty(0)] * len(rows)
            for train, held in KFold(min(FOLDS, len(rows)), shuffle=True, random_state=0).split(rows):
                answers = self._outside(rows[train], self.labels[train], rows[held], strength)
                for i, answer in zip(held, answers, strict=True):
                    outside[i] = answer
            likelihood = float(sum(answer[label] for answer, label in zip(outside, self.labels, strict=True)))
            best = max(best, (likelihood, strength, outside), key=lambda found: found[0])
        return best[1], best[2]

    def _outside(
        self, rows: Floats, labels: NDArray[np.int64], held: Floats, strength: float
    ) -> list[Tensor]:
        if len(set(labels.tolist())) == 1:  # there is nothing to fit
            only = torch.full((self.count,), UNLIKELY)
            only[labels[0]] = 0.0
            return [only] * len(held)
        return self.answers(self.fitted(rows, labels, strength), held)

    def fitted(self, rows: Floats, labels: NDArray[np.int64], strength: float) -> Any:
        """A regression on these rows [rows, dim] and labels [rows], of at least two kinds."""
        from sklearn.linear_model import LogisticRegression

        present = set(labels.tolist())
        weights = self.weights and {label: self.weights[label] for label in present}
        return LogisticRegression(C=strength, max_iter=2_000, class_weight=weights).fit(rows, labels)

    def answers(self, model: Any, rows: Floats) -> list[Tensor]:
        """The log-probabilities of all labels for each row. A label without rows is unlikely."""
        if not len(rows):
            return []
        out = np.full((len(rows), self.count), UNLIKELY)
        out[:, model.classes_] = np.maximum(model.predict_log_proba(rows), UNLIKELY)
        return list(torch.from_numpy(out).float().log_softmax(-1))


UNLIKELY = math.log(1e-6)
