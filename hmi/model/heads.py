"""Heads: one linear map to the labels, from what the task reads of the upper layers.

Classification reads the last layer's [CLS] row and the mean of the rows that enter the last layer: all of
them are computed anyway, so the mean costs nothing, and the roots are sentence encoders whose means say what
a text is about. Where the label hangs on a few rows (two marked words, one adjective), a mean drowns them:
queries of the head's own attend to the same rows, each to its own few. Pairs read [CLS] and a comparison (|u
- v|, u * v) of the two texts' mean rows: a few hundred pairs do not teach three upper layers to compare
through [CLS] alone. Tagging reads every row; a word's answer is its first piece's. Measured in
docs/design/0003-tenant-module.md. Several labels and values read what one label reads. An embedding has no
head: it is what the root's authors make of the last layer's rows.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import Task

Reads = Literal["cls", "compare", "rows", "mean", "first"]
"""cls: [CLS] and the mean of the rows before; compare: [CLS] and two texts; rows: every row; mean, first: a
vector."""


QUERIES, MOST_OUTPUTS = 4, 32
"""The only number that was tried (docs/design/0003-tenant-module.md). Each query needs as many weights a
label as [CLS], so a head with many labels has none."""


class Head(nn.Module):
    """x [..., size] -> logits [..., labels]. With queries [queries, dim], x is what `with_attended` gives."""

    def __init__(self, size: int, labels: int, *, queries: int = 0, dim: int = 0) -> None:
        super().__init__()
        self.out = nn.Linear(size + queries * dim, labels)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        self.query = nn.Parameter(torch.randn(queries, dim) * 0.02) if queries else None

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        logits: Tensor = self.out(F.dropout(x, dropout, training=True) if dropout else x)
        return logits

    def with_attended(self, read: Tensor, before: Tensor, mask: Tensor) -> Tensor:
        """The head's input with the queries' result added: what they find among the rows that enter the last
        layer.

        read [B, size], before [B, T, dim], mask [B, T] true at tokens -> [B, size + queries·dim]; `read`
        itself without queries.
        """
        if self.query is None:
            return read
        weights = (before @ self.query.T).masked_fill(~mask[..., None], -torch.inf).softmax(dim=1)
        return torch.cat([read, (weights.transpose(1, 2) @ before).flatten(1)], dim=-1)


def head_queries(reads: Reads, outputs: int) -> int:
    """How many queries a trained model's head has."""
    return QUERIES if reads == "cls" and outputs <= MOST_OUTPUTS else 0


def reads_of(task: Task, *, paired: bool = False, pooling: str = "mean") -> Reads:
    """What the head of a task reads; of regression it depends on whether inputs are pairs."""
    if task == "embedding":
        return "first" if pooling == "cls" else "mean"
    if task == "tagging":
        return "rows"
    return "compare" if paired or task == "pair" else "cls"


def reads_cls_only(task: Task, *, paired: bool = False) -> bool:
    """Whether the task needs the last layer for the [CLS] row alone."""
    return reads_of(task, paired=paired) == "cls"


def head_input_size(task: Task, dim: int, *, paired: bool = False) -> int:
    return {"cls": 2, "compare": 3, "rows": 1, "mean": 1, "first": 1}[reads_of(task, paired=paired)] * dim


def head_input(
    task: Task, last: Tensor, before: Tensor, types: Tensor, mask: Tensor, *, paired: bool = False
) -> Tensor:
    """Like `read_rows`, for a task given by name."""
    return read_rows(reads_of(task, paired=paired), last, before, types, mask)


def read_rows(reads: Reads, last: Tensor, before: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    """What a head reads of the last layer's rows [B, T, dim] ([B, 1, dim] if only [CLS] was computed).

    `before` [B, T, dim] are the rows that entered the last layer, types [B, T] 0 in the first text and 1 in
    the second, mask [B, T] true at tokens. Returns [B, 2·dim] for "cls", [B, 3·dim] for "compare", `last` for
    "rows", [B, dim] for "mean" and "first".
    """
    if reads == "cls":
        return torch.cat([last[:, 0], _mean(before, mask)], dim=-1)
    if reads == "compare":
        return _compare(last, types, mask)
    if reads == "mean":
        return _mean(last, mask)
    return last if reads == "rows" else last[:, 0]


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


def outside_tag(labels: Sequence[str]) -> str:
    """The tag of a word that the model did not see: O, or the first tag where there is no O."""
    return "O" if "O" in labels else labels[0]


def head_tensors(weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """A head's tensors as `head_from` takes them: weight [labels, size], bias [labels]."""
    return {"out.weight": weight, "out.bias": bias}


def head_from(state: Mapping[str, Tensor]) -> Head:
    """Rebuild a head from its tensors: out.weight [labels, size], out.bias [labels], and where it has them
    query [queries, dim]."""
    weight, query = state["out.weight"], state.get("query")
    queries, dim = (0, 0) if query is None else query.shape
    head = Head(weight.shape[1] - queries * dim, weight.shape[0], queries=queries, dim=dim)
    head.load_state_dict(dict(state))
    return head.eval().requires_grad_(False)


def widened(weight: Tensor, size: int) -> Tensor:
    """A head's weight [labels, less] for one that reads more [labels, size]: nothing of what is new counts
    yet."""
    assert weight.shape[1] <= size
    return F.pad(weight, (0, size - weight.shape[1]))
