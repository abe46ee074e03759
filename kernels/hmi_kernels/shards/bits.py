"""The numba bodies of packing and unpacking.

Code i of a packed array has the bits i·b to (i + 1)·b − 1, counted from the lowest bit of the first byte. So
eight codes take b bytes. A packed array has eight bytes of padding at least, since whole words are read.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import (
    get,
    inlined,
    load_i64,
    load_u8,
    load_u32,
    load_u64,
    store_i64,
    store_u8,
    store_u32,
    whole,
)

FIELDS = 6
"""The numbers of a block's record, in this order:"""
OUT, STRIDE, ROWS, COLUMNS, HEIGHT, WIDTH = range(FIELDS)
"""OUT: the address of the fp32 matrix. STRIDE: numbers from one of its rows to the next. ROWS, COLUMNS:
addresses of int64 [HEIGHT] and [WIDTH], the rows and columns that the block has in it, or 0 if they are
0, 1, 2, … HEIGHT and WIDTH: the size of the block."""


@inlined
def _code(packed: Any, i: Any, bits: Any) -> Any:
    place = i * bits
    word = load_u64(packed + (place >> 3)) >> np.uint64(place & 7)
    return np.int64(word & np.uint64((1 << bits) - 1))


@inlined
def _copy(source: Any, at: Any, columns: Any, width: Any) -> Any:
    for c in range(width):
        store_u32(at + 4 * (c if columns == 0 else load_i64(columns + 8 * c)), load_u32(source + 4 * c))


@inlined
def _row(packed: Any, bits: Any, pairs: Any, at: Any, columns: Any, width: Any) -> Any:
    """A row that begins with a byte and whose length is a multiple of eight."""
    mask, step = np.uint64((1 << (2 * bits)) - 1), np.uint64(2 * bits)
    for g in range(width // 8):
        word = load_u64(packed + g * bits)
        for p in range(4):
            two = load_i64(pairs + 8 * np.int64(word & mask))
            word >>= step
            if columns == 0:
                store_i64(at + 32 * g + 8 * p, two)
            else:
                c = columns + 64 * g + 16 * p
                store_u32(at + 4 * load_i64(c), np.uint32(two & 0xFFFFFFFF))
                store_u32(at + 4 * load_i64(c + 8), np.uint32((two >> 32) & 0xFFFFFFFF))


@inlined
def _slow_row(packed: Any, first: Any, bits: Any, pairs: Any, at: Any, columns: Any, width: Any) -> Any:
    """A row of any length that begins anywhere. The first number of the pair (code, 0) is the code's."""
    for c in range(width):
        number = load_u32(pairs + 8 * _code(packed, first + c, bits))
        store_u32(at + 4 * (c if columns == 0 else load_i64(columns + 8 * c)), number)


@whole
def pack(codes: int, count: int, bits: int, out: int) -> Any:
    """Pack uint8 [count] at `codes` into the ⌈count·bits/8⌉ bytes at `out`."""
    held, word, at = 0, np.uint64(0), out
    for i in range(count):
        word |= np.uint64(load_u8(codes + i)) << np.uint64(held)
        held += bits
        while held >= 8:
            store_u8(at, np.uint8(word & np.uint64(255)))
            word >>= np.uint64(8)
            held -= 8
            at += 1
    if held > 0:
        store_u8(at, np.uint8(word & np.uint64(255)))


@whole
def unpack(packed: int, count: int, bits: int, out: int) -> Any:
    """Unpack `count` codes at `packed` into uint8 [count] at `out`."""
    for i in range(count):
        store_u8(out + i, np.uint8(_code(packed, i, bits)))


@whole
def decode(packed: int, bits: int, pairs: int, blocks: int, count: int) -> Any:
    """Write the fp32 numbers of `count` blocks, whose records lie at `blocks`, into their matrices.

    The blocks' codes lie at `packed`, row by row, one block after another. pairs: the address of fp32
    [4^bits, 2], the two numbers that each pair of codes stands for, the first code in the low bits. With 32
    bits the numbers themselves lie at `packed`, and `pairs` is not read.
    """
    first = 0
    for b in range(count):
        block = blocks + 8 * FIELDS * b
        out, stride, rows = get(block, OUT), get(block, STRIDE), get(block, ROWS)
        columns, width = get(block, COLUMNS), get(block, WIDTH)
        for r in range(get(block, HEIGHT)):
            at = out + 4 * stride * (r if rows == 0 else load_i64(rows + 8 * r))
            if bits == 32:
                _copy(packed + 4 * first, at, columns, width)
            elif width % 8 == 0 and first % 8 == 0:
                _row(packed + first * bits // 8, bits, pairs, at, columns, width)
            else:
                _slow_row(packed, first, bits, pairs, at, columns, width)
            first += width


@whole
def correct(positions: int, values: int, outliers: int, blocks: int, count: int) -> Any:
    """Write `outliers` fp32 numbers at `values` to the places that uint32 `positions`, ascending, name.

    A position counts the numbers of all blocks, in the order of `decode`.
    """
    block, first = blocks, 0
    for i in range(outliers):
        at = np.int64(load_u32(positions + 4 * i))
        size = get(block, HEIGHT) * get(block, WIDTH)
        while at >= first + size:
            first += size
            block += 8 * FIELDS
            if block >= blocks + 8 * FIELDS * count:
                return
            size = get(block, HEIGHT) * get(block, WIDTH)
        rows, columns, width = get(block, ROWS), get(block, COLUMNS), get(block, WIDTH)
        r = (at - first) // width
        c = (at - first) - r * width
        row = r if rows == 0 else load_i64(rows + 8 * r)
        column = c if columns == 0 else load_i64(columns + 8 * c)
        store_u32(get(block, OUT) + 4 * (get(block, STRIDE) * row + column), load_u32(values + 4 * i))
