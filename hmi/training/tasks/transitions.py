"""Learnt scores of which tag follows which: a linear-chain conditional random field over a text's
words (Lafferty et al., 2001). Decoding adds up the scores along a path of tags, so the loss is that
of the whole path, not of each word."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from hmi_kernels.text.path_loss import path_loss
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.training.tasks.objectives.base import IGNORE, SoftTarget, likely

Words = NDArray[np.int64]
MAX_TAGS = 200
"""With more tags (a table of over 40,000 numbers), no transitions are learnt."""


class Transitions(nn.Module):
    """`table` [labels + 1, labels]: the score of each tag after each other tag; the last row is for
    the first word. It starts at zero."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(labels + 1, labels))

    def loss(self, logits: Tensor, targets: Sequence[Sequence[float]]) -> Tensor:
        """The negative log-likelihood of the right paths, divided by the number of words. Texts
        without words are ignored.

        Where words have soft targets, it is the mean over the paths that they make, each word's tag being
        drawn by itself: the cross-entropy of these paths.

        logits: fp32 [B, T, labels]; targets[i]: a tag's id or a soft target at the first token of each
        word, IGNORE at other tokens.
        """
        texts, places, tags, starts = list[int](), list[int](), list[float](), [0]
        for text, target in enumerate(targets):
            words = [i for i, tag in enumerate(target) if tag != IGNORE]
            if words:
                texts += [text] * len(words)
                places += words
                tags += [target[i] for i in words]
                starts.append(len(places))
        if not places:
            return logits.sum() * 0.0
        scores = logits[torch.tensor(texts), torch.tensor(places)]
        apply: Callable[..., Tensor] = _Paths.apply
        hard = np.array(tags, np.int64)
        loss = apply(scores, self.table, np.array(starts), hard)
        if any(isinstance(tag, SoftTarget) for tag in tags):
            of_hard, of_soft = likely(hard.tolist(), scores.shape[-1]), likely(tags, scores.shape[-1])
            loss = loss + self._score(scores, starts, of_hard) - self._score(scores, starts, of_soft)
        return loss / len(places)

    def _score(self, scores: Tensor, starts: Sequence[int], shares: Tensor) -> Tensor:
        """The mean score of the texts' paths, summed.

        shares: the probability of each word's tags, [words, labels].
        """
        before = shares.new_zeros(len(shares), len(self.table))
        before[1:, :-1] = shares[:-1]
        before[starts[:-1]] = torch.eye(len(self.table))[-1]
        return (scores * shares).sum() + (self.table * (before.T @ shares)).sum()


class _Paths(torch.autograd.Function):
    """(scores [words, labels], table, the texts' first words, tags) -> the summed loss of the right paths.

    The kernel computes loss and gradient together.
    """

    @staticmethod
    def forward(ctx: Any, scores: Tensor, table: Tensor, starts: Words, tags: Words) -> Tensor:
        found = torch.empty_like(scores), torch.empty_like(table)
        arrays = (each.detach().contiguous().numpy() for each in (scores, table))
        given, moves = arrays
        loss = path_loss(given, starts, tags, moves, found[0].numpy(), found[1].numpy())
        ctx.save_for_backward(*found)
        return torch.tensor(loss, dtype=scores.dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Tensor, Tensor, None, None]:
        of_scores, of_table = ctx.saved_tensors
        return of_scores * gradient, of_table * gradient, None, None


def learns_transitions(task: Task, labels: int, weights: object, wanted: bool | None) -> bool:
    """Return whether transitions are trained: for tagging, unless classes have weights or there are too many
    tags.

    Raises InvalidInput if they are wanted but cannot be trained.
    """
    can = task == "tagging" and weights is None and labels <= MAX_TAGS
    if wanted and not can:
        raise InvalidInput(
            f"transitions are for tagging with up to {MAX_TAGS} tags and without class weights: leave "
            "them out",
            field="options.transitions",
        )
    return can and wanted is not False
