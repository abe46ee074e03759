"""Parts of a layer: some of its attention heads and FFN neurons, as if the others contributed zero.

STI (section 4) calls a layer's part a column of shards: head h's rows of Q, K, V and columns of O, with a share
of the FFN's neurons. LayerNorms and the biases of O and of the FFN's output are whole in every part.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from hmi.model.encoder import EncoderLayer
from hmi.model.modules import LowRank, NormShift
from hmi.model.shape import EncoderShape


@dataclass(frozen=True)
class Kept:
    """The heads and FFN neurons that a part of a layer has."""

    heads: Tensor
    """int64 [heads that are kept]."""
    columns: Tensor
    """int64 [heads that are kept · head_dim]: the numbers of q, k, v and the context that these heads have."""
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
    """A layer with some of its heads and neurons. Its weights are uninitialised until they are filled in."""

    def __init__(self, shape: EncoderShape, kept: Kept) -> None:
        with torch.device("meta"):
            super().__init__(shape)
            inner = len(kept.neurons)
            wide = len(kept.columns)
            self.qkv, self.o = nn.Linear(shape.dim, 3 * wide), nn.Linear(wide, shape.dim)
            self.fi, self.fo = nn.Linear(shape.dim, inner), nn.Linear(inner, shape.dim)
            if shape.buckets:
                self.relative = nn.Parameter(torch.empty(shape.buckets, len(kept.heads)))
        self.to_empty(device="cpu")
        self.dim = wide
        whole = len(kept.heads) == shape.heads and inner == shape.ffn
        in_order = whole and bool((kept.heads.diff() > 0).all()) and bool((kept.neurons.diff() > 0).all())
        self.kept = None if in_order else kept
        self.eval().requires_grad_(False)


@torch.no_grad()
def part_of(layer: EncoderLayer, kept: Kept, shape: EncoderShape) -> PartialLayer:
    """Copy a part of a layer, which must not be packed. The reference of parts that are read from shards."""
    part, rows, neurons = PartialLayer(shape, kept), kept.columns, kept.neurons
    for mine, whole in ((part.qkv, layer.qkv), (part.o, layer.o), (part.fi, layer.fi), (part.fo, layer.fo)):
        assert isinstance(mine, nn.Linear)
        assert isinstance(whole, nn.Linear)
        weight, bias = whole.weight, whole.bias
        if whole is layer.qkv:
            taken = torch.cat([rows + i * shape.dim for i in range(3)])
            weight, bias = weight[taken], bias[taken]
        elif whole is layer.fi:
            weight, bias = weight[neurons], bias[neurons]
        else:
            weight = weight[:, rows if whole is layer.o else neurons]
        mine.weight.copy_(weight)
        mine.bias.copy_(bias)
    part.ln1.load_state_dict(layer.ln1.state_dict())
    part.ln2.load_state_dict(layer.ln2.state_dict())
    if layer.relative is not None and part.relative is not None:
        part.relative.copy_(layer.relative[:, kept.heads])
    return part
