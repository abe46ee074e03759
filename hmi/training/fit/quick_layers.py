"""The upper layers as a tenant's training computes them: the same as the server's, in far fewer steps.

Products run on weights that are cast and reordered once, with the tenant's LoRA inside them.
Attention is one step of the tape. Everything else of a layer, and modules of other kinds than LoRA, are the
code of `hmi.model.network.encoder` and `hmi.model.tenant.modules`.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hmi.model.network.encoder import Attend, Delta, EncoderLayer, Norm, heads_first
from hmi.model.network.prepacked import Projection
from hmi.model.network.relative import relative_bias
from hmi.model.tenant.modules import LORA_SCALE, LowRankLayer, TenantModule
from hmi.modulespec import SITES
from hmi.training.fit.precision import native_bf16

_ROWS = 512
"""The number of rows that reordered weights are laid out for: only a hint."""


class _FrozenProduct:
    """x [rows, in] -> x weight^T + bias [rows, out], and its gradient. In bf16 both use reordered weights.

    Torch's own linear map in autocast casts frozen weights to bf16 at every call, has oneDNN reorder them,
    and records every small step of LoRA on the tape. Here weights are cast and reordered once, and the map
    with its LoRA is one step of the tape, whose backward pass is written by hand. The formulas are those of
    `hmi.model.tenant.modules.LowRankLayer`; a test compares both.
    """

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self.dtype, self.out_size = dtype, len(weight)
        self._bias = bias.detach().to(dtype)
        self._plain = weight.detach().to(dtype)
        self._forward = self._backward = self._plain
        self._packed = dtype == torch.bfloat16
        if self._packed:
            self._forward, self._backward = (
                torch.ops.mkldnn._reorder_linear_weight(each.contiguous(), _ROWS)
                for each in (self._plain, self._plain.t())
            )
            del self._plain

    def of(self, x: Tensor) -> Tensor:
        return (
            self._times(x, self._forward, self._bias)
            if self._packed
            else F.linear(x, self._plain, self._bias)
        )

    def back(self, gradient: Tensor) -> Tensor:
        """gradient [rows, out] -> gradient weight [rows, in]."""
        return self._times(gradient, self._backward, None) if self._packed else gradient @ self._plain

    def _times(self, x: Tensor, packed: Tensor, bias: Tensor | None) -> Tensor:
        y: Tensor = torch.ops.mkldnn._linear_pointwise(x.contiguous(), packed, bias, "none", [], "")
        return y


_Place = tuple[int, int, int]
"""The place of a LoRA's change in a product: its first output, the end of its outputs, its rank."""


class _ChangedProduct(nn.Module):
    """A frozen linear map with a tenant's LoRA: x [..., in] -> [..., out] in the product's number format.

    changes: each LoRA, with the first of the map's outputs that it is added to.
    """

    def __init__(self, product: _FrozenProduct, changes: Sequence[tuple[int, LowRankLayer]]) -> None:
        super().__init__()
        self._product = product
        self._places = [(at, at + len(lora.up), len(lora.down)) for at, lora in changes]
        # A tuple, so that the parameters stay those of the tenant's module alone.
        self._trained = (*(lora.down for _, lora in changes), *(lora.up for _, lora in changes))

    def forward(self, x: Tensor) -> Tensor:
        apply: Callable[..., Tensor] = _Changed.apply
        return apply(x.flatten(0, -2), self._product, self._places, *self._trained).view(*x.shape[:-1], -1)


class _Changed(torch.autograd.Function):
    """One step of the tape: a product with its LoRAs."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, product: _FrozenProduct, places: Sequence[_Place], *trained: Tensor
    ) -> Tensor:
        ctx.product, ctx.places, ctx.dtype = product, places, x.dtype
        x = x.to(product.dtype)
        y = product.of(x)
        if places:
            down, up = _joined(product, places, trained)
            low = x @ down.t()
            y.addmm_(low, up.t(), alpha=LORA_SCALE)
            ctx.save_for_backward(x, low, down, up)
        return y

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, gradient: Tensor) -> tuple[Any, ...]:
        gradient, wants = gradient.to(ctx.product.dtype), ctx.needs_input_grad
        back = ctx.product.back(gradient) if wants[0] else None
        if not ctx.places:
            return None if back is None else back.to(ctx.dtype), None, None
        x, low, down, up = ctx.saved_tensors
        low_gradient = (gradient @ up).mul_(LORA_SCALE)
        if back is not None:
            back = back.addmm_(low_gradient, down).to(ctx.dtype)
        downs: list[Tensor | None] = [None] * len(ctx.places)
        ups = downs
        if any(wants[3:]):
            downs = list((low_gradient.t() @ x).float().split([rank for _, _, rank in ctx.places]))
            ups = _split_gradient((low.t() @ gradient).mul_(LORA_SCALE).float(), ctx.places)
        return back, None, None, *downs, *ups


def _joined(
    product: _FrozenProduct, places: Sequence[_Place], trained: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """All downs [ranks, in], and all ups at their places [out, ranks], else zero."""
    count = len(places)
    if places == [(0, product.out_size, len(trained[0]))]:
        down, up = trained
        return down.detach().to(product.dtype), up.detach().to(product.dtype)
    down = torch.cat([each.detach() for each in trained[:count]]).to(product.dtype)
    up = torch.zeros(product.out_size, len(down), dtype=product.dtype)
    at = 0
    for (first, end, rank), each in zip(places, trained[count:], strict=True):
        up[first:end, at : at + rank] = each.detach()
        at += rank
    return down, up


def _split_gradient(gradient: Tensor, places: Sequence[_Place]) -> list[Tensor | None]:
    """The gradient of each up, from that of all of them [ranks, out]."""
    found, at = list[Tensor | None](), 0
    for first, end, rank in places:
        found.append(gradient[at : at + rank, first:end].t().contiguous())
        at += rank
    return found


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

    def product(name: str) -> _ChangedProduct:
        linear = layer.get_submodule(name)
        assert isinstance(linear, nn.Linear)
        return _ChangedProduct(_FrozenProduct(linear.weight, linear.bias, dtype), loras([(0, name)]))

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

        def part(sites: str) -> _ChangedProduct:
            first = "qkv".index(sites) * dim
            rows = slice(first, first + len(sites) * dim)
            product = _FrozenProduct(linear.weight[rows], linear.bias[rows], dtype)
            return _ChangedProduct(product, loras([(i * dim, site) for i, site in enumerate(sites)]))

        self._part, self._parts = part, dict[str, _ChangedProduct]()

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
