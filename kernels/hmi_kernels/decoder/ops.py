"""Public face of the decoder kernels: packed layers and modules, pages, and the run of a step's rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, chain
from operator import add

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.decoder import PAGE, fits
from hmi_kernels.decoder import attention as of_attention
from hmi_kernels.decoder import layer as of_layer
from hmi_kernels.decoder import words as of_words
from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16, ahead
from hmi_kernels.encoder import product as of_matrix
from hmi_kernels.encoder import room as of_room
from hmi_kernels.encoder.buffers import Buffers
from hmi_kernels.encoder.pack import (
    COLUMNS,
    LINE,
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
from hmi_kernels.encoder.tile import CHANGED_FIELDS, ROWS, STRIDE, number_bytes

__all__ = [
    "BFLOAT",
    "FLOAT",
    "INT8",
    "INT16",
    "PAGE",
    "Floats",
    "LayerWeights",
    "Layers",
    "LowRank",
    "Module",
    "Pages",
    "Room",
    "StepRows",
    "Words",
    "best",
    "pack_layers",
    "pack_module",
    "pack_words",
    "run_layers",
    "scores",
]
_PARTS = {
    of_layer.ON_QUERIES: ("q",),
    of_layer.ON_KEYS_VALUES: ("k", "v"),
    of_layer.ON_OUT: ("o",),
    of_layer.ON_IN: ("gate", "fi"),
    of_layer.ON_FFN: ("fo",),
}
"""The sites that each product's change consists of."""


@dataclass(frozen=True)
class LayerWeights:
    """A layer of Llama's shape in float32; matrices are [out, in]."""

    q: tuple[Floats, Floats | None]
    """With its bias, if it has one. So have k and v."""
    k: tuple[Floats, Floats | None]
    v: tuple[Floats, Floats | None]
    out: Floats
    gate: Floats
    inner: Floats
    outer: Floats
    norm1: Floats
    norm2: Floats
    q_norm: Floats | None = None
    k_norm: Floats | None = None


@dataclass(frozen=True)
class Layers:
    """Layers of one shape in the kernels' layout, one behind another in the order of their use."""

    kind: int
    dim: int
    inner: int
    heads: int
    kv_heads: int
    head: int
    memory: Memory
    """The records and all that they point to."""
    addresses: NDArray[np.int64]
    """The addresses of the records."""


@dataclass(frozen=True)
class Module:
    """A tenant's low-rank changes of every layer in the kernels' layout."""

    memory: Memory
    addresses: NDArray[np.int64]
    """The addresses of the layers' records."""
    columns: int
    """Numbers of its widest low-rank row."""


@dataclass(frozen=True)
class Words:
    """The vectors of all words, which give the scores of the next token, and the norm before them."""

    kind: int
    dim: int
    vocab: int
    eps: float
    gain: Floats
    memory: Memory
    address: int
    """The address of the matrix."""


def pack_layers(
    kind: int, layers: Iterable[LayerWeights], count: int, heads: int, kv_heads: int, eps: float
) -> Layers:
    """Bring so many layers into the kernels' layout.

    Raises ValueError if the kernels cannot run them (see `fits`), or if they are not of one size.
    """
    memory, addresses, size = None, list[int](), 0
    for weights in layers:
        record, places = _places_of(kind, weights, heads, kv_heads, eps)
        if memory is None:  # one for all, so that the system gives it large pages
            memory, size, shape = np.zeros(count * places.size + LINE, np.uint8), places.size, record[1:6]
        if places.size != size:
            raise ValueError("the layers are not of one size")
        _, address = places.placed(memory[size * len(addresses) :])
        addresses.append(address)
    assert memory is not None
    assert len(addresses) == count
    dim, inner, heads, kv_heads, head = shape.tolist()
    return Layers(kind, dim, inner, heads, kv_heads, head, memory, np.array(addresses))


