"""Attention inside each text of a packed batch."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

import torch
import torch.nn.functional as F
from torch import Tensor

from hmi.model.network.encoder import Attend, heads_first
from hmi.model.network.relative import relative_bias


def attend_packed(offsets: Sequence[int], heads: int, size: Tensor | None = None) -> Attend:
    """Return a function from q, k and v, [rows, dim] each, to the attention of each row over the rows of its
    own text, [rows, dim].

    Text i has the rows offsets[i] to offsets[i + 1]. Rows after the last text get zeros. size: [rows], the
    tokens that each row stands for (`Rows.size`); None: one each.
    """
    added = _Added(offsets, size)

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q)
        bias = None if relative is None else relative_bias(relative, added.longest)[None]
        for a, b in pairwise(offsets):
            qs, ks, vs = (heads_first(z[None, a:b], heads) for z in (q, k, v))
            # A shorter text's bias is the corner of the longest text's.
            mask = added.to(None if bias is None else bias[:, :, : b - a, : b - a], a, b)
            y = F.scaled_dot_product_attention(qs, ks, vs, attn_mask=mask)
            out[a:b] = y.transpose(1, 2).flatten(-2)[0]
        out[offsets[-1] :] = 0
        return out

    return attend


def attend_first(offsets: Sequence[int], heads: int, size: Tensor | None = None) -> Attend:
    """Return a function from q [texts, dim], of each text's first row, and k and v [rows, dim], to the
    attention of each first row over its own text, [texts, dim]. The arguments are those of `attend_packed`.
    """
    added = _Added(offsets, size)

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        out = torch.empty_like(q)
        bias = None if relative is None else relative_bias(relative, added.longest, 1)[None]
        for i, (a, b) in enumerate(pairwise(offsets)):
            y = F.scaled_dot_product_attention(
                heads_first(q[None, i : i + 1], heads),
                heads_first(k[None, a:b], heads),
                heads_first(v[None, a:b], heads),
                attn_mask=added.to(None if bias is None else bias[..., : b - a], a, b),
            )
            out[i] = y.transpose(1, 2).flatten(-2)[0, 0]
        out[len(offsets) - 1 :] = 0
        return out

    return attend


class _Added:
    """The term added to attention scores for rows that stand for several tokens: log(number of tokens)."""

    def __init__(self, offsets: Sequence[int], size: Tensor | None) -> None:
        self.longest = max((b - a for a, b in pairwise(offsets)), default=0)
        self._log = None if size is None else size.log()

    def to(self, bias: Tensor | None, start: int, end: int) -> Tensor | None:
        """Add the term of rows start:end to a text's bias [1, heads, queries, keys], or to none.

        Nothing is added to a text whose rows stand for one token each: with a mask torch runs another kernel,
        whose results differ in their last bits.
        """
        if self._log is None or not self._log[start:end].any():
            return bias
        mine = self._log[start:end][None, None, None]
        return mine if bias is None else bias + mine
