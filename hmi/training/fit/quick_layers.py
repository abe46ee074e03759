"""The upper layers as a tenant's training computes them: the same as the server's, in far fewer steps.

Products run on weights that are cast and reordered once, with the tenant's LoRA inside them
(`hmi.training.fit.frozen_products`). Attention is one step of the tape. Everything else of a layer, and
modules of other kinds than LoRA, are the code of `hmi.model.network.encoder` and `hmi.model.tenant.modules`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hmi.model.network.encoder import Attend, Delta, EncoderLayer, Norm, heads_first
from hmi.model.network.prepacked import Projection
from hmi.model.network.relative import relative_bias
from hmi.model.tenant.modules import LowRankLayer, TenantModule
from hmi.modulespec import SITES
from hmi.training.fit.frozen_products import ChangedProduct, FrozenProduct
from hmi.training.fit.precision import native_bf16

PADDED_TO = 4
"""Batches are padded to a multiple of at least this many tokens (`padded_to`)."""

Changed = tuple[Any, Delta]
"""A layer, called as an `EncoderLayer`, and a module's change of it."""


def padded_to(longest: int) -> int:
    """The multiple of tokens that a batch is padded to, by its longest text: within an eighth of its length.

    oneDNN generates code for every new shape and keeps it, hundreds of KB each, so few shapes save memory.
    """
    return max(PADDED_TO, 1 << longest.bit_length() >> 4)


def quick_layers(upper: nn.ModuleList, module: TenantModule, *, bf16: bool) -> list[Changed]:
    """Each layer with the LoRAs of its products in it, and the rest of the module's change of that layer.

    The parameters are those of `module`; the layers' own weights are copied and must stay frozen.
    """
    dtype = torch.bfloat16 if bf16 and native_bf16() else torch.float32
    return [
        (_quick(layer, module, i, dtype), _without_lora(module.delta(i)))
        for i, layer in enumerate(upper)
        if isinstance(layer, EncoderLayer)
    ]


def attend_quickly(mask: Tensor, heads: int) -> Attend:
    """`hmi.model.network.encoder.attend_padded` as one step of the tape. mask [B, T] is true at tokens."""
    hidden = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)[:, None, None, :]

    def attend(q: Tensor, k: Tensor, v: Tensor, relative: Tensor | None = None) -> Tensor:
        scores = hidden
        if relative is not None:
            scores = hidden + relative_bias(relative, k.shape[-2], q.shape[-2]).detach().float()
        apply: Callable[..., Tensor] = _Attention.apply
        return apply(q, k, v, scores, heads)

    return attend


def _quick(layer: EncoderLayer, module: TenantModule, at: int, dtype: torch.dtype) -> EncoderLayer:
    """The layer with other products. All else it shares with the given one."""
    assert isinstance(layer.qkv, nn.Linear), "a layer that is packed for serving cannot be trained"

    def product(name: str) -> ChangedProduct:
        linear = layer.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        return ChangedProduct(FrozenProduct(linear.weight, linear.bias, dtype), loras([(0, name)]))

    def loras(places: Iterable[tuple[int, str]]) -> list[tuple[int, LowRankLayer]]:
        found = [(first, module.at(at, site)) for first, site in places]
        return [(first, change) for first, change in found if isinstance(change, LowRankLayer)]

    made = copy.copy(layer)
    made._modules = dict(layer._modules)  # the copy would otherwise share the mapping with its original
    made.qkv = _TrainedProjection(layer.qkv, layer.dim, loras, dtype)
    made.o, made.fi, made.fo = product("o"), product("fi"), product("fo")
    return made


class _TrainedProjection(Projection):
    """q, k and v of a layer with their LoRAs: in one product, or q apart for a few rows only."""

    def __init__(self, linear: nn.Linear, dim: int, loras: Any, dtype: torch.dtype) -> None:
        super().__init__()
        self._dim = dim

        def part(sites: str) -> ChangedProduct:
            first = "qkv".index(sites) * dim
            rows = slice(first, first + len(sites) * dim)
            product = FrozenProduct(linear.weight[rows], linear.bias[rows], dtype)
            return ChangedProduct(product, loras([(i * dim, site) for i, site in enumerate(sites)]))

        self._part, self._parts = part, dict[str, ChangedProduct]()

    def forward(self, x: Tensor, xq: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        if xq is None:
            q, k, v = self._of("qkv", x).split(self._dim, dim=-1)
            return q, k, v
        k, v = self._of("kv", x).split(self._dim, dim=-1)
        return self._of("q", xq), k, v

    def _of(self, sites: str, x: Tensor) -> Tensor:
        if sites not in self._parts:
            self._parts[sites] = self._part(sites)
        y: Tensor = self._parts[sites](x)
        return y


def _without_lora(delta: Delta) -> Delta:
    """The change without that at the products, which are changed already."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        return y if site in SITES["lora"] else delta(site, x, y, norm)

    return apply


class _Attention(torch.autograd.Function):
    """Scaled dot-product attention: q [B, Tq, dim], k and v [B, T, dim] -> [B, Tq, dim].

    scores: fp32, added to those of the texts [B, heads, Tq, T]; each size but the last may be 1. The softmax
    is computed in fp32, because torch takes three times as long in bf16.
    """

    @staticmethod
    def forward(ctx: Any, q: Tensor, k: Tensor, v: Tensor, scores: Tensor, heads: int) -> Tensor:
        size, scale = len(q), (q.shape[-1] // heads) ** -0.5
        q, k, v = (heads_first(each, heads).flatten(0, 1) for each in (q, k, v))
        raw = torch.bmm(q, k.transpose(1, 2)).float().unflatten(0, (size, heads))
        weights = raw.mul_(scale).add_(scores).softmax(-1).flatten(0, 1)
        ctx.save_for_backward(q, k, v, weights)
        ctx.size, ctx.scale = size, scale
        return _side_by_side(torch.bmm(weights.to(v.dtype), v), size)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        q, k, v, weights = ctx.saved_tensors
        gradient = heads_first(gradient, len(q) // ctx.size).flatten(0, 1)
        mixed = torch.bmm(weights.to(v.dtype).transpose(1, 2), gradient)
        raw = torch.bmm(gradient, v.transpose(1, 2)).float()
        raw = torch._softmax_backward_data(raw, weights, -1, torch.float32).mul_(ctx.scale).to(q.dtype)
        found = torch.bmm(raw, k), torch.bmm(raw.transpose(1, 2), q), mixed
        return *(_side_by_side(each, ctx.size) for each in found), None, None


def _side_by_side(x: Tensor, size: int) -> Tensor:
    """[B · heads, T, head_dim] -> [B, T, dim]."""
    y: Tensor = x.view(size, -1, *x.shape[1:]).transpose(1, 2).flatten(-2)
    return y
