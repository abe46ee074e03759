"""The codec of shards: Gaussian outlier-aware quantisation with a dictionary for each layer (STI §4.2, §6).

A layer has as many shards as attention heads. A shard is one head's rows of Q, K and V and columns of O, and
an equal share of the neurons: their rows of FFN1 and columns of FFN2. All weights of a layer are quantised
together: one Gaussian is fitted to them, those whose log-likelihood is below THRESHOLD are outliers and kept
as they are, and the others are sorted into 2^bits bins of equal population. The mean of a bin stands for its
weights.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any

import numpy as np
from hmi_kernels.later import Later
from numpy.typing import NDArray
from torch import nn

from hmi.errors import UnsupportedModel
from hmi.model.network.encoder import EncoderLayer
from hmi.stages.elastic_shards.versions import FULL

Floats = NDArray[np.float32]
Bytes = NDArray[np.uint8]
Indexes = NDArray[np.int64]
ops = Later("shards.ops")

THRESHOLD = -4.0
"""Weights with a lower log-likelihood are outliers. It is the likelihood of a density, so the distance from
the mean that it stands for depends on the weights' scale: `Gaussian.reach`."""


@dataclass(frozen=True)
class ShardedLayer:
    """The weights of one layer that are cut into shards, fp32."""

    qkv: Floats
    """[3·dim, dim]."""
    o: Floats
    """[dim, dim]."""
    fi: Floats
    """[ffn, dim]."""
    fo: Floats
    """[dim, ffn]."""

    @classmethod
    def of(cls, layer: nn.Module) -> ShardedLayer:
        """Return views of a plain layer's weights."""
        assert isinstance(layer, EncoderLayer)
        weights = []
        for part in (layer.qkv, layer.o, layer.fi, layer.fo):
            assert isinstance(part, nn.Linear), "layers are cut before they are packed"
            weights.append(part.weight.detach().numpy())
        return cls(*weights)

    @classmethod
    def empty(cls, dim: int, ffn: int) -> ShardedLayer:
        """Return uninitialised memory for a layer with `ffn` neurons."""
        sizes = ((3 * dim, dim), (dim, dim), (ffn, dim), (dim, ffn))
        return cls(*(np.empty(size, np.float32) for size in sizes))


@dataclass(frozen=True)
class LayerCut:
    """The way in which one layer is cut into shards."""

    dim: int
    heads: tuple[int, ...]
    """[shards]: the head of each shard."""
    neurons: tuple[Indexes, ...]
    """[shards]: the neurons of each shard, ascending."""

    @classmethod
    def plain(cls, dim: int, heads: int, ffn: int) -> LayerCut:
        """Cut in the order of the weights: shard i has head i and the i-th share of the neurons."""
        return cls.ordered(dim, range(heads), np.arange(ffn))

    @classmethod
    def ordered(cls, dim: int, heads: Sequence[int], neurons: Indexes) -> LayerCut:
        """Cut in this order. heads, neurons: every head and neuron once. Earlier releases could sort them."""
        shares = np.array_split(np.asarray(neurons, np.int64), len(heads))
        return cls(dim, tuple(map(int, heads)), tuple(np.sort(share) for share in shares))

    def __len__(self) -> int:
        return len(self.heads)

    @property
    def head_dim(self) -> int:
        return self.dim // len(self.heads)

    def size(self, shard: int) -> int:
        """The number of weights of a shard."""
        return self.dim * (4 * self.head_dim + 2 * len(self.neurons[shard]))

    def weights_of(self, weights: ShardedLayer, shard: int) -> Floats:
        """Return a copy of a shard's weights, one after another in the order in which they are stored."""
        d, h, mine = self.dim, self.heads[shard] * self.head_dim, self.neurons[shard]
        rows = [weights.qkv[at + h : at + h + self.head_dim] for at in (0, d, 2 * d)]
        parts = [*rows, weights.o[:, h : h + self.head_dim], weights.fi[mine], weights.fo[:, mine]]
        return np.concatenate([part.ravel() for part in parts])


