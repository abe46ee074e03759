"""Public kernels: typed wrappers that check, allocate and then call the compiled bodies (CPU only so far)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kernels import cpu, cpu_index, cpu_rows
from kernels.layout import (
    DTYPES,
    EMPTY_SLOT,
    NUMPY_TYPES,
    ORDERS,
    ROLES,
    ROW_HEADER,
    SCALES_AT,
    Bytes,
    Keys,
    pack_keys,
    stride,
)

LOAD = 0.75
Floats = NDArray[np.float32]


@dataclass(frozen=True)
class IndexRun:
    """One index over some segments of one version: the unit that the kernels probe."""

    order: int
    depth: int  # of the version in its chain, 0 = nearest
    dtype: int  # code of the rows' storage type
    slots: Keys  # uint64 [cap]
    shift: int  # a row id is (ordinal << shift) | row
    segments: tuple[Bytes, ...]  # uint8 [count, stride], by ordinal


@dataclass(frozen=True)
class LevelTable:
    """Pointers to all the index runs of a chain, in order of trial. Keeps what it points at alive."""

    dim: int
    levels: NDArray[np.int64]
    segs: NDArray[np.int64]
    bounds: NDArray[np.int64]  # trigram levels are bounds[0]:bounds[1], bigram bounds[1]:bounds[2], unigram the rest
    runs: tuple[IndexRun, ...]
    zeros: NDArray[np.int8]


def level_table(runs: Sequence[IndexRun], dim: int) -> LevelTable:
    """runs: nearest version first, newest run of a version first; any mix of orders."""
    ordered = [run for order in ORDERS for run in runs if run.order == order]
    levels = np.zeros((len(ordered), cpu_index.LEVEL_COLUMNS), np.int64)
    segs: list[tuple[int, int, int]] = []
    for i, run in enumerate(ordered):
        assert run.slots.dtype == np.uint64
        assert run.slots.flags.c_contiguous
        assert run.slots.size > 0
        levels[i] = (
            run.slots.ctypes.data,
            run.slots.size,
            len(segs),
            len(run.segments),
            run.shift,
            run.dtype,
            run.depth,
        )
        for rows in run.segments:
            assert rows.dtype == np.uint8
            assert rows.flags.c_contiguous
            assert rows.shape[1] == stride(run.order, dim, run.dtype)
            segs.append((rows.ctypes.data, rows.shape[0], rows.shape[1]))
    counts = [sum(run.order == order for run in ordered) for order in ORDERS]
    bounds = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    table = np.array(segs, np.int64).reshape(-1, cpu_index.SEGMENT_COLUMNS)
    return LevelTable(dim, levels, table, bounds, tuple(ordered), np.zeros(dim, np.int8))


def lookup(
    table: LevelTable,
    tokens: NDArray[np.int32],
    offsets: NDArray[np.int64],
    vocab: int,
    out: Floats,
    order: NDArray[np.int8],
    depth: NDArray[np.int16],
) -> None:
    """Aggregate a ragged batch into out float32 [total, dim], order int8 [total] and depth int16 [total].

    Raises ValueError when offsets are not rising from 0 to len(tokens) or an id is outside 0..vocab-1.
    """
    assert out.shape == (tokens.size, table.dim)
    assert order.shape == depth.shape == tokens.shape
    state = cpu.lookup(
        table.levels, table.segs, table.bounds, table.dim, vocab, tokens, offsets,
        table.zeros.ctypes.data, out, order, depth,
    )  # fmt: skip
    if state == cpu.BAD_OFFSETS:
        raise ValueError(f"offsets must rise from 0 to the number of tokens ({tokens.size})")
    if state == cpu.BAD_TOKEN:
        raise ValueError(f"every token id must be in 0..{vocab - 1}; the batch was cut with another vocabulary")


def find(table: LevelTable, order: int, keys: Keys) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """(address int64 [m], level int64 [m]) of each key along the chain; address 0 and level -1 where absent."""
    at = ORDERS.index(order)
    addr, lev = np.zeros(keys.size, np.int64), np.full(keys.size, -1, np.int64)
    cpu_index.resolve(table.levels, table.segs, table.bounds[at], table.bounds[at + 1], keys, keys.size, addr, lev)
    return addr, lev


def build_index(segment_keys: Sequence[Keys]) -> tuple[Keys, int, int]:
    """(slots uint64 [cap], shift, distinct keys) over segments, oldest first; of equal keys the newest wins.

    Raises ValueError when the rows do not fit in the 32 bits of a row id.
    """
    counts = [keys.size for keys in segment_keys]
    shift = max(max(counts, default=1) - 1, 1).bit_length()
    if len(counts) << shift >= 1 << 32:
        raise ValueError("more rows than one index can number: use larger segments or several indexes")
    starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
    keys = np.concatenate(segment_keys) if segment_keys else np.zeros(0, np.uint64)
    slots = np.full(max(8, int(keys.size / LOAD) + 1), EMPTY_SLOT, np.uint64)
    distinct = int(cpu_index.build(keys, starts, np.int64(shift), slots))
    return slots, shift, distinct


def encode(ngrams: NDArray[np.uint32], vectors: Floats, dtype: int) -> Bytes:
    """uint32 [m, order] and float32 [m, roles, dim] -> rows uint8 [m, stride] of the given storage type.

    Raises ValueError when a number is not finite in that type.
    """
    m, order = ngrams.shape
    assert vectors.shape[:2] == (m, ROLES[order])
    assert dtype in DTYPES.values()
    dim = vectors.shape[2]
    rows = np.zeros((m, stride(order, dim, dtype)), np.uint8)
    rows[:, :SCALES_AT] = pack_keys(ngrams).astype("<u8").view(np.uint8).reshape(m, SCALES_AT)
    if dtype == DTYPES["int8"]:
        solid = np.ascontiguousarray(vectors)
        finite = bool(cpu_rows.encode_int8(solid, solid.view(np.uint32), rows))
    else:
        with np.errstate(over="ignore"):
            cast = vectors.astype(NUMPY_TYPES[dtype])
        finite = bool(np.isfinite(cast).all())
        body = ROLES[order] * dim * cast.itemsize
        rows[:, ROW_HEADER : ROW_HEADER + body] = np.ascontiguousarray(cast).view(np.uint8).reshape(m, body)
        ones = np.ones((m, ROLES[order]), "<f4").view(np.uint8)
        rows[:, SCALES_AT : SCALES_AT + 4 * ROLES[order]] = ones
    if not finite:
        raise ValueError("a representation is infinite, NaN or too large for its storage type")
    return rows