def _places_of(
    kind: int, weights: LayerWeights, heads: int, kv_heads: int, eps: float
) -> tuple[Record, Places]:
    inner, dim = weights.gate.shape
    head = len(weights.q[0]) // heads
    if not fits(dim, heads, kv_heads, head, inner):
        raise ValueError(f"no kernel for {dim} dimensions, heads of {head} and an FFN of {inner}")
    record, places = np.zeros(of_layer.LAYER_FIELDS, np.int64), Places()
    places.add(record)
    record[: of_layer.EPS] = kind, dim, inner, heads, kv_heads, head
    record[of_layer.EPS], record[of_layer.FACTOR] = _bits(eps), _bits(head**-0.5)
    for at, gain in (
        (of_layer.GAIN1, weights.norm1),
        (of_layer.GAIN2, weights.norm2),
        (of_layer.Q_GAIN, weights.q_norm),
        (of_layer.K_GAIN, weights.k_norm),
    ):
        if gain is not None:
            places.point(record, at, np.asarray(gain, np.float32))
    both = [weights.k, weights.v]
    for at, parts in (
        (of_layer.QUERIES, [weights.q]),
        (of_layer.KEYS_VALUES, both),
        (of_layer.OUT, [(weights.out, None)]),
        (of_layer.IN_FFN, [(weights.gate, None), (weights.inner, None)]),
        (of_layer.OUT_FFN, [(weights.outer, None)]),
    ):
        matrix = np.concatenate([weight for weight, _ in parts])
        bias = [np.zeros(len(w), np.float32) if given is None else given for w, given in parts]
        put_matrix(record, at, pack_matrix(kind, matrix, np.concatenate(bias)), places)
    return record, places


def pack_module(of: Layers, layers: Sequence[Mapping[str, LowRank]]) -> Module:
    """Bring a tenant's changes into the kernels' layout.

    of: the layers that they change. layers: for each its changes by site: q, k, v, o, gate, fi, fo.
    Raises ValueError if a change's sizes are not the layer's, since the kernels check nothing.
    """
    places, begins, columns = Places(), list[int](), 16
    wide, narrow = of.heads * of.head, of.kv_heads * of.head
    sizes = {
        "q": (of.dim, wide),
        "k": (of.dim, narrow),
        "v": (of.dim, narrow),
        "o": (wide, of.dim),
        "gate": (of.dim, of.inner),
        "fi": (of.dim, of.inner),
        "fo": (of.inner, of.dim),
    }
    for sites in layers:
        for site, found in sites.items():
            size_in, size_out = sizes[site]
            have, rank = (found.down.shape, found.up.shape), len(found.down)
            if have != ((rank, size_in), (size_out, rank)) or found.down_bias is not None:
                raise ValueError(f"the change at {site!r} has arrays {have}; it maps {size_in} to {size_out}")
        record = np.zeros(of_layer.MODULE_FIELDS, np.int64)
        begins.append(places.add(record))
        rest = 0
        for slot, parts in _PARTS.items():
            given = [sites.get(part) for part in parts]
            if any(given):
                before = 1 if given[0] is None else 0
                change = pack_change(of.kind, given[before:])
                put_change(record, slot, change, places, before)
                columns = max(columns, change.width)
            rest = rest or places.size  # what the first product needs is fetched before it
        places.mark(record, ahead.REST, rest)
        places.mark(record, ahead.END, places.size)
    memory, address = places.placed()
    return Module(memory, address + np.array(begins), columns)


def pack_words(kind: int, words: Floats, gain: Floats, eps: float) -> Words:
    """words float32 [vocab, dim]; gain: of the last RMSNorm."""
    vocab, dim = words.shape
    padded = np.pad(words, ((0, -vocab % COLUMNS), (0, 0)))
    record, places = np.zeros(of_matrix.MATRIX_FIELDS, np.int64), Places()
    places.add(record)
    put_matrix(record, 0, pack_matrix(kind, padded, np.zeros(len(padded), np.float32)), places)
    return Words(kind, dim, vocab, eps, np.asarray(gain, np.float32), *places.placed())


