"""A teacher for few rows: a frozen source, and a logistic regression on its embeddings of the rows.

Some twenty rows do not suffice to tune an encoder, but its embeddings already tell much apart (as in SetFit,
Tunstall et al., 2022, whose last step this is). The regression's strength is chosen by cross-validation.
"""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from hmi.model.batching import Encoded, length_grouped, pad_ids
from hmi.model.tasks.sequence import Classification
from hmi.model.tokenizer import Text
from hmi.training.data.rows import Row
from hmi.training.headline import headline
from hmi.training.objectives import objective_of
from hmi.training.precision import arithmetic
from hmi.training.reports import PhaseReport
from hmi.training.said import Said
from hmi.training.teachers import TeacherSource, TextLesson

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of regularisation to choose from; embeddings have length 1."""
FOLDS = 5
AT_ONCE = 64
"""Texts that are embedded at once."""

Floats = NDArray[np.float32]


def can_probe(lesson: TextLesson) -> bool:
    """Return whether a probe can learn the lesson: each row has one label, and each label two rows."""
    counts = Counter(row.label for row in lesson.train)
    return isinstance(lesson.task, Classification) and min(counts.values()) >= 2


def probe_with(source: TeacherSource, lesson: TextLesson, report: PhaseReport) -> Said:
    """Fit a probe on the lesson's rows and let it answer dev and the texts. `can_probe` must hold.

    `score` is that of cross-validation on the training rows, since dev has few rows here.
    """
    begun = time.process_time()
    rows = embedded(source, lesson.train, lesson.max_length)
    labels = np.array([lesson.task.labels.index(str(row.label)) for row in lesson.train])
    strength, outside = _chosen(rows, labels)
    model = _fitted(rows, labels, strength)
    golds = [row.label for row in lesson.train]
    texts: list[Tensor] = []
    for at in range(0, len(lesson.texts), 16 * AT_ONCE):
        some = embedded(source, lesson.texts[at : at + 16 * AT_ONCE], lesson.max_length)
        texts += _answers(model, some, len(lesson.task.labels))
        report("labelling texts", len(texts), len(lesson.texts), None)
    return Said(
        f"{source.name}, frozen",
        lesson.task,
        _answers(model, embedded(source, lesson.dev, lesson.max_length), len(lesson.task.labels)),
        texts,
        headline(objective_of(lesson.task).score(golds, outside)),
        time.process_time() - begun,
        outside,
    )


def embedded(source: TeacherSource, rows: Sequence[Row], max_length: int) -> Floats:
    """The embeddings of rows, fp32 [rows, dim]: mean states, scaled to length 1.

    Of a pair of texts u and v it is (abs(u - v), u * v), [rows, 2·dim].
    """
    if not rows:
        return np.empty((0, 0), np.float32)
    if not isinstance(rows[0].text, tuple):
        return _means(source, [row.text for row in rows], max_length)
    first, second = (_means(source, [row.text[side] for row in rows], max_length) for side in (0, 1))
    return np.concatenate([np.abs(first - second), first * second], 1)


@torch.inference_mode()
def _means(source: TeacherSource, texts: Sequence[Text], max_length: int) -> Floats:
    encoded: list[Encoded] = source.tokenizer.encode(texts, max_length)
    out = np.empty((len(texts), source.encoder.shape.dim), np.float32)
    for rows in length_grouped([len(text) for text in encoded], AT_ONCE, None):
        ids, types = pad_ids([encoded[i].ids for i in rows]), pad_ids([encoded[i].types for i in rows])
        mask = torch.arange(ids.shape[1])[None] < torch.tensor([len(encoded[i]) for i in rows])[:, None]
        with arithmetic(bf16=True):
            states = source.encoder(ids, mask, types).float()
        mean = (states * mask[..., None]).sum(1) / mask.sum(1, keepdim=True)
        out[rows] = torch.nn.functional.normalize(mean, dim=-1).numpy()
    return out


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
