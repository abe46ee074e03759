"""Data types of executors, stages and the engine: a batch's key, its rows, and texts that have left."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, pairwise
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True, order=True)
class BatchKey:
    """The properties that all texts of a batch have in common."""

    root: tuple[str, str]
    """Name and version."""
    reads: Literal["cls", "rows"]
    """The rows of the last layer that heads read: each text's first, or all."""
    exact: bool
    """Whether the lower layers are computed in full instead of looked up (the exact reference)."""
    phase: Literal["encode"] = "encode"
    bits: int = 0
    """The bits of the shards that the texts' models may run on; 0: the root's own weights only."""


@dataclass(frozen=True)
class Rows:
    """The rows of a batch between two layers. Text texts[i] has the rows offsets[i]:offsets[i + 1]."""

    x: Tensor
    """[rows, dim] on the executor's device."""
    offsets: Sequence[int]
    """[texts + 1], from 0."""
    texts: Sequence[int]
    """[texts]: indexes into the batch, ascending. Texts that left early are missing."""
    source: Tensor | None = None
    """int64 [tokens]: the row that stands for each original token of these texts; None: row i is token i."""
    size: Tensor | None = None
    """[rows]: the number of tokens that each row stands for; None: one each. Its logarithm is added to the
    attention scores."""
    tokens: Tensor | None = None
    """int64 [rows] in host memory: the place in its text of the token that each row stands for, if a stage
    has dropped tokens for good; None: none was dropped. Heads then read the rows that are left. Executors
    treat these as neighbours (docs/design/0012-exits-and-cascades.md). Not together with `source`."""

    @classmethod
    def packed(cls, x: Tensor, offsets: Sequence[int]) -> Rows:
        """Rows as retrieval returns them: one for every token of every text."""
        return cls(x, offsets, range(len(offsets) - 1))

    def spans(self) -> Iterator[tuple[int, int]]:
        """The (first row, end) of each text."""
        return pairwise(self.offsets)

    @cached_property
    def token_offsets(self) -> Sequence[int]:
        """[texts + 1]: text i has the original tokens token_offsets[i]:token_offsets[i + 1] of `source`. If
        rows stand for several tokens, the first call waits for the device."""
        if self.source is None:
            return self.offsets
        ends = torch.tensor(self.offsets[1:], device=self.source.device)
        counts = torch.bincount(torch.searchsorted(ends, self.source, right=True), minlength=len(self.texts))
        return list(accumulate(counts.tolist(), initial=0))

    @cached_property
    def changed(self) -> frozenset[int]:
        """The places in `texts` of those whose rows are not one for each original token."""
        if self.source is None:
            return frozenset()
        pairs = zip(self.spans(), pairwise(self.token_offsets), strict=True)
        return frozenset(i for i, ((a, b), (c, d)) in enumerate(pairs) if b - a != d - c)

    def by_token(self, rows: Tensor) -> Tensor:
        """Expand [rows, …] to [tokens, …]: the row that stands for each original token of these texts."""
        return rows if self.source is None else rows.index_select(0, self.source)

    def taken(self, parts: Sequence[tuple[int, Sequence[int] | None]]) -> Rows:
        """Some rows of some texts: (place in `texts`, its rows, counted from its first; None: all of them).

        A text may be taken twice; the result then has it twice, one after the other. If rows stand for
        several tokens, texts are taken whole.
        """
        assert self.source is None or all(of is None for _, of in parts), "rows stand for several tokens"
        spans = list(self.spans())
        lengths = [b - a for a, b in spans]
        own = [torch.arange(lengths[at]) if of is None else _whole_numbers(of) for at, of in parts]
        places = [each + spans[at][0] for each, (at, _) in zip(own, parts, strict=True)]
        index = torch.cat(places or [torch.arange(0)])
        there = index.to(self.x.device)
        tokens = None if self.tokens is None else self.tokens[index]
        if self.tokens is None and any(of is not None for _, of in parts):
            tokens = torch.cat(own)
        offsets = offsets_of([len(mine) for mine in places])
        return Rows(
            self.x.index_select(0, there),
            offsets,
            [self.texts[at] for at, _ in parts],
            source=self._taken_source([at for at, _ in parts], offsets),
            size=None if self.size is None else self.size.index_select(0, there),
            tokens=tokens,
        )

    def _taken_source(self, places: Sequence[int], offsets: Sequence[int]) -> Tensor | None:
        """The `source` of these texts once they have the rows that `offsets` says."""
        if self.source is None:
            return None
        spans = list(pairwise(self.token_offsets))
        starts = zip(places, offsets[:-1], strict=True)
        moved = [self.source[slice(*spans[at])] + (start - self.offsets[at]) for at, start in starts]
        return torch.cat(moved or [self.source[:0]])


@dataclass(frozen=True)
class Left:
    """Texts that have left the upper layers. Rows are by original token, whatever stages did in between,
    except for tokens that a stage has dropped for good."""

    texts: Sequence[int]
    """[k]: indexes into the batch, ascending."""
    last: Tensor
    """The output of the last layer that ran: [k, dim] if the batch reads `cls`, else [tokens, dim]."""
    before: Tensor
    """[tokens, dim]: the input of that layer."""
    offsets: Sequence[int]
    """[k + 1]: text i has the tokens offsets[i]:offsets[i + 1] of `before`, and of `last` if it has all."""
    after: int
    """The number of layers that these texts went through."""
    why: Literal["end", "exit"] = "end"
    """`end` if the texts went through all layers, `exit` if they left early."""
    outputs: Sequence[Tensor] | None = None
    """[k]: the outputs of texts that a hook has answered; None: the models' heads compute them."""
    confidences: Sequence[float] | None = None
    """[k]: the confidence with which a hook has answered these texts."""
    tokens: Tensor | None = None
    """See `Rows.tokens`."""
    waited_s: float = 0.0
    """Seconds that the thread slept until a device had computed these texts."""


def offsets_of(lengths: Sequence[int]) -> list[int]:
    """Cumulative sums of the lengths, from 0: [texts] -> [texts + 1]."""
    return [0, *torch.tensor(lengths, dtype=torch.int64).cumsum(0).tolist()]


def rounded(count: int) -> int:
    """The next number of the form 2^k or 3 · 2^k."""
    power: int = 1 << (count - 1).bit_length()
    return power * 3 // 4 if power >= 4 and count <= power * 3 // 4 else power


def _whole_numbers(values: Sequence[int]) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)
