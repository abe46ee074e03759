"""Attention of a step's rows over pages, in torch, on the CPU or on a device.

The host computes all indexes of a step before its first layer, so no operation reads a number back.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor

from hmi.execution.batch import rounded
from hmi.execution.decoding.base import PAGE, Part, scored_of
from hmi.model.network.decoder import rotary
from hmi.model.network.shape import DecoderShape
from hmi.model.sources.generative_root import UpperDecoder

Ints = NDArray[np.int64]
Put = Callable[[Ints], Callable[[], Tensor]]
"""Takes an array of the host. Returns a function that gives it, in its shape, where the step computes."""
LEAST_PAGES = 64
"""Pages of an executor at the least, whatever memory the setting gives."""
TILE = 64
"""The most rows of a part that attend in one product."""
AT_ONCE = 1 << 12
"""The most keys that are gathered at a time on the CPU, unless one part has more: some MB, which fit its
caches. A device takes longer to begin than to gather."""


def place_of(array: Ints) -> Callable[[], Tensor]:
    """A `Put` for steps on the CPU: the array itself."""
    there = torch.from_numpy(array)
    return lambda: there


def kept_shape(shape: DecoderShape, layers: int, pages: int) -> tuple[int, ...]:
    """The sizes of the memory of keys and values: [layers, 2, places, kv_heads, head_dim].

    A page is PAGE neighbouring places. The page after the last one must be zero. Its first place stays so,
    and is read for keys that there are not; its second is written for rows that there are not.
    """
    return layers, 2, (pages + 1) * PAGE, shape.kv_heads, shape.head_dim


def page_bytes(upper: UpperDecoder, number: int) -> int:
    """The bytes of a page of all layers, of numbers of `number` bytes."""
    return math.prod(kept_shape(upper.shape, len(upper.layers), 0)) * number


@dataclass(frozen=True)
class _Group:
    """Tiles of as many rows, and of as many keys up to rounding. A tile is neighbouring rows of a part."""

    size: tuple[int, int, int]
    """Tiles, rows of a tile, pages of a tile."""
    nothing: int
    """The place of a key that there is not."""
    pages: Callable[[], Tensor]
    """int64 [tiles, pages of a tile]"""
    ends: Callable[[], Tensor]
    """int64 [tiles, rows of a tile]: the number of keys that each row attends to. A tile with fewer rows
    repeats its last one."""
    rows: Callable[[], Tensor]
    """int64 [tiles · rows of a tile]: the row of the step at each place."""
    to: Callable[[], Tensor]
    """int64: the rows of all tiles, each once."""
    places: Callable[[], Tensor]
    """int64: the place of each of these rows in `rows`."""
    shared: int
    """The heads of queries that share keys."""
    dtype: torch.dtype
    """The keys' dtype, which the mask has, too."""

    @cached_property
    def keys(self) -> Tensor:
        """int64 [tiles · keys]: the places of the tiles' keys."""
        ends = self.ends()
        within = torch.arange(PAGE, device=ends.device)
        places = (self.pages()[..., None] * PAGE + within).flatten(1)
        steps = torch.arange(places.shape[1], device=ends.device)
        return places.masked_fill_(steps >= ends[:, -1:], self.nothing).flatten()

    @cached_property
    def mask(self) -> Tensor:
        """The mask that is added to scores: [tiles, 1, rows of a tile · shared, keys], 0 or -inf."""
        ends = self.ends()
        steps = torch.arange(self.size[2] * PAGE, device=ends.device)
        hidden = (steps >= ends[..., None])[:, :, None].expand(-1, -1, self.shared, -1).flatten(1, 2)[:, None]
        zeros = torch.zeros(hidden.shape, dtype=self.dtype, device=ends.device)
        return zeros.masked_fill_(hidden, -torch.inf)