class Pages:
    """Keys and values of all layers in pages of PAGE tokens: [pages, layers, kv_heads, 2, PAGE · head]
    numbers, float32 for layers of float32, else bfloat16. Pages are not cleared."""

    def __init__(self, count: int, layers: Layers) -> None:
        numbers = layers.kv_heads * 2 * PAGE * layers.head
        self.layer_bytes = numbers * number_bytes(layers.kind)
        self.page_bytes = len(layers.addresses) * self.layer_bytes
        self._memory = np.empty(count * self.page_bytes + 64, np.uint8)  # pages are taken as they are written
        self.address = self._memory.ctypes.data + -self._memory.ctypes.data % 64


class Room(Buffers):
    """One thread's memory for a layer's run, and for scores."""

    def address(self, layer: Layers, rows: StepRows) -> int:
        """The address of a record whose buffers are large enough for these rows."""
        wide, narrow = layer.heads * layer.head, layer.kv_heads * layer.head
        longest = 1 << (rows.longest - 1).bit_length()  # it grows by one in each step
        return self.fitted((layer.dim, layer.inner, wide, narrow, longest, rows.columns))

    def bytes_of(self, *sizes: int) -> dict[int, int]:
        dim, inner, wide, narrow, longest, columns = sizes
        rows, widest = of_layer.BLOCK, max(dim, wide)
        return {
            of_room.BFLOATS: 2 * rows * widest,
            of_room.NUMBERS: 2 * rows * max(widest, inner),
            of_room.SCALES: 4 * rows,
            of_room.QKV: 4 * rows * (wide + 2 * narrow),
            of_room.CONTEXT: 4 * rows * wide,
            of_room.MIDDLE: 4 * rows * dim,
            of_room.WIDE: 4 * rows * inner,
            of_room.LOW: 4 * rows * columns,
            of_room.TILE: ROWS * max(4 * columns, 2 * STRIDE),
            of_room.ATTEND: 4 * of_attention.TOGETHER * (longest + PAGE),
            of_room.CHANGED: 8 * CHANGED_FIELDS * rows,
            of_room.RUNS: 8 * ahead.RUN_FIELDS * rows,
            of_room.NEXT_RUNS: 8 * ahead.RUN_FIELDS * rows,
            of_room.ZEROS: 4 * (longest + PAGE),
        }


class StepRows:
    """The next rows of some sequences: made once for a step, and run through one layer after another."""

    def __init__(
        self,
        counts: Sequence[int],
        begins: Sequence[int],
        tables: Sequence[Sequence[int]],
        modules: Sequence[Module | None],
    ) -> None:
        """Sequence i has counts[i] rows, one at least, from position begins[i] on. tables[i]: the numbers
        of its pages, which hold its tokens before these rows, and have room for these."""
        assert min(counts) > 0
        assert all(
            len(table) * PAGE >= begin + count
            for table, begin, count in zip(tables, begins, counts, strict=True)
        )
        # Few calls and lists: after a step of kernels all of numpy's code has left the caches.
        self.count, self.longest = sum(counts), max(map(add, begins, counts))
        self.positions = np.array(
            [i for begin, count in zip(begins, counts, strict=True) for i in range(begin, begin + count)]
        )
        self._kept = np.array([*chain.from_iterable(tables)], np.int64)
        first = self._kept.ctypes.data
        begun = accumulate(map(len, tables), initial=0)
        self.tables = np.array(
            [at for i, count in zip(begun, counts, strict=False) for at in [first + 8 * i] * count]
        )
        self.columns = max((m.columns for m in modules if m is not None), default=16)
        self._modules = [m for m, count in zip(modules, counts, strict=True) for _ in range(count)]

    def records(self, layers: int) -> NDArray[np.int64]:
        """The addresses of the modules' records, int64 [layers, rows]; 0 for no module."""
        none = np.zeros(layers, np.int64)
        by_row = [none if m is None else m.addresses for m in self._modules]
        return np.ascontiguousarray(np.array(by_row).T)


_NEVER = np.zeros(1, np.int64)


