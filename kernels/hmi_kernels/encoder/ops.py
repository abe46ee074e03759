"""Public face of the encoder kernels: packed layers, packed modules, and a layer's run over packed texts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, fits
from hmi_kernels.encoder import change as c
from hmi_kernels.encoder import layer as l
from hmi_kernels.encoder import product as p
from hmi_kernels.encoder import room as r
from hmi_kernels.encoder.pack import Array, Change, Floats, LowRank, Matrix, pack_change, pack_matrix
from hmi_kernels.encoder.tile import ROWS, STRIDE, narrow, tile
from hmi_kernels.jit import address_of

__all__ = [
    "BFLOAT",
    "FLOAT",
    "INT8",
    "RELU",
    "SILU",
    "Floats",
    "Layer",
    "LayerWeights",
    "LowRank",
    "Module",
    "NormChange",
    "Room",
    "Texts",
    "pack_layer",
    "pack_module",
    "run_layer",
]

Record = NDArray[np.int64]
RELU, SILU = c.RELU, c.SILU
_SLOTS = {
    "o": c.ON_OUT,
    "fi": c.ON_IN,
    "fo": c.ON_FFN,
    "attn": c.ATTN,
    "ffn": c.FFN,
    "after_attn": c.AFTER_ATTN,
    "after_ffn": c.AFTER_FFN,
    "after_norm": c.AFTER_NORM,
}
_NORMS = {"ln1": c.NORM1, "ln2": c.NORM2}


@dataclass(frozen=True)
class LayerWeights:
    """A post-LayerNorm layer in float32; matrices are [out, in]."""

    qkv: tuple[Floats, Floats]
    out: tuple[Floats, Floats]
    inner: tuple[Floats, Floats]
    outer: tuple[Floats, Floats]
    norm1: tuple[Floats, Floats]
    norm2: tuple[Floats, Floats]
    relative: Floats | None = None
    """[heads, 2 · positions - 1]: what a head adds at each distance of key less query, from 1 - positions."""


@dataclass(frozen=True)
class Layer:
    """A layer in the kernels' layout; the record holds addresses of the arrays."""

    kind: int
    dim: int
    inner: int
    longest: int | None
    """Tokens of the longest text, where relative attention has a table; None: no limit."""
    record: Record
    arrays: list[Array]
    address: int
    """Of the record."""


@dataclass(frozen=True)
class NormChange:
    """What is added to a LayerNorm's gain and bias, float32 [dim]."""

    gain: Floats
    bias: Floats


@dataclass(frozen=True)
class Module:
    """A tenant's changes of every layer in the kernels' layout."""

    records: list[Record]
    """One for each layer."""
    addresses: list[int]
    """Of the records."""
    arrays: list[Array]
    columns: int
    """Of its widest low-rank row."""


