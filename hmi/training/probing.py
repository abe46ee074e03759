"""A teacher for few rows: a logistic regression on a source's embeddings of the rows.

Some twenty rows do not suffice to fine-tune an encoder by their labels, but its embeddings already tell much
apart, more so after the encoder was tuned to contrast the rows (SetFit, Tunstall et al., 2022). For pairs of
texts the source stays frozen: their labels do not say that two texts are alike.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.model.tasks.sequence import Classification
from hmi.training.contrasting import Embedder, Floats
from hmi.training.headline import headline
from hmi.training.objectives import objective_of
from hmi.training.reports import PhaseReport
from hmi.training.said import Said
from hmi.training.teachers import REPORT_EVERY, TeacherSource, TextLesson

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of regularisation to choose from; embeddings have length 1."""
FOLDS = 5
TUNED_STRENGTH = 10.0
"""The strength for embeddings of a contrasted source. They hold the rows' own labels, so cross-validation
cannot choose it."""


def can_probe(lesson: TextLesson) -> bool:
    """Return whether a probe can learn the lesson: each row has one label, and each label two rows."""
    counts = Counter(row.label for row in lesson.train)
    return isinstance(lesson.task, Classification) and min(counts.values()) >= 2


def probe_with(
    source: TeacherSource, lesson: TextLesson, seed: int, report: PhaseReport, *, contrast: bool = True
) -> Said:
    """Fit a probe on the lesson's rows and let it answer dev and the texts. `can_probe` must hold.

    contrast: whether to tune a copy of the source before, which pairs of texts do without.

    `score` and `outside` are those of the frozen source in cross-validation on the training rows: dev has few
    rows here, and an encoder that was tuned on all rows says nothing about rows that it has not seen.
    """
    begun, task = time.process_time(), lesson.task
    embed = Embedder(source, lesson.max_length)
    labels = np.array([task.labels.index(str(row.label)) for row in lesson.train])
    strength, outside = _chosen(embed(lesson.train), labels)
    if contrast and not task.paired:
        embed.contrast(
            lesson.train,
            labels.tolist(),
            seed,
            lambda step, total, loss: report("training a teacher", step, total, loss),
        )
        strength = TUNED_STRENGTH
    model = _fitted(embed(lesson.train), labels, strength)
    texts: list[Tensor] = []
    for at in range(0, len(lesson.texts), REPORT_EVERY):
        some = embed(lesson.texts[at : at + REPORT_EVERY])
        texts += _answers(model, some, len(task.labels))
        report("labelling texts", len(texts), len(lesson.texts), None)
    golds = [row.label for row in lesson.train]
    return Said(
        source.name,
        task,
        _answers(model, embed(lesson.dev), len(task.labels)),
        texts,
        headline(objective_of(task).score(golds, outside)),
        time.process_time() - begun,
        outside,
    )


def _chosen(rows: Floats, labels: NDArray[np.int64]) -> tuple[float, list[Tensor]]:
    """The strength with the likeliest answers in cross-validation, and these answers for each row."""
    from sklearn.model_selection import StratifiedKFold  # imported here, since it takes a second

    folds = min(FOLDS, min(Counter(labels.tolist()).values()))
    best: tuple[float, float, list[Tensor]] = (-math.inf, 0.0, [])
    count = int(labels.max()) + 1
    for strength in STRENGTHS:
        outside = [torch.empty(0)] * len(labels)
        for train, held in StratifiedKFold(folds, shuffle=True, random_state=0).split(rows, labels):
            model = _fitted(rows[train], labels[train], strength)
            for i, answer in zip(held, _answers(model, rows[held], count), strict=True):
                outside[i] = answer
        likelihood = float(sum(answer[label] for answer, label in zip(outside, labels, strict=True)))
        best = max(best, (likelihood, strength, outside), key=lambda found: found[0])
    return best[1], best[2]


def _fitted(rows: Floats, labels: NDArray[np.int64], strength: float) -> Any:
    from sklearn.linear_model import LogisticRegression

    return LogisticRegression(C=strength, max_iter=2_000).fit(rows, labels)


def _answers(model: Any, rows: Floats, count: int) -> list[Tensor]:
    """The log-probabilities of all labels for each row. A label that the model has not seen is unlikely."""
    if not len(rows):
        return []
    out = np.full((len(rows), count), math.log(1e-6))
    out[:, model.classes_] = np.maximum(model.predict_log_proba(rows), math.log(1e-6))
    return list(torch.from_numpy(out).float().log_softmax(-1))
