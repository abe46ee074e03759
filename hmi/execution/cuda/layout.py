"""A tenant's module as one array, layer after layer, so that neighbouring layers are one copy to the device.

Every change of rank r is up · act(down · x + bias) + bias. A LoRA's factor is multiplied into `up`, and it
has neither activation nor biases.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property, lru_cache

import torch
import torch.nn.functional as F
from hmi_kernels.modules import ops
from torch import Tensor

from hmi.execution.cuda.device import Device
from hmi.model.network.shape import DecoderShape, EncoderShape
from hmi.model.tenant.modules import LORA_SCALE, LowRankLayer, NormShift, TenantModule, sizes_of
from hmi.modulespec import GATED, SITES

ALIGN = 16
"""Tensors begin at multiples of this many elements."""
NOWHERE = -1
"""The place of a bias that a change does not have."""
LOW_RANK = (*GATED, *SITES["parallel"], *SITES["sequential"], *SITES["houlsby"])
"""The sites of low-rank changes, in encoders and in language models."""


@dataclass(frozen=True)
class LowRankPlace:
    """The offsets of the tensors of a low-rank change, in elements from the module's beginning."""

    down: int
    """[rank, size_in]"""
    up: int
    """[size_out, rank]"""
    down_bias: int
    up_bias: int
    rank: int
    size_in: int
    size_out: int
    activation: int


@dataclass(frozen=True)
class NormPlace:
    """The offsets of the tensors of a LayerNorm's change."""

    gain: int
    bias: int
    size: int


Place = LowRankPlace | NormPlace


@dataclass(frozen=True, eq=False)
class ModuleLayout:
    """The places in a module. Modules of equal kind, sites and rank share one object."""

    layers: tuple[dict[str, Place], ...]
    """By site."""
    spans: tuple[tuple[int, int], ...]
    """[layers]: the elements of each."""

    @property
    def size(self) -> int:
        """Elements of the whole module."""
        return self.spans[-1][1]

    @cached_property
    def sites(self) -> frozenset[str]:
        """The sites that the module changes in some layer."""
        return frozenset(site for places in self.layers for site in places)

    @cached_property
    def rank(self) -> int:
        """The greatest rank of a low-rank change; 0: there is none."""
        every = (place for places in self.layers for place in places.values())
        return max((place.rank for place in every if isinstance(place, LowRankPlace)), default=0)


@dataclass(frozen=True, eq=False)
class Packed:
    """A module in pinned host memory, as it lies in a slot."""

    layout: ModuleLayout
    data: Tensor
    """[layout.size] in the executor's dtype."""


_Site = tuple[str, int, bool, int]
"""A site, its rank (0: a LayerNorm), whether it has biases, its activation."""


def pack(
    module: TenantModule, layers: int, shape: EncoderShape | DecoderShape, dtype: torch.dtype, device: Device
) -> Packed:
    """Copy a module into pinned memory. Raises ValueError if its sizes are not the root's."""
    signature = tuple(tuple(_sites(module, i)) for i in range(layers))
    layout = _layout(signature, shape)
    data = device.pinned((layout.size,), dtype)
    for i, places in enumerate(layout.layers):
        for site, place in places.items():
            tensors = _tensors(module.at(i, site), place)
            _check([tensor.shape for _, tensor in tensors], place, site)
            for at, tensor in tensors:
                data[at : at + tensor.numel()] = tensor.reshape(-1)
    return Packed(layout, data)


def lora_size(rank: int, layers: int, shape: EncoderShape | DecoderShape) -> int:
    """The elements of a LoRA of this rank on all its sites."""
    every = SITES["lora"] if isinstance(shape, EncoderShape) else GATED
    sites: tuple[_Site, ...] = tuple((site, rank, False, ops.NONE) for site in every)
    return _layout((sites,) * layers, shape).size


def _sites(module: TenantModule, layer: int) -> list[_Site]:
    found: list[_Site] = []
    for site in (*LOW_RANK, *SITES["ln"]):
        change = module.at(layer, site)
        if isinstance(change, NormShift):
            found.append((site, 0, False, ops.NONE))
        elif change is not None:
            found.append((site, len(change.down), change.down_bias is not None, _activation(change)))
    return found


def _activation(change: LowRankLayer) -> int:
    if change.down_bias is None:
        return ops.NONE
    return ops.RELU if change.activation is F.relu else ops.SILU


@lru_cache(maxsize=4096)
def _layout(signature: tuple[tuple[_Site, ...], ...], shape: EncoderShape | DecoderShape) -> ModuleLayout:
    at, layers, spans = 0, [], []

    def take(size: int) -> int:
        nonlocal at
        begin, at = at, at + -(-size // ALIGN) * ALIGN
        return begin

    for sites in signature:
        begin, places = at, dict[str, Place]()
        for site, rank, biased, activation in sites:
            if site in SITES["ln"]:
                places[site] = NormPlace(take(shape.dim), take(shape.dim), shape.dim)
                continue
            size_in, size_out = sizes_of(site, shape)
            places[site] = LowRankPlace(
                down=take(rank * size_in),
                up=take(size_out * rank),
                down_bias=take(rank) if biased else NOWHERE,
                up_bias=take(size_out) if biased else NOWHERE,
                rank=rank,
                size_in=size_in,
                size_out=size_out,
                activation=activation,
            )
        layers.append(places)
        spans.append((begin, at))
    return ModuleLayout(tuple(layers), tuple(spans))


def _tensors(change: LowRankLayer | NormShift | None, place: Place) -> list[tuple[int, Tensor]]:
    if isinstance(place, NormPlace):
        assert isinstance(change, NormShift)
        return [(place.gain, change.gain.detach()), (place.bias, change.bias.detach())]
    assert isinstance(change, LowRankLayer)
    up = change.up.detach()
    if change.down_bias is None or change.up_bias is None:
        return [(place.down, change.down.detach()), (place.up, up.float() * LORA_SCALE)]
    return [
        (place.down, change.down.detach()),
        (place.up, up),
        (place.down_bias, change.down_bias.detach()),
        (place.up_bias, change.up_bias.detach()),
    ]


def _check(found: Sequence[Sequence[int]], place: Place, site: str) -> None:
    """Raise ValueError unless the tensors fill their places: a free place would hold another module's
    numbers."""
    wanted: list[Sequence[int]]
    if isinstance(place, NormPlace):
        wanted = [(place.size,), (place.size,)]
    else:
        wanted = [(place.rank, place.size_in), (place.size_out, place.rank)]
        if place.down_bias != NOWHERE:
            wanted += [(place.rank,), (place.size_out,)]
    if found != wanted:
        given = [tuple(shape) for shape in found]
        raise ValueError(f"a module's site {site} has the shapes {given}, the layer needs {wanted}")