def pack_layer(kind: int, weights: LayerWeights, heads: int, eps: float) -> Layer:
    """Raises ValueError where the kernels cannot run the layer; see `fits`."""
    inner, dim = weights.inner[0].shape
    if not fits(dim, heads, inner):
        raise ValueError(f"no kernel for {dim} dimensions, {heads} heads and an FFN of {inner}")
    record, arrays = np.zeros(l.LAYER_FIELDS, np.int64), list[Array]()
    record[[l.KIND, l.DIM, l.INNER, l.HEADS]] = kind, dim, inner, heads
    record[l.EPS], record[l.FACTOR] = _bits(eps), _bits((dim // heads) ** -0.5)
    for at, (gain, bias) in ((l.GAIN1, weights.norm1), (l.GAIN2, weights.norm2)):
        record[at], record[at + 1] = _kept(arrays, gain), _kept(arrays, bias)
    if weights.relative is not None:
        around = np.pad(weights.relative, ((0, 0), (0, 16)))
        record[l.RELATIVE] = _kept(arrays, around) + 4 * (weights.relative.shape[1] // 2)
        record[l.RELATIVE_STEP] = 4 * around.shape[1]
    for at, (weight, bias) in (
        (l.QKV, weights.qkv),
        (l.OUT, weights.out),
        (l.IN_FFN, weights.inner),
        (l.OUT_FFN, weights.outer),
    ):
        _put_matrix(record, at, pack_matrix(kind, weight, bias), arrays)
    longest = None if weights.relative is None else (weights.relative.shape[1] + 1) // 2
    return Layer(kind, dim, inner, longest, record, arrays, int(record.ctypes.data))


def pack_module(layer: Layer, layers: Sequence[Mapping[str, LowRank | NormChange]]) -> Module:
    """layers: each layer's changes by site; sites as in `hmi.model.modules`. layer: one that they change.

    Raises ValueError if a change's sizes are not the layer's: the kernels check nothing.
    """
    kind = layer.kind
    records, arrays, columns = [], list[Array](), 16
    for sites in layers:
        record = np.zeros(c.MODULE_FIELDS, np.int64)
        of_qkv = [_low_rank(sites.get(site)) for site in "qkv"]
        packed = {c.ON_QKV: pack_change(kind, of_qkv)} if any(of_qkv) else {}
        for site, found in sites.items():
            _check_sizes(layer, site, found)
            if site in _SLOTS and isinstance(found, LowRank):
                packed[_SLOTS[site]] = pack_change(kind, [found])
            elif site in _NORMS and isinstance(found, NormChange):
                record[_NORMS[site]], record[_NORMS[site] + 1] = (
                    _kept(arrays, found.gain),
                    _kept(arrays, found.bias),
                )
        for slot, change in packed.items():
            _put_change(record, slot, change, arrays)
            columns = max(columns, change.columns)
        records.append(record)
    return Module(records, [int(record.ctypes.data) for record in records], arrays, columns)


def _empty_record() -> Record:
    record = np.zeros(r.FIELDS, np.int64)
    record[[r.TILE_CODE, r.NARROW_CODE]] = address_of(tile), address_of(narrow)
    return record


@dataclass
class Room:
    """One thread's memory for a layer's run: it grows to what the largest block and module so far need."""

    _record: Record = field(default_factory=_empty_record)
    _arrays: list[Array] = field(default_factory=list)
    _sizes: tuple[int, ...] = ()
    _address: int = 0

    def __post_init__(self) -> None:
        self._address = int(self._record.ctypes.data)

    def address(self, layer: Layer, texts: Texts) -> int:
        """The address of a record whose buffers are large enough for these texts."""
        needed = (layer.dim, layer.inner, max(texts.longest, l.BLOCK), texts.longest, texts.columns)
        if not self._sizes or any(a > b for a, b in zip(needed, self._sizes, strict=True)):
            sizes = tuple(map(max, needed, self._sizes or needed))
            self._sizes = ()  # if memory is short, the next batch must not trust half of the buffers
            self._allocate(*sizes)
            self._sizes = sizes
        return self._address

    def _allocate(self, dim: int, inner: int, rows: int, longest: int, columns: int) -> None:
        wide = max(dim, inner)
        bytes_of = {
            r.BFLOATS: 2 * rows * dim,
            r.BYTES: rows * wide,
            r.SCALES: 4 * rows,
            r.QKV: 12 * rows * dim,
            r.QUERIES: 4 * rows * dim,
            r.FIRSTS: 4 * rows * dim,
            r.CONTEXT: 4 * rows * dim,
            r.MIDDLE: 4 * rows * dim,
            r.WIDE: 4 * rows * inner,
            r.LOW: 4 * rows * columns,
            r.TILE: ROWS * max(4 * columns, STRIDE),
            r.SPARE: 6 * ROWS * dim,
            r.ATTEND: -(-longest // 64) * (dim + ROWS) * STRIDE,
            r.SEGMENTS: 8 * p.SEGMENT_FIELDS * rows,
            r.RUNS: 8 * c.RUN_FIELDS * rows,
            r.QUERY_RUNS: 8 * c.RUN_FIELDS * rows,
            r.NO_SEGMENT: 8 * p.SEGMENT_FIELDS,
            r.ZEROS: 4 * (longest + 64),
        }
        self._arrays = []
        for at, size in bytes_of.items():
            self._record[at] = _kept(self._arrays, np.zeros(size + 64, np.uint8))


class Texts:
    """The packed texts of a batch and their modules: made once, and run through one layer after another."""

    def __init__(
        self, offsets: Sequence[int], modules: Sequence[Module | None], plus: Floats | None = None
    ) -> None:
        """Text i has the rows offsets[i]:offsets[i + 1], one at least, and modules[i].

        plus float32 [rows]: what is added to the scores of each row as a key.
        """
        self.count, self.rows = len(offsets) - 1, offsets[-1]
        lengths = [b - a for a, b in pairwise(offsets)]
        assert offsets[0] == 0
        assert min(lengths) > 0
        assert len(modules) == self.count
        self.longest = max(lengths)
        self.columns = max((m.columns for m in modules if m is not None), default=16)
        self._modules = modules
        self._offsets = np.array(offsets, np.int64)
        self._plus = None if plus is None else np.pad(plus, (0, 15))
        self.offsets_address = self._offsets.ctypes.data
        self.plus_address = 0 if self._plus is None else self._plus.ctypes.data

    def records(self, index: int) -> Record:
        """The addresses of the modules' records of one layer, int64 [texts]; 0 for no module."""
        return np.array([0 if m is None else m.addresses[index] for m in self._modules], np.int64)


def run_layer(
    layer: Layer, index: int, x: int, texts: Texts, room: Room, out: int, *, first_only: bool = False
) -> None:
    """Take packed rows through one layer, the GIL released. A row's result is the same bits in every batch.

    x: the address of float32 [rows, dim]. out: the address of as many rows, or [texts, dim] if only each
    text's first row is wanted. index: the layer's place, for the modules. Raises ValueError for a text that
    is longer than the layer's relative attention.
    """
    if layer.longest is not None and texts.longest > layer.longest:
        raise ValueError(f"a text of {texts.longest} tokens: relative attention knows {layer.longest}")
    records, record = texts.records(index), room.address(layer, texts)
    l.run_layer(
        layer.address,
        x,
        texts.offsets_address,
        texts.count,
        records.ctypes.data,
        texts.plus_address,
        int(first_only),
        record,
        out,
    )


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def _kept(arrays: list[Array], array: Array) -> int:
    """The address of a contiguous copy that the list keeps alive."""
    arrays.append(np.array(array, order="C"))
    return int(arrays[-1].ctypes.data)


def _check_sizes(layer: Layer, site: str, found: LowRank | NormChange) -> None:
    """Raises ValueError where a change's arrays are not of the layer's sizes."""
    size_in = layer.inner if site == "fo" else layer.dim
    size_out = layer.inner if site == "fi" else layer.dim
    if isinstance(found, NormChange):
        have = [(found.gain, [layer.dim]), (found.bias, [layer.dim])]
    else:
        rank = len(found.down)
        have = [(found.down, [rank, size_in]), (found.up, [size_out, rank])]
        if found.down_bias is not None and found.up_bias is not None:
            have += [(found.down_bias, [rank]), (found.up_bias, [size_out])]
    for array, size in have:
        if list(array.shape) != size:
            raise ValueError(
                f"the change at {site!r} has an array {list(array.shape)}; the layer needs {size}"
            )


def _low_rank(found: LowRank | NormChange | None) -> LowRank | None:
    return found if isinstance(found, LowRank) else None


def _put_matrix(record: Record, at: int, matrix: Matrix, arrays: list[Array]) -> None:
    record[at + p.PANELS], record[at + p.BIAS] = _kept(arrays, matrix.panels), _kept(arrays, matrix.bias)
    record[at + p.SHARED], record[at + p.WORDS] = _kept(arrays, matrix.shared), matrix.words


def _put_change(record: Record, slot: int, change: Change, arrays: list[Array]) -> None:
    record[slot + c.DOWN], record[slot + c.COLUMNS] = _kept(arrays, change.down), change.columns
    record[slot + c.DOWN_BIAS], record[slot + c.ACTIVATION] = (
        _kept(arrays, change.down_bias),
        change.activation,
    )
    _put_matrix(record, slot + c.MATRIX, change.up, arrays)
