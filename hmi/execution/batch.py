"""The nouns that executors, stages and the engine share: a batch's key, its rows, and the texts that have
left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, order=True)
class BatchKey:
    """What texts must share to run together."""

    root: tuple[str, str]
    """Name and version."""
    reads: Literal["cls", "rows"]
    """What of the last layer is read: each text's first row, or every row."""
    exact: bool
    """Whether the lower layers are computed in full instead of looked up: the reference."""
    phase: Literal["encode"] = "encode"


@dataclass(frozen=True)
class Rows:
    """The rows of a batch on their way up. Text t of the batch has the rows offsets[i]:offsets[i + 1] where
    texts[i] == t.
    """

    x: Tensor
    """[rows, dim] on the executor's device."""
    offsets: Sequence[int]
    """[texts + 1], from 0."""
    texts: Sequence[int]
    """[texts], ascending: which text of the batch each is. Those that left early are missing."""
    source: Tensor | None = None
    """int64 [tokens]: the row that stands for each original token of these texts; None: row i is token i."""
    size: Tensor | None = None
    """[rows]: how many tokens a row stands for, whose logarithm is added to the scores of attention; None:
    one each."""

    @classmethod
    def packed(cls, x: Tensor, offsets: Sequence[int]) -> Rows:
        """As retrieval leaves them: every token of every text has a row."""
        return cls(x, offsets, range(len(offsets) - 1))

    def spans(self) -> Iterator[tuple[int, int]]:
        """(first row, end) of each text."""
        return pairwise(self.offsets)

    def by_token(self, rows: Tensor) -> Tensor:
        """rows [rows, …] -> [tokens, …]: what each original token of these texts has of them."""
        return rows if self.source is None else rows.index_select(0, self.source)


@dataclass(frozen=True)
class Left:
    """Texts that have left the upper layers. Rows are by original token, whatever stages did in between."""

    texts: Sequence[int]
    """[k], ascending: which of the batch."""
    last: Tensor
    """What the last layer gives: [k, dim] where the batch reads `cls`, else [tokens, dim]."""
    before: Tensor
    """[tokens, dim]: the rows that entered the layer after which these texts left."""
    offsets: Sequence[int]
    """[k + 1]: text i has the tokens offsets[i]:offsets[i + 1] of `before`, and of `last` where that has
    all."""
    after: int
    """Layers that these texts went through."""
    why: Literal["end", "exit"] = "end"


def offsets_of(lengths: Sequence[int]) -> list[int]:
    """[texts] -> [texts + 1], from 0."""
    return [0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()]
