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
from scipy.special import log_softmax
from torch import Tensor

from hmi.model.tags.tagging import Floats
from hmi.model.tasks.sequence import Classification
from hmi.training.fit.reports import PhaseReport
from hmi.training.plans.recipe import HELD_OUT
from hmi.training.second.contrasting import Embedder
from hmi.training.second.teacher_outputs import TeacherOutputs
from hmi.training.second.teachers import REPORT_EVERY, TeacherSource, TextLesson
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import objective_of

STRENGTHS = (1.0, 10.0, 100.0)
"""Inverse strengths of regularisation to choose from; embeddings have length 1."""
CONTRASTED_STRENGTH = 10.0
"""The strength for a contrasted source. Cross-validation cannot choose it: the source has seen all rows."""
FOLDS = 5
STEPS, FLAT = 2_000, 1e-4
"""The most steps of L-BFGS, and the slope at which it ends."""
UNLIKELY = math.log(1e-6)
"""The least log-probability of a label."""


def can_probe(lesson: TextLesson) -> bool:
    """Return whether a probe can learn the lesson: rows have one label of several, and texts are not read in
    windows."""
    one_label = isinstance(lesson.task, Classification) and not lesson.task.rules.windows
    return one_label and len({row.label for row in lesson.train}) > 1


def probe_with(
    source: TeacherSource, lesson: TextLesson, seed: int, report: PhaseReport, *, contrast: bool = True
) -> TeacherOutputs:
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
    probe = fitted(embed(lesson.train), regression.labels, strength, regression.weights)
    dev, texts = probe.answers(embed(lesson.dev), regression.count), list[Tensor]()
    for at in range(0, len(lesson.texts), REPORT_EVERY):
        texts += probe.answers(embed(lesson.texts[at : at + REPORT_EVERY]), regression.count)
        report("labelling texts", len(texts), len(lesson.texts), None)
    if len(lesson.dev) >= HELD_OUT.enough:
        outside = None
    score = objective_of(task).score(
        [row.label for row in (lesson.train if outside else lesson.dev)], outside or dev
    )
    return TeacherOutputs(
        source.name, task, dev, texts, headline(score), time.process_time() - begun, outside
    )


@dataclass(frozen=True)
class Probe:
    """A logistic regression."""

    known: NDArray[np.int64]
    """The labels that its rows had, ascending."""
    solved: NDArray[np.float64]
    """[known labels, dim + 1]: the map to their logits, and its bias."""

    def answers(self, rows: Floats, count: int) -> list[Tensor]:
        """Return the log-probabilities of all `count` labels, fp32, for each of rows [rows, dim]. A label
        without rows is unlikely."""
        if not len(rows):
            return []
        out = np.full((len(rows), count), UNLIKELY)
        out[:, self.known] = np.maximum(log_softmax(_logits(rows, self.solved), axis=1), UNLIKELY)
        return list(torch.from_numpy(out).float().log_softmax(-1))


def _logits(rows: NDArray[np.floating[Any]], solved: NDArray[np.float64]) -> NDArray[np.float64]:
    return rows @ solved[:, :-1].T + solved[:, -1]


def fitted(
    rows: Floats, labels: NDArray[np.int64], strength: float, weights: Sequence[float] | None = None
) -> Probe:
    """Fit a probe: it minimises strength · the sum of the rows' losses + ‖map‖² / 2. The bias has no penalty.

    rows [rows, dim]; labels int64 [rows], of at least two kinds; weights: that of each label, None for 1.
    """
    from scipy.optimize import minimize  # imported here, since it takes a part of a second

    known, own = np.unique(labels, return_inverse=True)
    heavy = np.ones(len(rows)) if weights is None else np.array(weights)[labels]
    mine, right, x = heavy / heavy.sum(), np.eye(len(known))[own], rows.astype(np.float64)
    # Two labels have one map between them, as opposite halves: their squares are half of its square.
    penalty = (2 if len(known) == 2 else 1) / (strength * heavy.sum())

    def loss(flat: NDArray[np.float64]) -> tuple[float, NDArray[np.float64]]:
        solved = flat.reshape(len(known), -1)
        logs = log_softmax(_logits(x, solved), axis=1)
        off = mine[:, None] * (np.exp(logs) - right)
        slope = np.hstack([off.T @ x + penalty * solved[:, :-1], off.sum(0)[:, None]])
        value = penalty / 2 * np.square(solved[:, :-1]).sum() - mine @ logs[right > 0]
        return float(value), slope.ravel()

    start = np.zeros(len(known) * (x.shape[1] + 1))
    options = {"maxiter": STEPS, "gtol": FLAT, "ftol": 64 * np.finfo(float).eps}
    found = minimize(loss, start, jac=True, method="L-BFGS-B", options=options)
    return Probe(known, found.x.reshape(len(known), -1))


@dataclass(frozen=True)
class _Regression:
    """The logistic regression of a lesson: its rows' labels int64 [rows], the number of labels that the task
    has, and the weight of each."""

    labels: NDArray[np.int64]
    count: int
    weights: Sequence[float] | None

    @classmethod
    def of(cls, lesson: TextLesson) -> _Regression:
        names = lesson.task.labels
        return cls(
            np.array([names.index(str(row.label)) for row in lesson.train]), len(names), lesson.weights
        )

    def chosen(self, rows: Floats, strengths: Sequence[float]) -> tuple[float, list[Tensor]]:
        """The strength with the likeliest answers in cross-validation, and these answers for each row.

        A label with one row is unknown where that row is left out.
        """
        order = np.random.RandomState(0).permutation(len(rows))  # as earlier releases divided rows
        best: tuple[float, float, list[Tensor]] = (-math.inf, strengths[0], [])
        for strength in strengths:
            outside = [torch.empty(0)] * len(rows)
            for held in np.array_split(order, min(FOLDS, len(rows))):
                train = np.setdiff1d(order, held)
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
        return fitted(rows, labels, strength, self.weights).answers(held, self.count)
