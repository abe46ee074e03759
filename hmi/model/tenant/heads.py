"""Heads: one linear map to the labels, and the pooling of the upper layers' rows that it reads.

| task                                    | reads                                                            |
|-----------------------------------------|------------------------------------------------------------------|
| classification, multi-label, regression | [CLS] of the last layer, the mean of the rows that enter it      |
| pair, regression of pairs               | [CLS], abs(u - v) and u * v, where u and v are the texts' means  |
| tagging                                 | every row; a word's answer is that of its first piece            |
| embedding                               | the mean row or [CLS], by the root's convention; it has no head  |

The rows that enter the last layer are computed anyway, so their mean costs nothing; the roots are sentence
encoders, whose mean rows represent a text's topic. A label that depends on a few rows only (two marked
words, one adjective) is lost in a mean, so the head also has learnt queries that attend to the same rows.
Pairs get an explicit comparison because a few hundred of them do not teach three upper layers to compare
through [CLS] alone. Measurements: docs/design/0003-tenant-module.md.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Literal

import numpy as np
import torch
import torch.nn.functional as F
from hmi_kernels.text.heads import cls_head
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.core import Task
from hmi.model.network.encoder import drop

Reads = Literal["cls", "compare", "rows", "mean", "first"]
"""What a head reads: the poolings of `pool_rows`."""

Matrix = NDArray[np.float32]
QUERIES = 4
"""The number of queries of a head; no other number was tried (docs/design/0003-tenant-module.md)."""
MAX_OUTPUTS_WITH_QUERIES = 32
"""A head with more outputs than this has no queries: each costs as many weights per output as [CLS]."""


class Head(nn.Module):
    """x [..., size] -> logits [..., labels]. With queries [queries, dim], x comes from `with_attended`."""

    def __init__(self, size: int, labels: int, *, queries: int = 0, dim: int = 0) -> None:
        super().__init__()
        self.out = nn.Linear(size + queries * dim, labels)
        nn.init.normal_(self.out.weight, std=0.02)
        nn.init.zeros_(self.out.bias)
        self.query = nn.Parameter(torch.randn(queries, dim) * 0.02) if queries else None
        self._known: tuple[int, tuple[Matrix, Matrix, Matrix]] | None = None

    def forward(self, x: Tensor, dropout: float = 0.0) -> Tensor:
        logits: Tensor = self.out(drop(x, dropout))
        return logits

    def of_packed(self, first: Tensor, before: Tensor, offsets: Sequence[int]) -> Tensor:
        """The logits [texts, labels] of packed texts, for a head that reads "cls": one call of compiled code.

        first [texts, dim]: the [CLS] rows of the last layer. before [tokens, dim]: text i has the rows
        offsets[i]:offsets[i + 1] that enter it. The same as `forward` of `with_attended` of `pool_rows`.
        Raises RuntimeError for rows of another size than the head's, since the compiled code checks nothing.
        """
        query, weight, bias = self._arrays()
        out = np.empty((len(first), len(bias)), np.float32)
        count, dim = len(query), before.shape[1] if self.query is None else query.shape[1]
        if first.shape[1] != dim or before.shape[1] != dim or weight.shape[1] != (2 + count) * dim:
            raise RuntimeError(
                f"the head has {weight.shape[1]} inputs and {count} queries of {dim} numbers; "
                f"the rows have {before.shape[1]}"
            )
        query = query if count else np.empty((0, dim), np.float32)
        at = np.array(offsets, np.int64)
        rows = before.contiguous().numpy()
        cls_head(first.contiguous().numpy(), rows, at, query, weight, bias, out)
        return torch.from_numpy(out)

    def _arrays(self) -> tuple[Matrix, Matrix, Matrix]:
        """Views of the queries, the weight and the bias, kept since it takes long to make them.

        They keep their storage alive, so the weight's address is theirs as long as it has not moved.
        """
        weight = self.out.weight
        if self._known is None or self._known[0] != weight.data_ptr():
            query = np.empty((0, 0), np.float32) if self.query is None else self.query.detach().numpy()
            views = query, weight.detach().numpy(), self.out.bias.detach().numpy()
            self._known = weight.data_ptr(), views
        return self._known[1]

    def with_attended(self, read: Tensor, before: Tensor, mask: Tensor) -> Tensor:
        """Append to `read`, for each query, the mean of the rows `before` weighted by its attention.

        read [B, size], before [B, T, dim]: the rows that enter the last layer, mask [B, T] true at tokens
        -> [B, size + queries·dim]. Returns `read` itself if the head has no queries.
        """
        if self.query is None:
            return read
        weights = (before @ self.query.T).masked_fill(~mask[..., None], -torch.inf).softmax(dim=1)
        return torch.cat([read, (weights.transpose(1, 2) @ before).flatten(1)], dim=-1)


def head_queries(reads: Reads, outputs: int) -> int:
    """The number of queries that a new head gets."""
    return QUERIES if reads == "cls" and outputs <= MAX_OUTPUTS_WITH_QUERIES else 0


def reads_of(task: Task, *, paired: bool = False, pooling: str = "mean") -> Reads:
    """What the head of a task reads. `paired` matters to regression, `pooling` to embeddings."""
    if task == "embedding":
        return "first" if pooling == "cls" else "mean"
    if task == "tagging":
        return "rows"
    return "compare" if paired or task == "pair" else "cls"


def reads_cls_only(task: Task, *, paired: bool = False) -> bool:
    """Return whether the task needs only the [CLS] row of the last layer, so that its other rows can be
    skipped."""
    return reads_of(task, paired=paired) == "cls"


def head_input_size(task: Task, dim: int, *, paired: bool = False) -> int:
    return {"cls": 2, "compare": 3, "rows": 1, "mean": 1, "first": 1}[reads_of(task, paired=paired)] * dim


def head_input(
    task: Task, last: Tensor, before: Tensor, types: Tensor, mask: Tensor, *, paired: bool = False
) -> Tensor:
    """`pool_rows` for a task given by name."""
    return pool_rows(reads_of(task, paired=paired), last, before, types, mask)


def pool_rows(reads: Reads, last: Tensor, before: Tensor, types: Tensor, mask: Tensor) -> Tensor:
    """Pool a batch's rows to what a head reads.

    last [B, T, dim]: the last layer's rows; for "cls" [B, 1, dim] is enough. before [B, T,
    dim]: the rows that enter the last layer. types [B, T]: 0 in the first text, 1 in the
    second. mask [B, T]: true at tokens.

    Returns, by `reads`:

    - "cls": [B, 2·dim], [CLS] and the mean of `before`
    - "compare": [B, 3·dim], [CLS], abs(u - v) and u * v of the mean rows u and v of the two texts
    - "rows": `last` itself
    - "mean", "first": [B, dim], the mean row or the first
    """
    if reads == "cls":
        return torch.cat([last[:, 0], _mean(before, mask)], dim=-1)
    if reads == "compare":
        return _compare(last, types, mask)
    if reads == "mean":
        return _mean(last, mask)
    return last if reads == "rows" else last[:, 0]


def pool_text(reads: Reads, last: Tensor, types: Sequence[int]) -> Tensor:
    """`pool_rows` of one text without padding, from the rows [tokens, dim] of the last layer: [size].

    Not for "cls" (`pool_cls`) and "rows". types: as `pool_rows`, ascending.
    """
    if reads == "first":
        return last[0]
    if reads == "mean":
        return last.mean(0)
    assert reads == "compare"
    second = types.index(1) if 1 in types else len(types)
    texts = last[1:second], last[second:]
    u, v = (rows.mean(0) if len(rows) else torch.zeros_like(last[0]) for rows in texts)
    return torch.cat([last[0], (u - v).abs(), u * v])


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
    """The tag of words that the model did not see: O, or the first label if there is no O."""
    return "O" if "O" in labels else labels[0]


def head_tensors(weight: Tensor, bias: Tensor) -> dict[str, Tensor]:
    """The tensors of a head without queries, for `head_from`: weight [labels, size], bias [labels]."""
    return {"out.weight": weight, "out.bias": bias}


def head_from(state: Mapping[str, Tensor]) -> Head:
    """Rebuild a head from its tensors: out.weight [labels, size], out.bias [labels] and, if it has queries,
    query [queries, dim]."""
    weight, query = state["out.weight"], state.get("query")
    queries, dim = (0, 0) if query is None else query.shape
    head = Head(weight.shape[1] - queries * dim, weight.shape[0], queries=queries, dim=dim)
    head.load_state_dict(dict(state))
    return head.eval().requires_grad_(False)


def copied_ramps(state: Mapping[str, Tensor]) -> dict[int, dict[str, Tensor]]:
    """Copies in fp32 of the tensors of ramps, `<site>.<name>`: by site, as `head_from` takes them."""
    found: dict[int, dict[str, Tensor]] = {}
    for name, tensor in state.items():
        site, _, rest = name.partition(".")
        found.setdefault(int(site), {})[rest] = tensor.to(torch.float32, copy=True)
    return dict(sorted(found.items()))


def widened(weight: Tensor, size: int) -> Tensor:
    """Extend a head's weight [labels, less] to [labels, size] with zeros, so that its
    outputs stay the same."""
    assert weight.shape[1] <= size
    return F.pad(weight, (0, size - weight.shape[1]))
