"""Parts of a layer: some of its attention heads and FFN neurons, as if the others contributed zero.

STI (section 4) calls a layer's part a column of shards: head h's rows of Q, K, V and columns of O, with a
share of the FFN's neurons. LayerNorms and the biases of O and of the FFN's output are whole in every part.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

import torch
from torch import Tensor, nn

from hmi.model.encoder import EncoderLayer
from hmi.model.modules import LowRank, NormShift
from hmi.model.shape import EncoderShape

WHOLE: Final = ("o.bias", "fo.bias", "ln1.weight", "ln1.bias", "ln2.weight", "ln2.bias")
"""The tensors that every part of a layer has as they are."""


@dataclass(frozen=True)
class Kept:
    """The heads and FFN neurons that a part of a layer has."""

    heads: Tensor
    """int64 [heads that are kept]."""
    columns: Tensor
    """int64 [heads that are kept · head_dim]: the numbers of q, k, v and the context that these heads
    have."""
    neurons: Tensor
    """int64 [neurons that are kept], in the part's order."""

    @classmethod
    def of(cls, heads: Sequence[int], neurons: Sequence[int] | Tensor, head_dim: int) -> Kept:
        """Return the kept heads and neurons as indexes; each index occurs once."""
        chosen = torch.as_tensor(heads, dtype=torch.int64)
        columns = (chosen[:, None] * head_dim + torch.arange(head_dim)).flatten()
        return cls(chosen, columns, torch.as_tensor(neurons, dtype=torch.int64))

    def narrowed(self, site: str, change: LowRank | NormShift) -> LowRank | NormShift:
        """Return a tenant's change at a site for the part: a low-rank change of q, k, v or fi without the
        missing outputs, one of o or fo without the missing inputs, and every other change as it is."""
        if not isinstance(change, LowRank):
            return change
        if site in ("q", "k", "v"):
            return LowRank(change.down, change.up[self.columns])
        if site == "fi":
            return LowRank(change.down, change.up[self.neurons])
        if site == "o":
            return LowRank(change.down[:, self.columns], change.up)
        if site == "fo":
            return LowRank(change.down[:, self.neurons], change.up)
        return change


class PartialLayer(EncoderLayer):
    """A layer with some of its heads and neurons, over tensors that it does not copy."""

    def __init__(self, shape: EncoderShape, kept: Kept, state: Mapping[str, Tensor]) -> None:
        """state: the part's tensors, under their names in a layer's `state_dict`. Raises RuntimeError if one
        is missing or is not of the part's size."""
        with torch.device("meta"):
            super().__init__(shape)
            wide, inner = len(kept.columns), len(kept.neurons)
            self.qkv, self.o = nn.Linear(shape.dim, 3 * wide), nn.Linear(wide, shape.dim)
            self.fi, self.fo = nn.Linear(shape.dim, inner), nn.Linear(inner, shape.dim)
            if shape.buckets:
                self.relative = nn.Parameter(torch.empty(shape.buckets, len(kept.heads)))
        self.load_state_dict(dict(state), assign=True)
        self.dim = wide
        whole = len(kept.heads) == shape.heads and inner == shape.ffn
        in_order = whole and bool((kept.heads.diff() > 0).all()) and bool((kept.neurons.diff() > 0).all())
        self.kept = None if in_order else kept
        self.eval().requires_grad_(False)

    def reordered(self, *, last: bool) -> EncoderLayer:
        """Return a packed copy (`EncoderLayer.pack`), which is faster where many rows pay for its making."""
        made = copy.copy(self)
        made._modules = dict(self._modules)
        made.pack(last=last)
        return made


def rest_of(state: Mapping[str, Tensor], kept: Kept, dim: int) -> dict[str, Tensor]:
    """Return a part's tensors other than its four matrices.

    state: those of the whole layer, under their names in its `state_dict`; others are left out.
    """
    three = torch.cat([kept.columns + i * dim for i in range(3)])
    found = {name: state[name] for name in WHOLE}
    found |= {"qkv.bias": state["qkv.bias"][three], "fi.bias": state["fi.bias"][kept.neurons]}
    if "relative" in state:
        found["relative"] = state["relative"][:, kept.heads]
    return found


def part_of(layer: EncoderLayer, kept: Kept, shape: EncoderShape) -> PartialLayer:
    """Copy a part of a layer, which must not be packed. The reference of parts that are read from shards."""
    state = layer.state_dict()
    three = torch.cat([kept.columns + i * shape.dim for i in range(3)])
    matrices = {
        "qkv.weight": state["qkv.weight"][three],
        "o.weight": state["o.weight"][:, kept.columns],
        "fi.weight": state["fi.weight"][kept.neurons],
        "fo.weight": state["fo.weight"][:, kept.neurons],
    }
    return PartialLayer(shape, kept, {**matrices, **rest_of(state, kept, shape.dim)})
