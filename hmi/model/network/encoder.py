"""The transformer layer, the embeddings and the whole encoder, shared by padded training and packed serving.

The caller passes two functions to a layer: how to attend (padded with a mask, or packed by text), and how a
tenant's module changes the layer (`Delta`). The layer itself knows neither tenants nor batches.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.network.prepacked import PackedLinear, PackedProjection, Projection, packs
from hmi.model.network.relative import relative_bias
from hmi.model.network.shape import EncoderShape

Attend = Callable[[Tensor, Tensor, Tensor, Tensor | None], Tensor]
"""(q [..., Tq, dim], k and v [..., T, dim], the layer's relative table or None) -> context [..., Tq, dim]."""

Norm = Callable[[Tensor], Tensor]
"""A LayerNorm: [..., dim] -> [..., dim]."""


class Delta(Protocol):
    """Add a tenant's change at a site of a layer: return y + change(x), possibly in place.

    With `norm` the change reads norm(y + x) instead, computed only for the rows that have such a change.
    """

    def __call__(self, site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor: ...


def no_delta(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
    """Return y unchanged: the layer without a tenant's module."""
    return y


class EncoderLayer(nn.Module):
    """A post-LayerNorm transformer layer.

    q, k and v share one matrix, so that one product computes all three. `relative` [buckets, heads] is the
    table of relative attention, None in BERT.
    """

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        d = shape.dim
        self.dim = d  # of q, k and v each, and of the context
        self.qkv: nn.Module = nn.Linear(d, 3 * d)
        self.o: nn.Module = nn.Linear(d, d)
        self.ln1 = nn.LayerNorm(d, eps=shape.eps)
        self.fi: nn.Module = nn.Linear(d, shape.ffn)
        self.fo: nn.Module = nn.Linear(shape.ffn, d)
        self.ln2 = nn.LayerNorm(d, eps=shape.eps)
        self.relative = nn.Parameter(torch.zeros(shape.buckets, shape.heads)) if shape.buckets else None

    def pack(self, *, last: bool) -> None:
        """Reorder the weights for serving, where that is faster on this machine, and drop the plain ones.

        Set `last` for a layer that may be called with `queries`. A packed layer can be
        neither trained nor saved.
        """
        qkv, o, fi, fo = self.qkv, self.o, self.fi, self.fo
        assert isinstance(qkv, nn.Linear)
        if packs(qkv):
            self.qkv = PackedProjection(qkv, self.dim) if last else PackedLinear(qkv.weight, qkv.bias)
        self.o, self.fi, self.fo = _packed(o), _packed(fi), _packed(fo)

    def project(self, x: Tensor, xq: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        """x [..., dim] -> q, k and v, each [..., dim], without a tenant's change.

        If `xq` is given, q is computed from it and k and v from x.
        """
        d = self.dim
        if isinstance(self.qkv, Projection):
            q, k, v = self.qkv(x, xq)
            return q, k, v
        if xq is None:
            q, k, v = self.qkv(x).split(d, dim=-1)
            return q, k, v
        assert isinstance(self.qkv, nn.Linear), "pack() this layer with last=True to project a few rows"
        w, b = self.qkv.weight, self.qkv.bias
        k, v = F.linear(x, w[d:], b[d:]).split(d, dim=-1)
        return F.linear(xq, w[:d], b[:d]), k, v

    def forward(
        self,
        x: Tensor,
        attend: Attend,
        delta: Delta = no_delta,
        *,
        queries: Callable[[Tensor], Tensor] | None = None,
        query_delta: Delta | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """x [..., dim] -> [..., dim].

        `queries` selects the rows whose output is wanted, such as the [CLS] rows in the last layer of a
        classifier. Keys and values still come from all rows, so the result equals those rows of the full
        output. `query_delta` is then the module's change for the selected rows.
        """
        if queries is None:
            xq, dq = x, delta
            q, k, v = self.project(x)
        else:
            xq, dq = queries(x), query_delta or delta
            q, k, v = self.project(x, xq)
        q, k, v = dq("q", xq, q), delta("k", x, k), delta("v", x, v)
        return self.finish(xq, attend(q, k, v, self.relative), dq, dropout)

    def finish(self, xq: Tensor, context: Tensor, delta: Delta, dropout: float = 0.0) -> Tensor:
        """The layer after attention, row by row: its input xq and attention's context,
        [..., dim] -> [..., dim]."""
        a = delta("attn", xq, delta("o", context, self.o(context)))
        a = drop(delta("after_attn", a, a), dropout) + xq
        h = delta("ln1", a, self.ln1(a))
        g = F.gelu(delta("fi", h, self.fi(h)))
        f = delta("ffn", h, delta("fo", g, self.fo(g)))
        f = delta("after_norm", h, delta("after_ffn", f, f), self.ln2)
        f = drop(f, dropout) + h
        out: Tensor = delta("ln2", f, self.ln2(f))
        return out


def _packed(linear: nn.Module) -> nn.Module:
    assert isinstance(linear, nn.Linear)
    return PackedLinear(linear.weight, linear.bias) if packs(linear) else linear


def drop(x: Tensor, p: float) -> Tensor:
    """Dropout: set numbers to 0 with probability p, and scale the others up so that the mean stays.

    16 random bits decide on a number, so p is rounded to a multiple of 1 / 65,536. That takes less than half
    of the time of torch's own dropout, which draws more bits for each number.
    """
    if not p:
        return x
    limit = round(p * 65_536)
    bits = torch.empty(-(-x.numel() // 4), dtype=torch.int64).random_(-(1 << 63), None)
    kept = bits.view(torch.int16)[: x.numel()].view(x.shape) >= limit - 32_768
    return x * kept.to(x.dtype).mul_(65_536 / (65_536 - limit))


class EmbeddingLayer(nn.Module):
    """The LayerNorm of the sum of word, position and, if the source has them, token-type embeddings."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.word = nn.Embedding(shape.vocab, shape.dim)
        self.position = nn.Embedding(shape.positions, shape.dim)
        self.token_type = nn.Embedding(shape.types, shape.dim) if shape.types else None
        self.ln = nn.LayerNorm(shape.dim, eps=shape.eps)

    def forward(self, ids: Tensor, positions: Tensor, types: Tensor | None = None) -> Tensor:
        """ids, positions and types [..., T] int64 -> [..., T, dim]. Without `types`, all types are 0."""
        x = self.word(ids) + self.position(positions)
        if self.token_type is not None:
            x = x + (self.token_type.weight[0] if types is None else self.token_type(types))
        out: Tensor = self.ln(x)
        return out


def heads_first(x: Tensor, heads: int) -> Tensor:
    """[B, T, dim] -> [B, heads, T, head_dim]."""
    split: Tensor = x.unflatten(-1, (heads, -1))
    return split.transpose(-2, -3)


def attention(q: Tensor, k: Tensor, v: Tensor, mask: Tensor) -> Tensor:
    """Scaled dot-product attention over [..., heads, T, head_dim].

    `mask` is bool, true where a key is attended to, or a bias that is added to the scores. With gradients
    in bf16 it uses plain matrix products, since the backward pass of torch's fused kernel is then 3 to 8
    times slower on CPUs. In fp32, and without gradients, the fused kernel is faster.
    """
    if q.dtype != torch.bfloat16 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, attn_mask=mask)
    scores = q @ k.transpose(-1, -2) * q.shape[-1] ** -0.5
    scores = scores.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else scores + mask
    mixed: Tensor = scores.softmax(-1).to(v.dtype) @ v
    return mixed


def attend_padded(mask: Tensor, heads: int) -> Attend:
    """Attention over padded texts; mask [B, T] is true at tokens. Queries may be a text's first rows only."""
    allowed = mask[:, None, None, :]

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        scores = allowed
        if relative is not None:
            bias = relative_bias(relative, k.shape[-2], q.shape[-2]).to(q.dtype)
            scores = torch.where(allowed, bias, -torch.inf)
        y = attention(heads_first(q, heads), heads_first(k, heads), heads_first(v, heads), scores)
        return y.transpose(1, 2).flatten(-2)

    return attend


class Encoder(nn.Module):
    """The whole source model, not split: for distillation, teachers and dedicated copies."""

    def __init__(self, shape: EncoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.embeddings = EmbeddingLayer(shape)
        self.layers = nn.ModuleList(EncoderLayer(shape) for _ in range(shape.layers))

    def forward(
        self,
        ids: Tensor,
        mask: Tensor,
        types: Tensor | None = None,
        *,
        upto: int | None = None,
        dropout: float = 0.0,
    ) -> Tensor:
        """ids [B, T] int64, mask [B, T] bool -> hidden states [B, T, dim] after the first `upto`
        layers (by default all)."""
        x = self.embeddings(ids, torch.arange(ids.shape[1])[None].expand_as(ids), types)
        x = drop(x, dropout)
        attend = attend_padded(mask, self.shape.heads)
        for layer in self.layers[:upto]:
            x = layer(x, attend, dropout=dropout)
        hidden: Tensor = x
        return hidden
