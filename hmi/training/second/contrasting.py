"""Embeds texts by a source, and tunes a copy of it so that rows of one label lie near each other.

From few rows an encoder learns more this way than from their labels alone, since every pair of rows is an
example (SetFit, Tunstall et al., 2022, section 3). Here all rows of a batch are compared with each other,
which takes fewer passes through the encoder than pairs that are drawn.
"""

from __future__ import annotations

import math
import random
from collections.abc import Iterator, Sequence

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from hmi.model.tags.tagging import Floats
from hmi.model.text.batching import READ_TOKENS, STEP_TOKENS, in_parts, length_grouped
from hmi.model.text.tokenizer import Text
from hmi.training.data.rows import Row
from hmi.training.fit.backbones import Backbone, Examples
from hmi.training.fit.optimisers import AdamW
from hmi.training.fit.precision import arithmetic
from hmi.training.fit.reports import StepReport
from hmi.training.fit.trainer import diverged
from hmi.training.plans.recipe import RECIPE
from hmi.training.second.teachers import KEPT_BYTES, TeacherSource

BATCH, LR, WARM_UP = 16, 2e-5, 0.1
"""These are SetFit's."""
LEAST_STEPS, PASSES = 60, 6
"""Each row is seen PASSES times, or more often if these are fewer than LEAST_STEPS batches. Twice as many
steps gained nothing on dev (docs/design/0024-better-by-itself.md)."""
AT_ONCE = 64
"""Texts that are embedded at once."""


class Embedder:
    """Embeds texts by a source of its own: the mean of a text's last states, scaled to length 1."""

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
        steps = max(LEAST_STEPS, PASSES * len(rows) // BATCH)
        for step, batch in enumerate(_batches(len(rows), steps, random.Random(seed))):
            warm, left = min(1.0, (step + 1) / (WARM_UP * steps)), 1 - step / steps
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
        for batch in length_grouped(examples.lengths, AT_ONCE, None):
            for rows in in_parts(batch, examples.lengths, READ_TOKENS):
                out[rows] = self._means(examples, rows, 0.0).numpy()
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
    """Yield `steps` batches of BATCH row indices. Every row comes equally often."""
    left: list[int] = []
    for _ in range(steps):
        while len(left) < min(BATCH, count):
            left += rng.sample(range(count), count)
        batch, left = left[:BATCH], left[BATCH:]
        yield batch
