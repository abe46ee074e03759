"""Public face of the encoder kernels: packed layers, packed modules, and a layer's run over packed texts."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16, ahead, fits
from hmi_kernels.encoder import change as of_change
from hmi_kernels.encoder import layer as of_layer
from hmi_kernels.encoder import product as of_matrix
from hmi_kernels.encoder import room as of_room
from hmi_kernels.encoder.buffers import Buffers
from hmi_kernels.encoder.first import GROUP
from hmi_kernels.encoder.pack import (
    COLUMNS,
    Floats,
    LowRank,
    Memory,
    Places,
    Record,
    pack_change,
    pack_matrix,
    put_change,
    put_matrix,
)
from hmi_kernels.encoder.tile import CHANGED_FIELDS, ROWS, STRIDE, around

__all__ = [
    "BFLOAT",
    "FLOAT",
    "INT8",
    "INT16",
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
    "product",
    "run_layer",
]

RELU, SILU = of_change.RELU, of_change.SILU
_SLOTS = {
    "o": of_change.ON_OUT,
    "fi": of_change.ON_IN,
    "fo": of_change.ON_FFN,
    "attn": of_change.ATTN,
    "ffn": of_change.FFN,
    "after_attn": of_change.AFTER_ATTN,
    "after_ffn": of_change.AFTER_FFN,
    "after_norm": of_change.AFTER_NORM,
}
_BOTTLENECKS = ("attn", "ffn", "after_attn", "after_ffn", "after_norm")
"""The sites whose changes have biases. The kernels read biases there, and nowhere else."""
_NORMS = {"ln1": of_change.NORM1, "ln2": of_change.NORM2}


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
    """A layer in the kernels' layout."""

    kind: int
    dim: int
    inner: int
    longest: int | None
    """Tokens of the longest text, where relative attention has a table; None: no limit."""
    head: int
    """Numbers of a row that belong to one attention head."""
    memory: Memory
    """The record and all that it points to."""
    address: int
    """The address of the record."""
    first_only: bool
    """True if the layer can run for each text's first row alone."""


@dataclass(frozen=True)
class NormChange:
    """The numbers that are added to a LayerNorm's gain and bias, float32 [dim]."""

    gain: Floats
    bias: Floats


@dataclass(frozen=True)
class Module:
    """A tenant's changes of every layer in the kernels' layout."""

    memory: Memory
    """Each layer's record and all that it points to, in the order of use."""
    addresses: list[int]
    """The addresses of the layers' records."""
    columns: int
    """Numbers of its widest low-rank row."""


