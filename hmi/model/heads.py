"""Heads: one linear map from [CLS] (sequence tasks) or from each word's first piece (tagging) to the labels."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import Task


class Head(nn.Module):
    """x [..., dim] -> logits [..., labels]."""

    def __init__(self, dim: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(dim, labels)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        logits: Tensor = self.out(F.dropout(x, dropout, training=True) if dropout else x)
        return logits


def reads_cls_only(task: Task) -> bool:
    """Whether the task needs the last layer for the [CLS] row alone."""
    return task != "tagging"


def first_pieces(words: list[int | None]) -> dict[int, int]:
    """Word -> position of its first piece; without words that truncation cut or that have no piece at all."""
    first: dict[int, int] = {}
    for position, word in enumerate(words):
        if word is not None:
            first.setdefault(word, position)
    return first


def outside_tag(labels: Sequence[str]) -> str:
    """The tag of a word that the model did not see: O, or the first tag where there is no O."""
    return "O" if "O" in labels else labels[0]


def head_from(weight: Tensor, bias: Tensor) -> Head:
    """Rebuild a head from its tensors: weight [labels, dim], bias [labels]."""
    head = Head(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        head.out.weight.copy_(weight)
        head.out.bias.copy_(bias)
    return head.eval().requires_grad_(False)