def run_layers(
    layers: Layers,
    x: Floats,
    rows: StepRows,
    turns: Floats,
    pages: Pages,
    room: Room,
    between: Callable[[], None] | None = None,
    flag: NDArray[np.int64] | None = None,
) -> None:
    """Run a step's rows through all layers, in place, with the GIL released: x float32 [rows, dim].

    Writes the rows' keys and values into their pages. A row's result has the same bits in every step.
    turns: float32 [positions, head], for each position the cosines of its angles, then the sines. between:
    called after each BLOCK of rows; it may run other rows in the same room. flag: int64 [1]. With it,
    `between` is called only after layers at whose end the number is not 0.
    """
    assert x.shape == (rows.count, layers.dim)
    assert x.dtype == np.float32
    assert x.flags.c_contiguous
    assert turns.shape[0] >= rows.longest
    count = len(layers.addresses)
    records = rows.records(count)
    often = between is not None and flag is None
    watched = _NEVER if flag is None else flag

    def run(first: int, last: int, begin: int, end: int) -> int:
        reached: int = of_layer.run_layers(
            layers.addresses.ctypes.data,
            first,
            last,
            x.ctypes.data,
            begin,
            end,
            rows.count,
            rows.positions.ctypes.data,
            rows.tables.ctypes.data,
            records.ctypes.data,
            turns.ctypes.data,
            pages.address,
            pages.layer_bytes,
            pages.page_bytes,
            room.address(layers, rows),
            watched.ctypes.data,
        )
        return reached

    if not often:
        reached = run(0, count, 0, rows.count)
        while reached < count:
            assert between is not None
            between()
            reached = run(reached, count, 0, rows.count)
        return
    assert between is not None
    for index in range(count):
        for begin in range(0, rows.count, of_layer.BLOCK):
            run(index, index + 1, begin, min(begin + of_layer.BLOCK, rows.count))
            between()


def scores(words: Words, x: Floats, room: Room) -> tuple[Floats, Floats, NDArray[np.int64]]:
    """The scores of the next token, the greatest of each 64, and the id of the greatest, of equal ones the
    lower: states float32 [rows, dim] after the last layer -> [rows, vocab, up to a multiple of 64], [rows, a
    64th of that], [rows]. The score of id 0, no token, and those beyond the vocabulary are -inf. A row's
    scores have the same bits in every step."""
    rows, panels = len(x), -(-words.vocab // COLUMNS)
    out, tops = np.empty((rows, panels * COLUMNS), np.float32), np.empty((rows, panels), np.float32)
    firsts = np.empty(rows, np.int64)
    if rows:
        assert x.dtype == np.float32
        assert x.flags.c_contiguous
        record = room.fitted((words.dim, words.dim, words.dim, 0, 0, 16))
        gain, eps = words.gain.ctypes.data, _bits(words.eps)
        of_words.score(
            words.kind,
            words.address,
            x.ctypes.data,
            rows,
            words.dim,
            gain,
            eps,
            words.vocab,
            record,
            out.ctypes.data,
            tops.ctypes.data,
            firsts.ctypes.data,
        )
    return out, tops, firsts


def best(
    row: Floats, k: int, scale: float = 1.0, tops: Floats | None = None
) -> tuple[NDArray[np.int64], Floats, float]:
    """The k best words of a row of `scores`: their ids and scores, the best first and of equal ones the
    lower id, and the logarithm of the sum of the exponentials of all scores times `scale`; -inf for a scale
    of 0. tops: the greatest of each 64, if they are known."""
    ids, found = np.empty(k, np.int64), np.empty(k, np.float32)
    if rest := -len(row) % of_words.GROUP:
        row = np.pad(row, (0, rest), constant_values=-np.inf)
    if tops is None:
        tops = np.empty(len(row) // of_words.GROUP, np.float32)
        of_words.greatest(row.ctypes.data, len(tops), tops.ctypes.data)
    count, total = of_words.best(row, tops, scale, ids, found)
    return ids[:count], found[:count], float(total)


def _bits(x: float) -> int:
    return int(np.float32(x).view(np.uint32))
