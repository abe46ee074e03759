"""Learnt scores of which tag follows which: a linear-chain conditional random field over a text's
words (Lafferty et al., 2001). Decoding adds up the scores along a path of tags, so the loss is that
of the whole path, not of each word."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from hmi.core import Task
from hmi.errors import InvalidInput
from hmi.training.objectives.base import IGNORE

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

        logits: fp32 [B, T, labels]; targets[i]: a tag's id at the first token of each word, IGNORE
        at other tokens.
        """
        at = [[i for i, tag in enumerate(target) if tag != IGNORE] for target in targets]
        used = [i for i, words in enumerate(at) if words]
        if not used:
            return logits.sum() * 0.0
        most = max(len(at[i]) for i in used)
        # Padding repeats a text's last word; the mask excludes it.
        padded = {i: at[i] + at[i][-1:] * (most - len(at[i])) for i in used}
        words = torch.tensor([*padded.values()])
        tags = torch.tensor([[int(targets[i][word]) for word in row] for i, row in padded.items()])
        mask = torch.arange(most) < torch.tensor([len(at[i]) for i in used])[:, None]
        scores = logits[torch.tensor(used)[:, None], words]
        return (self._all_paths(scores, mask) - self._path(scores, tags, mask)).sum() / mask.sum()

    def _path(self, scores: Tensor, tags: Tensor, mask: Tensor) -> Tensor:
        """The score of each given path [B]: the sum over its words and transitions."""
        own = scores.gather(2, tags[..., None])[..., 0]
        moves = torch.cat([self.table[-1][tags[:, :1]], self.table[tags[:, :-1], tags[:, 1:]]], 1)
        return ((own + moves) * mask).sum(1)

    def _all_paths(self, scores: Tensor, mask: Tensor) -> Tensor:
        """The log of the summed exponentials of all paths' scores [B], by the forward algorithm:
        one matrix product for each word."""
        steps = self.table[:-1].exp()
        reached = self.table[-1] + scores[:, 0]
        for i in range(1, scores.shape[1]):
            top = reached.amax(1, keepdim=True).detach()
            here = ((reached - top).exp() @ steps).log() + top + scores[:, i]
            reached = torch.where(mask[:, i, None], here, reached)
        return reached.logsumexp(1)


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