def pack_layer(
    kind: int, weights: LayerWeights, heads: int, eps: float, *, first_only: bool = False
) -> Layer:
    """Bring a layer into the kernels' layout, on request with what a run for first rows alone needs.

    Raises ValueError if the kernels cannot run it; see `fits`.
    """
    inner, dim = weights.inner[0].shape
    if not fits(dim, heads, inner):
        raise ValueError(f"no kernel for {dim} dimensions, {heads} heads and an FFN of {inner}")
    record, places = np.zeros(of_layer.LAYER_FIELDS, np.int64), Places()
    places.add(record)
    record[[of_layer.KIND, of_layer.DIM, of_layer.INNER, of_layer.HEADS]] = (kind, dim, inner, heads)
    record[of_layer.EPS], record[of_layer.FACTOR] = _bits(eps), _bits((dim // heads) ** -0.5)
    for at, (gain, bias) in ((of_layer.GAIN1, weights.norm1), (of_layer.GAIN2, weights.norm2)):
        places.point(record, at, gain)
        places.point(record, at + 1, bias)
    if weights.relative is not None:
        around = np.pad(weights.relative, ((0, 0), (0, 16)))
        places.point(record, of_layer.RELATIVE, around, 4 * (weights.relative.shape[1] // 2))
        record[of_layer.RELATIVE_STEP] = 4 * around.shape[1]
    for at, (weight, bias) in (
        (of_layer.QKV, weights.qkv),
        (of_layer.OUT, weights.out),
        (of_layer.IN_FFN, weights.inner),
        (of_layer.OUT_FFN, weights.outer),
    ):
        put_matrix(record, at, pack_matrix(kind, weight, bias), places)
    if first_only:
        _put_first_only(record, kind, weights, heads, places)
    longest = None if weights.relative is None else (weights.relative.shape[1] + 1) // 2
    return Layer(kind, dim, inner, longest, dim // heads, *places.placed(), first_only)


def pack_module(layer: Layer, layers: Sequence[Mapping[str, LowRank | NormChange]]) -> Module:
    """Bring a tenant's changes into the kernels' layout.

    layer: one of the layers that they change. layers: for each layer its changes by site; the sites are those
    of `hmi.model.tenant.modules`. Raises ValueError if a change's sizes are not the layer's, since the
    kernels check nothing; or if biases are missing, or are where the kernels read none.
    """
    kind = layer.kind
    places, begins, columns = Places(), list[int](), 16
    for sites in layers:
        for site, found in sites.items():
            _check_sizes(layer, site, found)
        record = np.zeros(of_change.MODULE_FIELDS, np.int64)
        begins.append(places.add(record))
        of_qkv = [_low_rank(sites.get(site)) for site in "qkv"]
        packed = {of_change.ON_QKV: pack_change(kind, of_qkv)} if any(of_qkv) else {}
        for site, found in sites.items():
            if site in _SLOTS and isinstance(found, LowRank):
                packed[_SLOTS[site]] = pack_change(kind, [found])
            elif site in _NORMS and isinstance(found, NormChange):
                places.point(record, _NORMS[site], found.gain)
                places.point(record, _NORMS[site] + 1, found.bias)
        rest = places.size
        for slot in sorted(packed):
            change = packed[slot]
            put_change(record, slot, change, places)
            columns = max(columns, change.width)
            if slot == of_change.ON_QKV:
                rest += change.down.nbytes
        places.mark(record, ahead.REST, rest)
        places.mark(record, ahead.END, places.size)
    memory, address = places.placed()
    return Module(memory, [address + begin for begin in begins], columns)


class Room(Buffers):
    """One thread's memory for a layer's run."""

    def address(self, layer: Layer, texts: Texts) -> int:
        """The address of a record whose buffers are large enough for these texts."""
        rows = max(texts.longest, of_layer.BLOCK)
        heads = layer.dim // layer.head
        return self.fitted((layer.dim, layer.inner, layer.head, heads, rows, texts.longest, texts.columns))

    def bytes_of(self, *sizes: int) -> dict[int, int]:
        dim, inner, head, heads, rows, longest, columns = sizes
        wide = max(dim, inner)
        return {
            of_room.BFLOATS: 2 * rows * dim,
            of_room.NUMBERS: 2 * rows * wide,
            of_room.SCALES: 4 * rows,
            of_room.QKV: 12 * rows * dim,
            of_room.QUERIES: 4 * rows * dim,
            of_room.FIRSTS: 4 * rows * dim,
            of_room.CONTEXT: 4 * rows * dim,
            of_room.MIDDLE: 4 * rows * dim,
            of_room.WIDE: 4 * rows * inner,
            of_room.LOW: 4 * rows * columns,
            of_room.TILE: ROWS * max(4 * columns, STRIDE),
            of_room.SPARE: 6 * ROWS * dim,
            of_room.MEANS: 4 * GROUP * heads * dim,
            of_room.ATTEND: max(
                -(-longest // 64) * (head + ROWS) * STRIDE,
                4 * (-(-heads // 16) * 16) * (dim + longest + max(longest + 15, columns)),
            ),
            of_room.CHANGED: 8 * CHANGED_FIELDS * rows,
            of_room.RUNS: 8 * ahead.RUN_FIELDS * rows,
            of_room.NEXT_RUNS: 8 * ahead.RUN_FIELDS * rows,
            of_room.QUERY_RUNS: 8 * ahead.RUN_FIELDS * rows,
            of_room.ZEROS: 4 * (longest + 64),
        }


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
        self._plus = None if plus is None else np.concatenate([plus, np.zeros(15, np.float32)])
        self.offsets_address = self._offsets.ctypes.data
        self.plus_address = 0 if self._plus is None else self._plus.ctypes.data

    def records(self, index: int) -> Record:
        """The addresses of the modules' records of one layer, int64 [texts]; 0 for no module."""
        return np.array(
            [0 if m is None or index >= len(m.addresses) else m.addresses[index] for m in self._modules],
            np.int64,
        )


def run_layer(
    layer: Layer, index: int, x: int, texts: Texts, room: Room, out: int, *, first_only: bool = False
) -> None:
    """Run packed rows through one layer, with the GIL released. A row's result has the same bits in every
    batch.

    x: the address of float32 [rows, dim]. out: the address of as many rows, or [texts, dim] if only each
    text's first row is wanted. index: the layer's place, for the modules. Raises ValueError for a text that
    is longer than the layer's relative attention, and for first rows of a layer that was not packed for them.
    """
    if first_only and not layer.first_only:
        raise ValueError("first rows alone are wanted: pack this layer with first_only=True")
    if layer.longest is not None and texts.longest > layer.longest:
        raise ValueError(f"a text of {texts.longest} tokens: relative attention knows {layer.longest}")
    coming = texts.records(index + 1)
    records, record = texts.records(index), room.address(layer, texts)
    of_layer.run_layer(
        layer.address,
        x,
        texts.offsets_address,
        texts.count,
        records.ctypes.data,
        coming.ctypes.data,
        texts.plus_address,
        int(first_only),
        record,
        out,
    )


def product(layer: Layer, rows: int) -> Callable[[], None]:
    """Return a call that multiplies `rows` rows by the FFN's first matrix, for measurements of the product
    alone. The GIL is released."""
    x = np.random.default_rng(0).standard_normal((rows, layer.dim), np.float32)
    out, room = np.empty((rows, layer.inner), np.float32), Room()
    record = room.address(layer, Texts([0, rows], [None]))
    matrix, panels = layer.address + 8 * of_layer.IN_FFN, layer.inner // COLUMNS
    of_room.operand(layer.kind, record, x.ctypes.data, rows, layer.dim)

    def multiply() -> None:
        assert room
        assert x.size
        of_matrix.multiply(
            record, layer.kind, matrix, rows, 0, panels, panels, out.ctypes.data, 4 * layer.inner
        )

    return multiply


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))


def _check_sizes(layer: Layer, site: str, found: LowRank | NormChange) -> None:
    """Raises ValueError where a change's arrays are not of the layer's sizes, or not those of its site."""
    size_in = layer.inner if site == "fo" else layer.dim
    size_out = layer.inner if site == "fi" else layer.dim
    if isinstance(found, NormChange):
        have = [(found.gain, [layer.dim]), (found.bias, [layer.dim])]
    else:
        rank = len(found.down)
        have = [(found.down, [rank, size_in]), (found.up, [size_out, rank])]
        biases = (found.down_bias, rank), (found.up_bias, size_out)
        given = [(bias, [size]) for bias, size in biases if bias is not None]
        if len(given) != (wanted := 2 if site in _BOTTLENECKS else 0):
            raise ValueError(f"the change at {site!r} has {len(given)} biases; {wanted} are needed")
        have += given
    for array, size in have:
        if list(array.shape) != size:
            raise ValueError(
                f"the change at {site!r} has an array {list(array.shape)}; the layer needs {size}"
            )


def _low_rank(found: LowRank | NormChange | None) -> LowRank | None:
    return found if isinstance(found, LowRank) else None


def _put_first_only(record: Record, kind: int, weights: LayerWeights, heads: int, places: Places) -> None:
    """KEYS and VALUES; see `layer.LAYER_FIELDS`."""
    (weight, bias), dim = weights.qkv, weights.out[0].shape[0]
    near = around(kind)
    turned = weight[dim : 2 * dim].reshape(heads, -1, dim).swapaxes(1, 2).reshape(heads * dim, -1)
    keys = pack_matrix(near, turned, np.zeros(len(turned), np.float32))
    put_matrix(record, of_layer.KEYS, keys, places)
    if kind != near:
        values = pack_matrix(near, weight[2 * dim :], bias[2 * dim :])
        put_matrix(record, of_layer.VALUES, values, places, 2 * dim // COLUMNS)
