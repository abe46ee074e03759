"""Tenant modules: low-rank changes at named sites of each upper layer, for LoRA and parallel adapters alike.

Sites of a layer, with what they read and what they are added to:

| site          | reads                | added to                  | used by  |
|---------------|----------------------|---------------------------|----------|
| q, k, v       | the layer's input    | query, key, value         | LoRA     |
| o             | attention's context  | attention's output        | LoRA     |
| fi            | the FFN's input      | the FFN before its GELU   | LoRA     |
| fo            | the GELU's output    | the FFN's output          | LoRA     |
| attn          | the layer's input    | attention's output        | parallel |
| ffn           | the FFN's input      | the FFN's output          | parallel |

One shape for both (down, activation, up) keeps the batched product in one place. Every up matrix starts at zero,
so a fresh module changes nothing. Source: HMI section 4.3, LoRA (Hu et al.), parallel adapters (He et al.).
"""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.core import ModuleSpec
from hmi.errors import Damaged
from hmi.model.encoder import Delta
from hmi.model.shape import EncoderShape

LORA_SCALE = 2.0
SITES: dict[str, tuple[str, ...]] = {
    "lora": ("q", "k", "v", "o", "fi", "fo"),
    "parallel": ("attn", "ffn"),
}


class LowRank(nn.Module):
    """x [..., in] -> act(x down^T + bias) up^T + bias [..., out]; LoRA has neither activation nor biases."""

    def __init__(self, down: Tensor, up: Tensor, down_bias: Tensor | None = None, up_bias: Tensor | None = None):
        super().__init__()
        self.down, self.up = nn.Parameter(down), nn.Parameter(up)
        self.down_bias = None if down_bias is None else nn.Parameter(down_bias)
        self.up_bias = None if up_bias is None else nn.Parameter(up_bias)

    def forward(self, x: Tensor) -> Tensor:
        h = F.linear(x, self.down, self.down_bias)
        if self.down_bias is None:
            return F.linear(h, self.up) * LORA_SCALE
        return F.linear(F.relu(h), self.up, self.up_bias)

    def add_to(self, y: Tensor, x: Tensor) -> None:
        """y += this(x), in place and without a tensor between: for serving."""
        h = F.linear(x, self.down, self.down_bias)
        if self.down_bias is None:
            y.addmm_(h, self.up.t(), alpha=LORA_SCALE)
            return
        assert self.up_bias is not None
        y.addmm_(F.relu(h), self.up.t()).add_(self.up_bias)


class TenantModule(nn.Module):
    """All of one tenant's changes to the upper layers, by `layer-site`."""

    def __init__(self, sites: Mapping[str, LowRank]) -> None:
        super().__init__()
        self.sites = nn.ModuleDict(sites)

    def at(self, layer: int, site: str) -> LowRank | None:
        key = f"{layer}-{site}"
        if key not in self.sites:
            return None
        found = self.sites[key]
        assert isinstance(found, LowRank)
        return found

    def delta(self, layer: int) -> Delta:
        """This tenant's change for every row, for a batch that is all its own."""

        def apply(site: str, x: Tensor, y: Tensor) -> Tensor:
            low_rank = self.at(layer, site)
            return y if low_rank is None else y + low_rank(x)

        return apply


def new_module(spec: ModuleSpec, shape: EncoderShape, depth: int) -> TenantModule:
    """A fresh module for `depth` upper layers: random down, zero up."""
    sites = {f"{i}-{site}": _fresh(spec, site, shape) for i in range(depth) for site in SITES[spec.kind]}
    return TenantModule(sites)


def module_from(state: Mapping[str, Tensor]) -> TenantModule:
    """Rebuild a module from its tensors alone (fp16 at rest, fp32 in memory); raises Damaged."""
    parts: dict[str, dict[str, Tensor]] = {}
    for name, value in state.items():
        _, site, part = name.split(".")
        parts.setdefault(site, {})[part] = value.float()
    try:
        return TenantModule({site: LowRank(**p) for site, p in parts.items()}).eval().requires_grad_(False)
    except TypeError as error:
        raise Damaged(f"a tenant module's tensors are not a module ({error}): roll back or fine-tune again") from error


def _fresh(spec: ModuleSpec, site: str, shape: EncoderShape) -> LowRank:
    size_in, size_out = _sizes(site, shape)
    down, up = torch.empty(spec.rank, size_in), torch.zeros(size_out, spec.rank)
    nn.init.kaiming_uniform_(down, a=math.sqrt(5))
    if spec.kind == "lora":
        return LowRank(down, up)
    return LowRank(down, up, torch.zeros(spec.rank), torch.zeros(size_out))


def _sizes(site: str, shape: EncoderShape) -> tuple[int, int]:
    if site == "fi":
        return shape.dim, shape.ffn
    if site == "fo":
        return shape.ffn, shape.dim
    return shape.dim, shape.dim
