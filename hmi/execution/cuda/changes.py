"""Tenants' changes to the packed rows of a batch, in one of three ways; `Loop` is the reference.

A way is made for one batch. `Loop` runs tenant by tenant, `ways` has one product for all tenants of
a layout, `segmented.Segmented` runs a kernel over all segments.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal, Protocol

import numpy as np
import torch
import torch.nn.functional as F
from hmi_kernels.modules import ops
from torch import Tensor

from hmi.execution.cuda.layout import NOWHERE, LowRankPlace, NormPlace
from hmi.execution.cuda.slots import Entry
from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.execution.segments import Segment
from hmi.model.network.encoder import Delta, Norm
from hmi.model.tenant.modules import NORM_EPS
from hmi.modulespec import SITES

WayName = Literal["loop", "groups", "kernel"]
NORMS = tuple(SITES["ln"])


class Way(Protocol):
    """One batch's changes."""

    def low_rank(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        """y += each segment's change of x, in place, at a site whose changes are low-rank."""
        ...


class Norms(Protocol):
    """One batch's changes of LayerNorms."""

    def add(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        """y += each segment's change of x, in place, at a LayerNorm's site."""
        ...


def sites_at(segments: Sequence[Segment[Entry]], layer: int) -> set[str]:
    """The sites of a layer that some segment changes."""
    return {site for s in segments for site in s.module.layout.layers[layer]}


def delta(sites: Collection[str], way: Way | None, norms: Norms, layer: int) -> Delta:
    """The changes of a layer at `sites`, in place. way: None if no change is low-rank."""

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        if site not in sites:
            return y
        if site in NORMS:
            norms.add(layer, site, x, y)
        else:
            assert way is not None
            way.low_rank(layer, site, x if norm is None else norm(y + x), y)
        return y

    return apply


class Loop:
    """One segment after another."""

    def __init__(self, segments: Sequence[Segment[Entry]]) -> None:
        self._segments = segments

    def low_rank(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        for s in self._segments:
            place = s.module.layout.layers[layer].get(site)
            if isinstance(place, LowRankPlace):
                add_one(s.module, place, x[s.start : s.end], y[s.start : s.end])


def add_one(entry: Entry, place: LowRankPlace, x: Tensor, y: Tensor) -> None:
    """y [rows, size_out] += the change of x [rows, size_in], in place."""
    data = entry.data
    down = _part(data, place.down, place.rank, place.size_in)
    up = _part(data, place.up, place.size_out, place.rank)
    x = x.to(data.dtype)
    if place.down_bias == NOWHERE:
        h = F.linear(x, down)
    else:
        h = activated(F.linear(x, down, _part(data, place.down_bias, place.rank)), place.activation)
    if y.dtype == data.dtype:
        y.addmm_(h, up.t())
    else:
        y += F.linear(h, up)
    if place.up_bias != NOWHERE:
        y += _part(data, place.up_bias, place.size_out)


def activated(h: Tensor, activation: int) -> Tensor:
    """The activation of that name."""
    if activation == ops.RELU:
        return F.relu(h)
    return F.silu(h) if activation == ops.SILU else h


class NormLoop:
    """`Norms`, one segment after another."""

    def __init__(self, segments: Sequence[Segment[Entry]]) -> None:
        self._segments = segments

    def add(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        for s in self._segments:
            place = s.module.layout.layers[layer].get(site)
            if isinstance(place, NormPlace):
                gain, bias = (_part(s.module.data, at, place.size).float() for at in (place.gain, place.bias))
                mine = x[s.start : s.end].float()
                y[s.start : s.end] += F.layer_norm(mine, gain.shape, gain, bias, NORM_EPS)


class NormTable:
    """`Norms` that read from the device's memory which module changes which row, so that a graph can."""

    def __init__(
        self,
        texts: Sequence[Segment[Entry]],
        of_row: Ints,
        count: int,
        memory: Tensor,
        upload: ArrayUpload,
        sites: Collection[str],
    ) -> None:
        """texts: the segments of a batch's texts. of_row: the text of each row. count: the table's texts."""
        self._memory = memory
        if not any(site in sites for site in NORMS):
            return
        layers = len(texts[0].module.layout.layers)
        places = np.full((layers, len(NORMS), 2, count), NOWHERE, np.int64)
        size = memory.numel()
        for s in texts:
            begin = s.module.data.storage_offset() - memory.storage_offset()
            assert 0 <= begin < size
            for layer, at in enumerate(s.module.layout.layers):
                for i, site in enumerate(NORMS):
                    if isinstance(place := at.get(site), NormPlace):
                        found = [[begin + place.gain], [begin + place.bias]]
                        places[layer, i, :, s.start : s.end] = found
        self._places, self._of_row = upload.add(places), upload.add(of_row)

    def add(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        places, of_row, size = self._places()[layer, NORMS.index(site)], self._of_row(), x.shape[-1]
        steps = torch.arange(size, device=x.device)
        each = (places.clamp(min=0)[..., None] + steps).view(-1)
        gain, bias = self._memory.index_select(0, each).view(2, -1, size).float().index_select(1, of_row)
        changed = F.layer_norm(x.float(), (size,), eps=NORM_EPS) * gain + bias
        y += changed.masked_fill((places[0] < 0).index_select(0, of_row)[:, None], 0.0)


def _part(data: Tensor, at: int, *shape: int) -> Tensor:
    size = shape[0] if len(shape) == 1 else shape[0] * shape[1]
    return data[at : at + size].view(shape)
