"""A language model of Llama's shape: RMSNorm before each block, rotary positions, grouped heads of keys and
values, SwiGLU. For distillation, PLOT builds and as the reference of serving."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.model.network.encoder import Delta, attention, no_delta
from hmi.model.network.shape import DecoderShape

CausalAttend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""(q [B, heads, T, head_dim], k and v [B, kv_heads, T, head_dim]) -> context [B, heads, T, head_dim]."""


class DecoderLayer(nn.Module):
    """One layer. q, k and v share one matrix, and so do the gate and the value of SwiGLU."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        d, wide, narrow = shape.dim, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim
        self.head_dim, self.sizes = shape.head_dim, (wide, narrow, narrow)
        self.ln1 = nn.RMSNorm(d, eps=shape.eps)
        self.qkv = nn.Linear(d, wide + 2 * narrow, bias=shape.qkv_bias)
        self.o = nn.Linear(wide, d, bias=False)
        self.ln2 = nn.RMSNorm(d, eps=shape.eps)
        self.fi = nn.Linear(d, 2 * shape.ffn, bias=False)
        self.fo = nn.Linear(shape.ffn, d, bias=False)
        self.q_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps) if shape.qk_norm else None
        self.k_norm = nn.RMSNorm(shape.head_dim, eps=shape.eps) if shape.qk_norm else None

    def forward(self, x: Tensor, turns: Tensor, attend: CausalAttend, delta: Delta = no_delta) -> Tensor:
        """x [B, T, dim], turns [2, T, head_dim] as `rotary` -> [B, T, dim]. delta: a tenant's change."""
        return self.finish(x, attend(*self.project(x, turns, delta)), delta)

    def project(self, x: Tensor, turns: Tensor, delta: Delta = no_delta) -> tuple[Tensor, Tensor, Tensor]:
        """x [B, T, dim] -> q [B, heads, T, head_dim], k and v [B, kv_heads, T, head_dim]."""
        h = self.ln1(x)
        q, k, v = self.qkv(h).split(self.sizes, dim=-1)
        q, k, v = delta("q", h, q), delta("k", h, k), delta("v", h, v)
        q, k, v = (part.unflatten(-1, (-1, self.head_dim)) for part in (q, k, v))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = self.q_norm(q), self.k_norm(k)
        q, k, v = (part.transpose(1, 2) for part in (q, k, v))
        return _turned(q, turns), _turned(k, turns), v

    def finish(self, x: Tensor, context: Tensor, delta: Delta = no_delta) -> Tensor:
        """The layer after attention: its input x [B, T, dim] and the context [B, heads, T, head_dim] ->
        [B, T, dim]."""
        c = context.transpose(1, 2).flatten(-2)
        x = x + delta("o", c, self.o(c))
        h = self.ln2(x)
        gate, value = self.fi(h).chunk(2, dim=-1)
        g = F.silu(delta("gate", h, gate)) * delta("fi", h, value)
        return x + delta("fo", g, self.fo(g))


class Decoder(nn.Module):
    """The whole language model, not split. Ids are the source's plus one."""

    def __init__(self, shape: DecoderShape) -> None:
        super().__init__()
        self.shape = shape
        self.word = nn.Embedding(shape.vocab, shape.dim)
        self.layers = nn.ModuleList(DecoderLayer(shape) for _ in range(shape.layers))
        self.norm = nn.RMSNorm(shape.dim, eps=shape.eps)
        self.scores = None if shape.tied else nn.Linear(shape.dim, shape.vocab, bias=False)

    def forward(self, ids: Tensor, *, upto: int | None = None) -> Tensor:
        """ids [B, T] int64, padded with 0 at the end -> states [B, T, dim] after the first `upto` layers (by
        default all). Padding stands after all tokens, so no token attends to it."""
        return run_layers(self.layers[:upto], self.word(ids), self.shape)

    def logits(self, states: Tensor) -> Tensor:
        """The states after all layers [..., dim] -> the scores of the next token [..., vocab]. That of id 0,
        no token, is -inf."""
        return score(self.norm(states), self.word.weight if self.scores is None else self.scores.weight)


def score(states: Tensor, words: Tensor) -> Tensor:
    """Normed states [..., dim] and the words' vectors [vocab, dim] -> scores [..., vocab], of id 0 -inf."""
    scores = F.linear(states, words)
    scores[..., 0] = -torch.inf
    return scores


def run_layers(layers: Iterable[nn.Module], x: Tensor, shape: DecoderShape) -> Tensor:
    """x [B, T, dim], a text's first tokens -> [B, T, dim] after these layers."""
    turns = rotary(x.shape[1], shape.head_dim, shape.base).to(x.dtype)
    for layer in layers:
        x = layer(x, turns, attend_before)
    return x


def attend_before(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """Attention of each token to itself and those before it, as `CausalAttend` says.

    In training with bf16, in which v is then, it uses plain products, as `attention` does and says why. A
    head of keys is multiplied once, by the queries of all the heads that share it.
    """
    if v.dtype != torch.bfloat16 or not torch.is_grad_enabled():
        return F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=q.shape[1] != k.shape[1])
    before = torch.ones(q.shape[2], k.shape[2], dtype=torch.bool).tril()
    shared = q.shape[1] // k.shape[1]
    grouped = q.to(v.dtype).unflatten(1, (-1, shared)).flatten(2, 3)
    mixed: Tensor = attention(grouped, k.to(v.dtype), v, before.repeat(shared, 1))
    heads: Tensor = mixed.unflatten(2, (shared, -1)).flatten(1, 2)
    return heads


@lru_cache(maxsize=64)
def rotary(length: int, head_dim: int, base: float) -> Tensor:
    """The cosines and sines of the positions below `length`: fp32 [2, length, head_dim].

    Numbers i and i + head_dim / 2 of a head are turned together, as in transformers (GGUF interleaves them).
    """
    # The cached tensor must not be an inference tensor, since later calls may need gradients.
    with torch.inference_mode(False):
        rates = base ** -(torch.arange(0, head_dim, 2).float() / head_dim)
        angles = torch.outer(torch.arange(length).float(), rates).repeat(1, 2)
        return torch.stack([angles.cos(), angles.sin()])


def _turned(x: Tensor, turns: Tensor) -> Tensor:
    first, second = x.chunk(2, dim=-1)
    return x * turns[0] + torch.cat([-second, first], dim=-1) * turns[1]
