"""Tenants' changes to the packed rows of a batch, in one of three ways; `Loop` is the reference.

A way is made for one batch. `Loop` runs tenant by tenant, `batched.Groups` runs one product for all tenants
of a layout, `segmented.Segmented` runs a kernel over all segments.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

import torch.nn.functional as F
from torch import Tensor

from hmi.execution.cuda.layout import RELU, SILU, LowRankPlace, NormPlace
from hmi.execution.cuda.slots import Entry
from hmi.model.encoder import Delta, Norm
from hmi.model.modules import NORM_EPS

WayName = Literal["loop", "groups", "kernel"]


@dataclass(frozen=True)
class Segment:
    """Neighbouring texts that share a module on the device."""

    entry: Entry
    start: int
    end: int
    """The segment has the texts start:end, or the rows start:end."""


class Way(Protocol):
    """One batch's changes."""

    def low_rank(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        """y += each segment's change of x, in place, at a site whose changes are low-rank."""
        ...


def segments_of(entries: Sequence[Entry | None]) -> list[Segment]:
    """The runs of neighbouring texts with one module."""
    out: list[Segment] = []
    for i, entry in enumerate(entries):
        if entry is None:
            continue
        if out and out[-1].entry is entry and out[-1].end == i:
            out[-1] = Segment(entry, out[-1].start, i + 1)
        else:
            out.append(Segment(entry, i, i + 1))
    return out


def in_rows(segments: Sequence[Segment], offsets: Sequence[int]) -> list[Segment]:
    """The same segments by rows; text i has the rows offsets[i]:offsets[i + 1]."""
    return [Segment(s.entry, offsets[s.start], offsets[s.end]) for s in segments]


def delta(segments: Sequence[Segment], way: Way, layer: int) -> Delta:
    """The changes of a layer, in place on the rows of their segments."""
    sites = {site for s in segments for site in s.entry.layout.layers[layer]}

    def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
        if site not in sites:
            return y
        if site in ("ln1", "ln2"):
            _add_norms(segments, layer, site, x, y)
        else:
            way.low_rank(layer, site, x if norm is None else norm(y + x), y)
        return y

    return apply


class Loop:
    """One segment after another."""

    def __init__(self, segments: Sequence[Segment]) -> None:
        self._segments = segments

    def low_rank(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        for s in self._segments:
            place = s.entry.layout.layers[layer].get(site)
            if isinstance(place, LowRankPlace):
                add_one(s.entry, place, x[s.start : s.end], y[s.start : s.end])


def add_one(entry: Entry, place: LowRankPlace, x: Tensor, y: Tensor) -> None:
    """y [rows, size_out] += the change of x [rows, size_in], in place."""
    data = entry.data
    down = _part(data, place.down, place.rank, place.size_in)
    up = _part(data, place.up, place.size_out, place.rank)
    x = x.to(data.dtype)
    if place.down_bias < 0:
        h = F.linear(x, down)
    else:
        h = activated(F.linear(x, down, _part(data, place.down_bias, place.rank)), place.activation)
    if y.dtype == data.dtype:
        y.addmm_(h, up.t())
    else:
        y += F.linear(h, up)
    if place.up_bias >= 0:
        y += _part(data, place.up_bias, place.size_out)


def activated(h: Tensor, activation: int) -> Tensor:
    """The activation of that name."""
    if activation == RELU:
        return F.relu(h)
    return F.silu(h) if activation == SILU else h


def _add_norms(segments: Sequence[Segment], layer: int, site: str, x: Tensor, y: Tensor) -> None:
    """LayerNorms' changes: one segment after another on every way."""
    for s in segments:
        place = s.entry.layout.layers[layer].get(site)
        if isinstance(place, NormPlace):
            gain, bias = (_part(s.entry.data, at, place.size).float() for at in (place.gain, place.bias))
            mine = x[s.start : s.end].float()
            y[s.start : s.end] += F.layer_norm(mine, gain.shape, gain, bias, NORM_EPS)


def _part(data: Tensor, at: int, *shape: int) -> Tensor:
    size = shape[0] if len(shape) == 1 else shape[0] * shape[1]
    return data[at : at + size].view(shape)
