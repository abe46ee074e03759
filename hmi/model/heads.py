"""Heads: one linear map to the labels, from what the task reads of the upper layers.

Classification reads the last layer's [CLS] row and the mean of the rows that enter the last layer: all of them are
computed anyway, so the mean costs nothing, and the roots are sentence encoders whose means say what a text is about.
Pairs read [CLS] and a comparison (|u - v|, u * v) of the two texts' mean rows: a few hundred pairs do not teach three
upper layers to compare through [CLS] alone. Tagging reads every row; a word's answer is its first piece's.
Measured in docs/design/0003-tenant-module.md.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import Task


class Head(nn.Module):
    """x [..., size] -> logits [..., labels]."""

    def __init__(self, size: int, labels: int) -> None:
        super().__init__()
        self.out = nn.Linear(size, labels)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        logits: Tensor = self.out(F.dropout(x, dropout, training=True) if dropout else x)
        return logits


def reads_cls_only(task: Task) -> bool:
    """Whether the task needs the last layer for the [CLS] row alone."""
    return task == "classification"


def head_input_size(task: Task, dim: int) -> int:
    return {"classification": 2, "pair": 3, "tagging": 1}[task] * dim


def head_input(task: Task, last: Tensor, before: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    """What a head reads of the last layer's rows [B, T, dim] ([B, 1, dim] if only [CLS] was computed).

    `before` [B, T, dim] are the rows that entered the last layer, types [B, T] 0 in the first text and 1 in the
    second, mask [B, T] true at tokens. Returns [B, 2·dim] for classification, [B, 3·dim] for pairs, `last` for tagging.
    """
    if task == "classification":
        return torch.cat([last[:, 0], _mean(before, mask)], dim=-1)
    return _compare(last, types, mask) if task == "pair" else last


def _compare(rows: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    first = mask & (types == 0)
    first[:, 0] = False  # [CLS] is read by itself
    second = mask & (types == 1)
    u, v = _mean(rows, first), _mean(rows, second)
    return torch.cat([rows[:, 0], (u - v).abs(), u * v], dim=-1)


def _mean(rows: Tensor, keep: Tensor) -> Tensor:
    weights = keep[..., None].to(rows.dtype)
    total: Tensor = (rows * weights).sum(1)
    return total / weights.sum(1).clamp(min=1)


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
    """Rebuild a head from its tensors: weight [labels, size], bias [labels]."""
    head = Head(weight.shape[1], weight.shape[0])
    with torch.no_grad():
        head.out.weight.copy_(weight)
        head.out.bias.copy_(bias)
    return head.eval().requires_grad_(False)
