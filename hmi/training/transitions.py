"""Learnt scores of which tag follows which: a linear-chain conditional random field over a text's
words (Lafferty et al., 2001). The loss is that of the whole path, not of each word, since decoding
adds the scores up along a path."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.training.objectives.base import IGNORE

MOST_TAGS = 200
"""With more tags than this (a table of 40,000 numbers) each word is trained by itself."""


class Transitions(nn.Module):
    """`table` [labels + 1, labels]: what a tag gets after another, the last row at the beginning;
    zero at first."""

    def __init__(self, labels: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.zeros(labels + 1, labels))

    def loss(self, logits: Tensor, targets: Sequence[Sequence[float]]) -> Tensor:
        """The mean over words of the negative log-likelihood of the right paths; texts without
        words count nothing.

        logits fp32 [B, T, labels]; targets[i]: a tag's id at the first piece of each word, IGNORE
        at other tokens.
        """
        at = [[i for i, tag in enumerate(target) if tag != IGNORE] for target in targets]
        told = [i for i, words in enumerate(at) if words]
        if not told:
            return logits.sum() * 0.0
        most = max(len(at[i]) for i in told)
        # Padding repeats a text's last word, and is masked.
        padded = {i: at[i] + at[i][-1:] * (most - len(at[i])) for i in told}
        words = torch.tensor([*padded.values()])
        tags = torch.tensor([[int(targets[i][word]) for word in row] for i, row in padded.items()])
        mask = torch.arange(most) < torch.tensor([len(at[i]) for i in told])[:, None]
        scores = logits[torch.tensor(told)[:, None], words]
        return (self._all_paths(scores, mask) - self._path(scores, tags, mask)).sum() / mask.sum()

    def _path(self, scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The sum along each given path [B]."""
        own = scores.gather(2, tags[..., None])[..., 0]
        moves = torch.cat([self.table[-1][tags[:, :1]], self.table[tags[:, :-1], tags[:, 1:]]], 1)
        return ((own + moves) * mask).sum(1)

    def _all_paths(self, scores: Tensor, mask: Tensor) -> Tensor:
        """Log of the sum over all paths [B]: the forward algorithm, a product of matrices at each word."""
        steps = self.table[:-1].exp()
        reached = self.table[-1] + scores[:, 0]
        for i in range(1, scores.shape[1]):
            top = reached.amax(1, keepdim=True).detach()
            here = ((reached - top).exp() @ steps).log() + top + scores[:, i]
            reached = torch.where(mask[:, i, None], here, reached)
        return reached.logsumexp(1)


def learns_transitions(task: Task, labels: int, weights: object, wanted: bool | None) -> bool:
    """Whether transitions are trained: for tagging, unless words have different weights or there
    are too many tags.

    Raises InvalidInput if they are asked for and cannot be trained.
    """
    can = task == "tagging" and weights is None and labels <= MOST_TAGS
    if wanted and not can:
        raise InvalidInput(
            f"transitions are for tagging with up to {MOST_TAGS} tags and without class weights: leave "
            "them out",
            field="options.transitions",
        )
    return can and wanted is not False
