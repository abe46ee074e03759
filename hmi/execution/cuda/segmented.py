"""Adds tenants' low-rank changes to a batch on a CUDA device: two kernel launches for each site of a layer.

A batch may have any number of segments (neighbouring texts that share a module), of any length and rank. The
kernels read each module from its slots in device memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
import torch
from hmi_kernels.modules import ops
from torch import Tensor

from hmi.execution.cuda.layout import LOW_RANK, LowRankPlace, ModuleLayout
from hmi.execution.cuda.slots import Entry, Slots
from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.execution.segments import Segment

KINDS = {torch.bfloat16: ops.BFLOAT, torch.float32: ops.FLOAT}
_INDEX: dict[str, int] = {site: i for i, site in enumerate(LOW_RANK)}


@dataclass(frozen=True)
class TableSizes:
    """The sizes of the uploaded tables, so large that all batches of one shape fit.

    A CUDA graph replays with tables of the sizes that it was captured with.
    """

    segments: int
    pieces: int
    rank: int
    """The greatest rank that fits."""

    @classmethod
    def of(cls, rows: int, segments: int, rank: int) -> TableSizes:
        """Return the room for any batch of at most this many rows and segments."""
        return cls(segments, min(-(-rows // ops.ROWS) + segments, rows), rank)

    def changes(self, changes: Ints) -> Ints:
        """Return `changes`, [layers, sites, segments of the batch, CHANGE_WORDS] int64, filled up with zeros
        to `self.segments` + 1 segments. The last one, which changes nothing, is that of the unused pieces."""
        layers, sites, count, words = changes.shape
        whole = np.zeros((layers, sites, self.segments + 1, words), np.int64)
        whole[:, :, :count] = changes
        return whole

    def pieces_of(self, pieces: Ints) -> Ints:
        """Return `pieces`, [pieces of the batch, PIECE_WORDS] int64, filled up to `self.pieces`. The added
        ones belong to the last segment of `changes`, which changes nothing."""
        more = np.zeros((self.pieces - len(pieces), ops.PIECE_WORDS), np.int64)
        more[:, 0] = self.segments
        return np.concatenate([pieces, more])


class Changed:
    """The table of a batch's low-rank changes, on the device. It has no rows, so ways over all rows of a
    batch and over its texts' first rows share it."""

    def __init__(
        self,
        segments: Sequence[Segment[Entry]],
        slots: Slots,
        upload: ArrayUpload,
        room: TableSizes | None = None,
    ) -> None:
        self.kind = KINDS[slots.memory.dtype]
        changes = _changes(segments, slots)
        self._ranks = changes[..., ops.RANK].max(axis=2, initial=0)
        if room is not None:
            changes = room.changes(changes)
            self._ranks = np.full_like(self._ranks, room.rank)
        self._there, self._strides = upload.add(changes), changes.strides

    def at(self, layer: int, site: str) -> tuple[int, int]:
        """Return the device address of a site's changes in one layer, and the columns of scratch memory that
        the kernels need there: the greatest rank, rounded up to a multiple of `ops.EVEN`."""
        index = _INDEX[site]
        begin = self._there().data_ptr() + layer * self._strides[0] + index * self._strides[1]
        return begin, -(-int(self._ranks[layer, index]) // ops.EVEN) * ops.EVEN


class Segmented:
    """A `Way` (`hmi.execution.cuda.ways`) that runs the kernels of `hmi_kernels.modules`."""

    def __init__(
        self,
        segments: Sequence[Segment[Entry]],
        changed: Changed,
        upload: ArrayUpload,
        launcher: ops.Launcher,
        room: TableSizes | None = None,
    ) -> None:
        self._launcher, self._changed = launcher, changed
        pieces = ops.pieces_of([(s.start, s.end) for s in segments])
        if room is not None:
            pieces = room.pieces_of(pieces)
        self._count, self._pieces = len(pieces), upload.add(pieces)

    def low_rank(self, layer: int, site: str, x: Tensor, y: Tensor) -> None:
        changes, ranks = self._changed.at(layer, site)
        scratch = torch.empty(len(x), ranks, dtype=torch.float32, device=x.device)
        ops.add(
            self._launcher,
            changes,
            (self._pieces().data_ptr(), self._count),
            _matrix(x),
            _matrix(y),
            self._changed.kind,
            (scratch.data_ptr(), ranks),
            torch.cuda.current_stream(x.device).cuda_stream if x.is_cuda else None,
        )


def _matrix(x: Tensor) -> ops.DeviceMatrix:
    assert x.dim() == 2
    assert x.stride(1) == 1
    return ops.DeviceMatrix(x.data_ptr(), KINDS[x.dtype], x.stride(0), x.shape[1])


def _changes(segments: Sequence[Segment[Entry]], slots: Slots) -> Ints:
    """The `Change` of every layer, low-rank site and segment: [layers, sites, segments, CHANGE_WORDS]."""
    if not segments:
        return np.zeros((0, len(LOW_RANK), 0, ops.CHANGE_WORDS), np.int64)
    return np.stack([_words_of(s.module, slots) for s in segments], axis=2)


def _words_of(entry: Entry, slots: Slots) -> Ints:
    """A module's changes with device addresses, int64 [layers, sites, CHANGE_WORDS]. Made once for each
    entry."""
    if entry.words is None:
        width = slots.memory.element_size()
        words, is_address = _words(entry.layout, width)
        entry.words = words + is_address * (slots.memory.data_ptr() + entry.first * slots.size * width)
    return entry.words


@lru_cache(maxsize=4096)
def _words(layout: ModuleLayout, width: int) -> tuple[Ints, Ints]:
    """A layout's changes, [layers, sites, CHANGE_WORDS], of numbers of `width` bytes: bytes from the module's
    begin instead of addresses, 0 where there is nothing. And which of the words these are: 1 or 0."""
    out = np.full((len(layout.layers), len(LOW_RANK), ops.CHANGE_WORDS), -1, np.int64)
    out[..., ops.RANK :] = 0
    for i, places in enumerate(layout.layers):
        for site, p in places.items():
            if isinstance(p, LowRankPlace):
                where = p.down, p.up, p.down_bias, p.up_bias
                out[i, _INDEX[site]] = *where, p.rank, p.activation
    is_address = np.zeros_like(out)
    is_address[..., : ops.RANK] = out[..., : ops.RANK] >= 0
    out[..., : ops.RANK] = np.where(out[..., : ops.RANK] < 0, 0, out[..., : ops.RANK] * width)
    return out, is_address
