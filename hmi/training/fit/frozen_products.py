"""Linear maps whose weights are frozen while a tenant's LoRA beside them is trained.

Torch's own linear map in autocast casts frozen weights to bf16 at every call, has oneDNN reorder them, and
records every small step of LoRA on the tape. Here weights are cast and reordered once, and the map with its
LoRA is one step of the tape, whose backward pass is written by hand. The formulas are those of
`hmi.model.tenant.modules.LowRankLayer`; a test compares both.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from hmi.model.tenant.modules import LORA_SCALE, LowRankLayer

ROWS = 512
"""The number of rows that reordered weights are laid out for: only a hint."""


class FrozenProduct:
    """x [rows, in] -> x weight^T + bias [rows, out], and its gradient. In bf16 both use reordered weights."""

    def __init__(self, weight: Tensor, bias: Tensor, dtype: torch.dtype) -> None:
        self.dtype, self.out_size = dtype, len(weight)
        self._bias = bias.detach().to(dtype)
        self._plain = weight.detach().to(dtype)
        self._forward = self._backward = self._plain
        self._packed = dtype == torch.bfloat16
        if self._packed:
            self._forward, self._backward = (
                torch.ops.mkldnn._reorder_linear_weight(each.contiguous(), ROWS)
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


Place = tuple[int, int, int]
"""The place of a LoRA's change in a product: its first output, the end of its outputs, its rank."""


class ChangedProduct(nn.Module):
    """A frozen linear map with a tenant's LoRA: x [..., in] -> [..., out] in the product's number format.

    changes: each LoRA, with the first of the map's outputs that it is added to.
    """

    def __init__(self, product: FrozenProduct, changes: Sequence[tuple[int, LowRankLayer]]) -> None:
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
        ctx: Any, x: Tensor, product: FrozenProduct, places: Sequence[Place], *trained: Tensor
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
    product: FrozenProduct, places: Sequence[Place], trained: Sequence[Tensor]
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


def _split_gradient(gradient: Tensor, places: Sequence[Place]) -> list[Tensor | None]:
    """The gradient of each up, from that of all of them [ranks, out]."""
    found, at = list[Tensor | None](), 0
    for first, end, rank in places:
        found.append(gradient[at : at + rank, first:end].t().contiguous())
        at += rank
    return found
