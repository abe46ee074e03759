"""A teacher for few rows: a logistic regression on a source's embeddings of the rows.

Some twenty rows do not suffice to fine-tune an encoder by their labels, but its embeddings already tell much
apart, more so after the encoder was tuned to contrast the rows (SetFit, Tunstall et al., 2022). For pairs of
texts the source stays frozen: their labels do not say that two texts are alike.
"""

from __future__ import annotations

import math
import random
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.special import log_softmax
from torch import Tensor, nn
from torch.nn.functional import normalize

from hmi.errors import InvalidData
from hmi.model.tags.tagging import Floats
from hmi.model.tasks.sequence import Classification
from hmi.model.text.batching import READ_TOKENS, STEP_TOKENS, in_parts, length_grouped
from hmi.model.text.tokenizer import Text
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import Backbone, Examples
from hmi.training.fit.learner import diverged
from hmi.training.fit.optimisers import AdamW
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import PhaseReport, StepReport
from hmi.training.plans.recipe import HELD_OUT, RECIPE
from hmi.training.second.teacher_outputs import TeacherOutputs
from hmi.training.second.teachers import KEPT_BYTES, REPORT_EVERY, TeacherSource, TextLesson
from hmi.training.tasks.headline import headline
from hmi.training.tasks.objectives import objective_of

_BATCH, LR, _WARM_UP = 16, 2e-5, 0.1
"""These are SetFit's."""
_LEAST_STEPS, _PASSES = 60, 6
"""Each row is seen _PASSES times, or more often if these are fewer than _LEAST_STEPS batches. Twice as many
steps gained nothing on dev (docs/design/0024-better-by-itself.md)."""
_AT_ONCE = 64
"""Texts that are embedded at once."""


class Embedder:
    """Embeds texts by a source of its own: the mean of a text's last states, scaled to length 1.

    It also tunes its copy so that rows of one label lie near each other. From few rows an encoder learns more
    this way than from their labels alone, since every pair of rows is an example (SetFit, section 3). Here
    all rows of a batch are compared with each other, which takes fewer passes through the encoder than pairs
    that are drawn.
    """

    def __init__(self, source: TeacherSource, max_length: int) -> None:
        """`contrast` tunes a copy of the source, or the source itself if it is spare."""
        self._source, self._max_length = source, max_length
        self._backbone: Backbone = source.backbone()

    def __call__(self, rows: Sequence[Row]) -> Floats:
        """The embeddings of rows, fp32 [rows, dim]. Of a pair of texts u and v it is (abs(u - v), u * v),
        [rows, 2·dim]."""
        if not rows:
            return np.empty((0, 0), np.float32)
        if not isinstance(rows[0].text, tuple):
            return self._embedded([row.text for row in rows])
        first, second = (self._embedded([row.text[side] for row in rows]) for side in (0, 1))
        return np.concatenate([np.abs(first - second), first * second], 1)

    def contrast(self, rows: Sequence[Row], labels: Sequence[int], seed: int, report: StepReport) -> None:
        """Tune the copy on labelled single texts, of at least two labels.

        The cosine of two rows is to be 1 if they have one label, else 0. Raises InvalidData (diverged).
        """
        torch.manual_seed(seed)
        trained = self._backbone.trained
        assert trained is not None
        optimiser = AdamW(trained.parameters(), lr=LR, weight_decay=RECIPE.weight_decay, fused=True)
        examples = self._examples([row.text for row in rows], keep=KEPT_BYTES)
        targets = torch.tensor(labels)
        steps = max(_LEAST_STEPS, _PASSES * len(rows) // _BATCH)
        for step, batch in enumerate(_batches(len(rows), steps, random.Random(seed))):
            warm, left = min(1.0, (step + 1) / (_WARM_UP * steps)), 1 - step / steps
            optimiser.param_groups[0]["lr"] = LR * warm * left
            optimiser.zero_grad()
            value = self._contrasted(examples, batch, targets)
            if not math.isfinite(value):
                raise diverged(f"the loss of a teacher is {value}")
            nn.utils.clip_grad_norm_(trained.parameters(), 1.0)
            optimiser.step()
            report(step + 1, steps, value)

    @torch.inference_mode()
    def _embedded(self, texts: Sequence[Text]) -> Floats:
        examples = self._examples(texts)
        out = np.empty((len(texts), self._source.encoder.shape.dim), np.float32)
        for batch in length_grouped(examples.lengths, _AT_ONCE, None):
            for rows in in_parts(batch, examples.lengths, READ_TOKENS):
                out[rows] = self._means(examples, rows, 0.0).numpy()
        if not np.isfinite(out).all():
            raise InvalidData(f"{self._source.name} cannot teach these rows: an embedding is not finite")
        return out

    def _contrasted(self, examples: Examples, batch: Sequence[int], targets: Tensor) -> float:
        """The loss of a batch, whose gradients are added to those of the copy.

        A batch that is too large for one pass takes two: the first gives the embeddings, by which the loss
        compares all rows, and the second repeats each part with its gradient (Gao et al., 2021).
        """
        parts = list(in_parts(batch, examples.lengths, STEP_TOKENS))
        if len(parts) == 1:
            loss = contrast_loss(self._means(examples, batch, RECIPE.dropout), targets[batch])
            loss.backward()
            return loss.item()
        draws, found = list[Tensor](), list[Tensor]()
        for part in parts:
            draws.append(torch.get_rng_state())  # so that dropout draws the same in the second pass
            with torch.no_grad():
                found.append(self._means(examples, part, RECIPE.dropout))
        means = torch.cat(found).requires_grad_(True)
        loss = contrast_loss(means, targets[batch])
        loss.backward()
        assert means.grad is not None
        gradients = means.grad.split([len(part) for part in parts])
        for part, draw, gradient in zip(parts, draws, gradients, strict=True):
            torch.set_rng_state(draw)
            self._means(examples, part, RECIPE.dropout).backward(gradient)
        return loss.item()

    def _examples(self, texts: Sequence[Text], *, keep: int = 0) -> Examples:
        encoded = self._source.tokenizer.encode(texts, self._max_length)
        return self._source.examples(encoded, [[]] * len(texts), keep=keep)

    def _means(self, examples: Examples, rows: Sequence[int], dropout: float) -> Tensor:
        with arithmetic(bf16=True):
            hidden = self._backbone(examples, rows, cls_only=False, dropout=dropout)
        mask = hidden.mask[..., None].float()
        return normalize((hidden.last.float() * mask).sum(1) / mask.sum(1), dim=-1)


def contrast_loss(embedded: Tensor, labels: Tensor) -> Tensor:
    """The loss of a batch: how far pairs are from cosine 1, and other pairs from 0.

    embedded: [rows, dim], of length 1. labels: int64 [rows]. All pairs with one label count as much as all
    other pairs.
    """
    cosines = embedded @ embedded.T
    same = labels[:, None] == labels[None]
    near = (1 - cosines)[same & ~torch.eye(len(labels), dtype=torch.bool)]
    far = cosines[~same]
    return near.square().sum() / max(1, near.numel()) + far.square().sum() / max(1, far.numel())


def _batches(count: int, steps: int, rng: random.Random) -> Iterator[list[int]]:
    """Yield `steps` batches of _BATCH row indices. Every row comes equally often."""
    left: list[int] = []
    for _ in range(steps):
        while len(left) < min(_BATCH, count):
            left += rng.sample(range(count), count)
        batch, left = left[:_BATCH], left[_BATCH:]
        yield batch


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
