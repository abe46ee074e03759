"""The ways of computing tenants' changes on a device: batched products, segments in kernels, a loop."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from hmi_kernels.modules import ops
from torch import Tensor

from hmi.execution.cuda.changes import Loop, Way, WayName, activated, add_one
from hmi.execution.cuda.layout import NOWHERE, LowRankPlace, ModuleLayout
from hmi.execution.cuda.segmented import Changed, Segmented
from hmi.execution.cuda.slots import Entry, Slots
from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.execution.segments import Segment

_MAX_WASTE = 0.25
"""The most padding of a group, as a fraction of its rows."""


@dataclass(frozen=True)
class _SegmentGroup:
    """Segments of one layout and of similar length."""

    segments: list[Segment[Entry]]
    layout: ModuleLayout
    span: tuple[int, int] | None
    """The rows, if they follow one another in segments of equal length."""
    slots: Callable[[], Tensor]
    """int64 [segments]: the first slot of each."""
    padded: Callable[[], Tensor]
    """int64 [segments · longest]: the row at each place; a shorter segment's last row is repeated."""
    rows: Callable[[], Tensor]
    """int64 [rows]: the rows of all segments."""
    places: Callable[[], Tensor]
    """int64 [rows]: the place of each row in `padded`."""


class _BatchedProducts:
    """A `Way` by one batched product a site for all tenants of a batch whose modules have the same layout.

    Their weights are gathered from the slots once a site, never for each token. Segments of unlike length are
    padded to the longest of their group, as far as the waste is small. A segment that is alone in its group
    runs alone.
    """

    def __init__(self, segments: Sequence[Segment[Entry]], slots: Slots, upload: ArrayUpload) -> None:
        self._memory, self._size = slots.memory, slots.size
        self._groups = [_group(some, upload) for some in _similar(segments)]

    def low_rank(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        for group in self._groups:
            place = group.layout.layers[layer].get(site)
            if not isinstance(place, LowRankPlace):
                continue
            if len(group.segments) == 1:
                (s,) = group.segments
                add_one(s.module, place, x[s.start : s.end], y[s.start : s.end])
            else:
                self._together(group, place, x, y)

    def _together(self, group: _SegmentGroup, place: LowRankPlace, x: Tensor, y: Tensor) -> None:
        count, chosen = len(group.segments), group.slots()
        even = group.span
        mine = x.index_select(0, group.padded()) if even is None else x[even[0] : even[1]]
        mine = mine.to(self._memory.dtype).unflatten(0, (count, -1))
        down = self._weights(chosen, place.down, place.rank, place.size_in)
        up = self._weights(chosen, place.up, place.size_out, place.rank)
        h = torch.bmm(mine, down.transpose(1, 2))
        if place.down_bias != NOWHERE:
            h = activated(h + self._weights(chosen, place.down_bias, 1, place.rank), place.activation)
        out = torch.bmm(h, up.transpose(1, 2))
        if place.up_bias != NOWHERE:
            out += self._weights(chosen, place.up_bias, 1, place.size_out)
        flat = out.flatten(0, 1)
        if even is None:
            y.index_add_(0, group.rows(), flat.index_select(0, group.places()).to(y.dtype))
        else:
            y[even[0] : even[1]] += flat

    def _weights(self, slots: Tensor, at: int, rows: int, columns: int) -> Tensor:
        """[slots, rows, columns]: the tensor that begins `at` elements into each of these modules."""
        size = rows * columns
        starts = (len(self._memory) - at - size) // self._size + 1
        every = self._memory.as_strided((starts, size), (self._size, 1), at)
        return every.index_select(0, slots).view(-1, rows, columns)


def _similar(segments: Sequence[Segment[Entry]]) -> list[list[Segment[Entry]]]:
    """Segments by layout, then by length, as far as padding to the longest wastes little."""
    by_layout: dict[ModuleLayout, list[Segment[Entry]]] = {}
    for s in segments:
        by_layout.setdefault(s.module.layout, []).append(s)
    out: list[list[Segment[Entry]]] = []
    for same in by_layout.values():
        some: list[Segment[Entry]] = []
        rows = 0
        for s in sorted(same, key=lambda s: s.end - s.start):
            length = s.end - s.start
            if some and length * (len(some) + 1) > (1 + _MAX_WASTE) * (rows + length):
                out.append(some)
                some, rows = [], 0
            some.append(s)
            rows += length
        out.append(some)
    return out


def _group(segments: list[Segment[Entry]], upload: ArrayUpload) -> _SegmentGroup:
    starts, ends = (np.array([getattr(s, end) for s in segments], np.int64) for end in ("start", "end"))
    lengths = ends - starts
    longest = int(lengths.max())
    span = None
    if (lengths == longest).all() and (starts[1:] == ends[:-1]).all():
        span = int(starts[0]), int(ends[-1])
    steps: Ints = np.arange(longest)
    padded = starts[:, None] + np.minimum(steps, lengths[:, None] - 1)
    valid = steps < lengths[:, None]
    return _SegmentGroup(
        segments,
        segments[0].module.layout,
        span,
        slots=upload.add(np.array([s.module.first for s in segments], np.int64)),
        padded=upload.add(padded.reshape(-1)),
        rows=upload.add(padded[valid]),
        places=upload.add(np.flatnonzero(valid)),
    )


@dataclass(frozen=True)
class Ways:
    """One way for all batches."""

    name: WayName
    launcher: ops.Launcher | None = None
    """The kernels; needed for `kernel`."""

    def of(self, segments: Sequence[Segment[Entry]], slots: Slots, upload: ArrayUpload) -> Way:
        """Return the way for a batch's segments; what it needs on the device is added to `upload`."""
        if self.name == "kernel":
            assert self.launcher is not None
            return Segmented(segments, Changed(segments, slots, upload), upload, self.launcher)
        return _BatchedProducts(segments, slots, upload) if self.name == "groups" else Loop(segments)
