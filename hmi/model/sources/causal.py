"""The local lower layers of a language model, which compute the entries that its PLOT stores.

An entry is the state after the lower layers of the last token of an n-gram. The n-gram passes through the
layers by itself, after the begin token, which is the same everywhere and so is computed once. A text's row
i is the entry of the longest stored n-gram that ends at token i. It never depends on a token after i, so a
generated token can be looked up at once. No position is part of it: rotary positions are relative, and the
upper layers see true ones. Each order has a matrix and a bias, fitted to the states in full texts.

The begin token of a text is no part of n-grams. Its row is its state, which is the same in every text.

Sources: HMI section 7.6, docs/design/0033-generation.md.
"""

from __future__ import annotations

from typing import Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.network.decoder import DecoderLayer, rotary
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.lower import unique_rows


class CausalLower(nn.Module):
    """The first `depth` layers, applied to single n-grams of at most n tokens."""

    window: Final = "causal"

    def __init__(self, shape: DecoderShape, depth: int, begin: int, n: int = 3) -> None:
        super().__init__()
        self.shape, self.depth, self.begin, self.n = shape, depth, begin, n
        self.word = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(depth))
        self.fold = nn.Parameter(torch.eye(shape.dim).repeat(n, 1, 1))
        """A matrix for each order, which its states are multiplied by: [n, dim, dim], bigrams' at 1."""
        self.shift = nn.Parameter(torch.zeros(n, shape.dim))

    def states(self, ngrams: Tensor) -> Tensor:
        """ngrams int64 [m, order] -> the states of their last tokens after the lower layers [m, dim]."""
        return self._through(ngrams)[0]

    def first_row(self) -> Tensor:
        """The row of the begin token at the beginning of a text: [dim]."""
        return self._through(torch.empty(0, 1, dtype=torch.int64))[1]

    def ngram_entries(self, ngrams: Tensor) -> Tensor:
        """ngrams int64 [m, order], order ≤ n -> entries as a PLOT stores them [m, 1, dim]."""
        at = ngrams.shape[1] - 1
        return (self.states(ngrams) @ self.fold[at] + self.shift[at])[:, None]

    def forward(self, ids: Tensor, orders: Tensor | None = None) -> Tensor:
        """ids int64 [B, T], each text's begin token first, padded with 0 at the end -> rows [B, T, dim].

        orders int64 [B, T]: the order of the n-gram that each token is looked up by, from 1. By default, and
        at most, the longest that lies in the text. Training drops n-grams by it, and it is a plain reference
        of look-ups with misses. Rows of padding are 0.
        """
        longest = torch.arange(ids.shape[1]).clamp(max=self.n).expand_as(ids)
        orders = longest if orders is None else torch.minimum(orders, longest)
        orders = orders * (ids > 0)
        out = self.first_row().expand(*ids.shape, -1) * (torch.arange(ids.shape[1]) == 0)[:, None]
        for order in range(1, self.n + 1):
            rows, columns = (orders == order).nonzero(as_tuple=True)
            if len(rows):
                ngrams = torch.stack([ids[rows, columns - order + 1 + i] for i in range(order)], dim=1)
                which, first = unique_rows(ngrams, self.shape.vocab)
                entries = self.ngram_entries(ngrams[first])[which, 0]
                out = out.index_put((rows, columns), entries.to(out.dtype))
        return out

    def _through(self, ngrams: Tensor) -> tuple[Tensor, Tensor]:
        """The states of the n-grams' last tokens [m, dim], and of the begin token [dim].

        The last layer computes these alone.
        """
        turns = rotary(1 + ngrams.shape[1], self.shape.head_dim, self.shape.base)
        first, x = self.word(torch.tensor([[self.begin]])), self.word(ngrams)
        for i, layer in enumerate(self.layers):
            assert isinstance(layer, DecoderLayer)
            q0, k0, v0 = layer.project(first, turns[:, :1].to(first.dtype))
            q, k, v = layer.project(x, turns[:, 1:].to(x.dtype))
            m = len(x)
            k, v = (torch.cat([a.expand(m, -1, -1, -1), b], dim=2) for a, b in ((k0, k), (v0, v)))
            if i == self.depth - 1:
                q, x = q[:, :, -1:], x[:, -1:]
            first = layer.finish(first, _attend_last(q0, k0, v0))
            x = layer.finish(x, _attend_last(q, k, v))
        return x[:, -1], first[0, 0]


def _attend_last(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of the last tokens, as many as there are queries, to themselves and those before them."""
    queries, keys = q.shape[2], k.shape[2]
    mask = torch.ones(queries, keys, dtype=torch.bool).tril(keys - queries)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, enable_gqa=q.shape[1] != k.shape[1])