class LayerBuffer:
    """Memory for the weights of one layer, in the order of the layer's own heads and neurons."""

    def __init__(self, cut: LayerCut, weights: ShardedLayer | None = None) -> None:
        """weights: the memory of another buffer of the same size, which this one shares; None: memory of its
        own."""
        self.weights = weights or ShardedLayer.empty(cut.dim, sum(map(len, cut.neurons)))
        self._destinations = [self._destination(cut, shard) for shard in range(len(cut))]

    def decode(self, shard: int, bits: int, blob: Bytes, pairs: Floats | None) -> None:
        """Write a shard into its place. pairs: those of the layer's dictionary (`Dictionary.pairs`); None if
        `bits` is FULL. Raises ValueError if the blob is not a shard of this size. Releases the GIL."""
        self._destinations[shard].write(blob, bits, pairs)

    def _destination(self, cut: LayerCut, shard: int) -> Any:
        w, size = self.weights, cut.head_dim
        at = cut.heads[shard] * size
        blocks = [ops.Block(w.qkv[first + at : first + at + size]) for first in (0, cut.dim, 2 * cut.dim)]
        blocks.append(ops.Block(w.o[:, at : at + size]))
        places = cut.neurons[shard]
        if len(places) and places[-1] - places[0] == len(places) - 1:
            first, end = places[0], places[-1] + 1
            blocks += [ops.Block(w.fi[first:end]), ops.Block(w.fo[:, first:end])]
        else:
            blocks += [ops.Block(w.fi, rows=places), ops.Block(w.fo, columns=places)]
        return ops.Destination(blocks)


@dataclass(frozen=True)
class Gaussian:
    """The Gaussian that is fitted to a layer's weights."""

    mean: float
    std: float

    @classmethod
    def fitted(cls, weights: Floats) -> Gaussian:
        return cls(float(weights.mean(dtype=np.float64)), float(weights.std(dtype=np.float64)))

    @property
    def reach(self) -> float:
        """The distance from the mean, in standard deviations, beyond which a weight is an outlier.

        0 if all weights are, and infinite if none is.
        """
        if self.std == 0.0:
            return math.inf
        return math.sqrt(max(0.0, -2 * THRESHOLD - math.log(2 * math.pi * self.std**2)))

    def outliers(self, weights: Floats) -> NDArray[np.bool_]:
        """Return which of the weights are outliers."""
        if self.std == 0.0:
            return np.zeros(weights.shape, bool)
        z = (weights.astype(np.float64) - self.mean) / self.std
        below: NDArray[np.bool_] = -0.5 * (math.log(2 * math.pi * self.std**2) + z * z) < THRESHOLD
        return below


class Dictionary:
    """The numbers that stand for a layer's bins at one bitwidth."""

    def __init__(self, table: Floats) -> None:
        self.table = table
        """[2^bits]."""

    @cached_property
    def pairs(self) -> Floats:
        """[4^bits, 2]: the numbers of each pair of codes, as the kernel reads them."""
        found: Floats = ops.pairs_of(self.table)
        return found


class LayerCodec:
    """Quantises the weights of one layer."""

    def __init__(self, shards: Sequence[Floats]) -> None:
        """shards: the weights of each. Raises UnsupportedModel if one is not finite."""
        self._shards = shards
        self._bounds = np.cumsum([0, *map(len, shards)])
        flat = np.concatenate(shards)
        if not np.isfinite(flat).all():
            raise UnsupportedModel("a layer has weights that are not finite: it cannot be cut into shards")
        self.gaussian = Gaussian.fitted(flat)
        self._outside = self.gaussian.outliers(flat)
        inside = np.flatnonzero(~self._outside)
        self._order = inside[np.argsort(flat[inside], kind="stable")]
        self._flat = flat

    @property
    def outliers(self) -> float:
        """The share of the weights that are outliers."""
        return float(self._outside.mean())

    def encoded(self, bits: int) -> tuple[Floats, list[Bytes]]:
        """Return the dictionary [2^bits] and each shard's blob. With FULL bits the dictionary is empty."""
        if bits == FULL:
            return np.empty(0, np.float32), [_padded(shard.view(np.uint8)) for shard in self._shards]
        codes, table = self._codes(bits)
        return table, [self._blob(codes, i, bits) for i in range(len(self._shards))]

    def _codes(self, bits: int) -> tuple[Bytes, Floats]:
        """The bin of each weight, 0 for outliers, and the mean of each bin. A bin's population differs from
        another's by one at most."""
        count, bins = len(self._order), 1 << bits
        bounds = [-(-count * b // bins) for b in range(bins + 1)]
        codes, table = np.zeros(len(self._flat), np.uint8), np.zeros(bins, np.float32)
        for b, (first, end) in enumerate(pairwise(bounds)):
            mine = self._order[first:end]
            codes[mine] = b
            if len(mine):
                table[b] = self._flat[mine].mean(dtype=np.float64)
        return codes, table

    def _blob(self, codes: Bytes, shard: int, bits: int) -> Bytes:
        first, end = self._bounds[shard], self._bounds[shard + 1]
        positions = np.flatnonzero(self._outside[first:end]).astype(np.uint32)
        parts = (ops.pack(codes[first:end], bits), positions, self._shards[shard][positions])
        return np.concatenate([part.view(np.uint8) for part in parts])


def _padded(data: Bytes) -> Bytes:
    return np.concatenate([data, np.zeros(-len(data) % 8, np.uint8)])