class PagedRows:
    """The rows of one step: where their keys and values go, and which keys each row attends to.

    What a row attends to, and how that is padded, depends on nothing of other parts.
    """

    def __init__(
        self,
        parts: Sequence[Part],
        shape: DecoderShape,
        kept: Tensor,
        put: Put,
        *,
        rows: int | None = None,
        at_once: int = AT_ONCE,
    ) -> None:
        """kept: the memory of keys and values, as `kept_shape` says. rows: at least the parts' rows; those
        beyond change nothing. None: there are none beyond. at_once: the most keys that are gathered at a
        time, unless one part has more."""
        self.offsets: list[int] = [0, *accumulate(part.count for part in parts)]
        """Each part's first row, and the number of all parts' rows."""
        self.count = self.offsets[-1] if rows is None else rows
        """The number of rows with those beyond the parts."""
        self.scored: Ints = scored_of(parts)
        """int64: the rows that want scores."""
        self._kept, pages = kept, kept.shape[2] // PAGE - 1
        self.positions: Ints = np.zeros(self.count, np.int64)
        """int64 [count]: each row's position in its sequence."""
        slots = np.full(self.count, pages * PAGE + 1, np.int64)
        tiles: dict[tuple[int, int], list[tuple[Ints, Ints, int]]] = {}
        for part, offset in zip(parts, self.offsets, strict=False):
            mine, held = np.arange(part.begin, part.begin + part.count), np.array(part.pages, np.int64)
            self.positions[offset : offset + part.count] = mine
            slots[offset : offset + part.count] = held[mine // PAGE] * PAGE + mine % PAGE
            for begin in range(0, part.count, TILE):
                at = mine[begin : begin + TILE]
                needed = -(-int(at[-1] + 1) // PAGE)
                key = 1 << (len(at) - 1).bit_length(), rounded(needed)
                tiles.setdefault(key, []).append((at, held[:needed], offset + begin))
        self._slots = put(slots)
        about = shape.heads // shape.kv_heads, kept.dtype
        self._groups = [
            _group(some[i : i + most], *size, pages, put, *about)
            for size, some in tiles.items()
            for most in [max(1, at_once // (size[1] * PAGE))]
            for i in range(0, len(some), most)
        ]

    def attend(self, layer: int, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """Keep the rows' keys and values of a layer, and let each row attend to its sequence up to itself.

        q [1, heads, count, head_dim], k and v [1, kv_heads, count, head_dim]. Returns [1, heads, count,
        head_dim] in the memory's dtype; 0 for rows beyond the parts.
        """
        kept = self._kept[layer]
        for there, new in zip(kept, (k, v), strict=True):
            there.index_copy_(0, self._slots(), new[0].transpose(0, 1).to(kept.dtype))
        queries = q[0].transpose(0, 1).to(kept.dtype)
        context = torch.zeros_like(queries, memory_format=torch.contiguous_format)
        for group in self._groups:
            found = _attended(group, queries, kept)
            context.index_copy_(0, group.to(), found.index_select(0, group.places()))
        return context.transpose(0, 1)[None]


def turns_of(shape: DecoderShape, positions: Ints) -> Tensor:
    """The cosines and sines of rows at these positions, as `rotary`: float32 [2, rows, head_dim]."""
    length = rounded(int(positions.max(initial=0)) + 1)  # so that few lengths are computed
    return rotary(length, shape.head_dim, shape.base)[:, torch.from_numpy(positions)]


def _group(
    tiles: Sequence[tuple[Ints, Ints, int]],
    rows: int,
    width: int,
    pages: int,
    put: Put,
    shared: int,
    dtype: torch.dtype,
) -> _Group:
    """tiles: of each the positions of its rows, its pages, and its first row in the step."""
    count = len(tiles)
    table, ends = np.full((count, width), pages, np.int64), np.empty((count, rows), np.int64)
    at = np.empty((count, rows), np.int64)
    lengths = np.array([len(positions) for positions, _, _ in tiles])
    steps = np.minimum(np.arange(rows), lengths[:, None] - 1)
    for i, (positions, mine, first) in enumerate(tiles):
        table[i, : len(mine)] = mine
        ends[i] = positions[steps[i]] + 1
        at[i] = first + steps[i]
    real = np.arange(rows) < lengths[:, None]
    return _Group(
        (count, rows, width),
        pages * PAGE,
        put(table),
        put(ends),
        put(at.reshape(-1)),
        put(at[real]),
        put(np.flatnonzero(real)),
        shared,
        dtype,
    )


def _attended(group: _Group, queries: Tensor, kept: Tensor) -> Tensor:
    """queries [rows of the step, heads, head_dim] -> [tiles · rows of a tile, heads, head_dim].

    The heads of queries that share keys stand beside each other as more queries, so keys are not repeated.
    """
    tiles, rows, _ = group.size
    mine = queries.index_select(0, group.rows()).unflatten(0, (tiles, rows))
    mine = mine.unflatten(2, (-1, group.shared)).transpose(1, 2).flatten(2, 3)
    keys, values = (
        part.index_select(0, group.keys).unflatten(0, (tiles, -1)).transpose(1, 2) for part in kept
    )
    found = F.scaled_dot_product_attention(mine, keys, values, attn_mask=group.mask)
    by_row: Tensor = found.unflatten(2, (rows, group.shared)).transpose(1, 2).flatten(2, 3).flatten(0, 1)
    return by_row
