"""The innermost product: up to six rows times a panel of 64 columns, in registers.

All kinds of numbers share one form. A row is a sequence of 32-bit words, each of 1 float, 2 bfloats or 4
bytes; a panel has for each word 64 columns of the same shape. One instruction multiplies a word, spread over
16 lanes, with 16 columns and adds the products of each lane to the lane's sum. So a row's result is the same
bits whatever rows stand beside it.

A second product, a tenant's low-rank change, is added to the sums before they are stored.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8
from hmi_kernels.encoder.isa import able, has
from hmi_kernels.encoder.vectors import BF16, F32, FLOATS, I8, I32, I64, LANES, WORDS, Vectors, vectorised
from hmi_kernels.jit import calling, ir, whole

ROWS = 6
"""Rows of a full tile: 6 x 4 sums, four vectors of columns and a word fit the 32 registers of AVX-512."""
STRIDE = 256
"""Bytes of one word of a panel of 64 columns."""
VECTORS = 4
WIDE = VECTORS if has("avx512f") else 1
"""Vectors of a panel that are summed at a time: 6 x 1 sums of two registers each fit the 16 of AVX2."""
_PAIRS, _QUADS = ir.VectorType(BF16, 2 * LANES), ir.VectorType(I8, 4 * LANES)


def _dot(v: Vectors, kind: int, total: Any, word: Any, columns: Any) -> Any:
    """total + the products of the lanes' words; word and columns are int32 lanes."""
    if kind == BFLOAT:
        word, columns = v.b.bitcast(word, _PAIRS), v.b.bitcast(columns, _PAIRS)
        return v.call("llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, word, columns)
    if kind == INT8:
        word, columns = v.b.bitcast(word, _QUADS), v.b.bitcast(columns, _QUADS)
        return v.call("llvm.x86.avx512.vpdpbusd.512", WORDS, total, word, columns)
    return v.fma(v.b.bitcast(word, FLOATS), v.b.bitcast(columns, FLOATS), total)


def _products(
    v: Vectors, kind: int, sums: list[Any], rows: int, a: Any, step: Any, words: Any, panel: Any, stride: Any
) -> list[Any]:
    """The sums [rows x vectors], each plus a row's products with one vector of a panel's columns.

    Row r begins `step` bytes after row r - 1, a panel's word `stride` bytes after the one before.
    """
    wide = len(sums) // rows

    def body(i: Any, carried: list[Any]) -> list[Any]:
        at, word_at = v.at(panel, v.b.mul(i, stride)), v.at(a, v.scaled(i, 4))
        columns = [v.load(v.at(at, 64 * j), WORDS) for j in range(wide)]
        after = []
        for r in range(rows):
            word = v.spread(v.load(v.at(word_at, v.scaled(step, r)), I32))
            after += [_dot(v, kind, carried[wide * r + j], word, columns[j]) for j in range(wide)]
        return after

    return v.loop(words, sums, body)


def _in_two_chains(
    v: Vectors, kind: int, rows: int, a: Any, step: Any, words: Any, panel: Any, stride: Any
) -> list[Any]:
    """The sums of an even number of words with one vector of columns, odd and even words apart.

    A row has one sum here, and each product waits for the one before. Two chains halve the wait.
    """

    def body(i: Any, carried: list[Any]) -> list[Any]:
        after = []
        for chain in range(2):
            word_i = v.b.add(v.scaled(i, 2), I64(chain))
            columns, word_at = (
                v.load(v.at(panel, v.b.mul(word_i, stride)), WORDS),
                v.at(a, v.scaled(word_i, 4)),
            )
            for r in range(rows):
                word = v.spread(v.load(v.at(word_at, v.scaled(step, r)), I32))
                after.append(_dot(v, kind, carried[rows * chain + r], word, columns))
        return after

    both = v.loop(v.b.sdiv(words, I64(2)), _zeros(kind, 2 * rows), body)
    return [v.b.fadd(both[r], both[rows + r]) for r in range(rows)]


def _zeros(kind: int, count: int) -> list[Any]:
    return [ir.Constant(WORDS if kind == INT8 else FLOATS, [0 if kind == INT8 else 0.0] * LANES)] * count


def _stored(v: Vectors, sums: list[Any], rows: int, c: Any, c_step: Any) -> None:
    wide = len(sums) // rows
    for r in range(rows):
        for j in range(wide):
            v.store(sums[wide * r + j], v.at(c, v.at(v.scaled(c_step, r), 64 * j)))


def _rescaled(v: Vectors, total: Any, by_column: Any, offset: Any, by_row: Any) -> Any:
    """Sums of int8 products as floats: bytes of rows are 128 too large, which the offset takes back."""
    return v.b.fmul(v.b.fmul(v.floats(v.b.sub(total, offset)), by_column), by_row)


def _tile(kind: int, v: Vectors, n: Any, *given: Any) -> None:
    """n, a, step, words, panel, bias, scales, shared, low, low_step, low_words, up, c, c_step: c = a · panel
    + bias + low · up. Without a change low_words is 0."""
    if not able(kind):
        v.trap()
        return
    v.switch(n, {rows: partial(_rows, kind, v, rows, *given) for rows in range(1, ROWS + 1)})


def _rows(
    kind: int,
    v: Vectors,
    rows: int,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    bias: Any,
    scales: Any,
    shared: Any,
    low: Any,
    low_step: Any,
    low_words: Any,
    up: Any,
    c: Any,
    c_step: Any,
) -> None:
    stride, of_module = I64(STRIDE), FLOAT if kind == FLOAT else BFLOAT
    for first in range(0, STRIDE, 64 * WIDE):
        at = v.at(panel, first)
        sums = _products(v, kind, _zeros(kind, rows * WIDE), rows, a, step, words, at, stride)
        for r in range(rows):
            for j in range(WIDE):
                x, column = sums[WIDE * r + j], first + 64 * j
                if kind == INT8:
                    by_column = v.load(v.at(shared, column))
                    offset = v.load(v.at(shared, STRIDE + column), WORDS)
                    x = _rescaled(v, x, by_column, offset, v.spread(v.load(v.at(scales, 4 * r), F32)))
                sums[WIDE * r + j] = v.b.fadd(x, v.load(v.at(bias, column)))
        changed = partial(
            _products, v, of_module, sums, rows, low, low_step, low_words, v.at(up, first), stride
        )
        _stored(
            v, v.where(v.b.icmp_signed(">", low_words, I64(0)), sums, changed), rows, v.at(c, first), c_step
        )


def _narrow(
    kind: int, wide: int, v: Vectors, n: Any, a: Any, step: Any, words: Any, panel: Any, stride: Any, *c: Any
) -> None:
    """n, a, step, words, panel, stride, c, c_step: c = a · a panel of 16 or 32 columns.

    In bfloat16 the number of words is even.
    """
    if not able(kind):
        v.trap()
        return

    def product(rows: int) -> None:
        if wide == 1 and kind == BFLOAT:
            sums = _in_two_chains(v, kind, rows, a, step, words, panel, stride)
        else:
            sums = _products(v, kind, _zeros(kind, rows * wide), rows, a, step, words, panel, stride)
        _stored(v, sums, rows, *c)

    v.switch(n, {rows: partial(product, rows) for rows in range(1, ROWS + 1)})


_tile_floats, _tile_bfloats, _tile_bytes = (
    vectorised(14)(partial(_tile, kind)) for kind in (FLOAT, BFLOAT, INT8)
)
_narrow_floats, _narrow_bfloats = (vectorised(8)(partial(_narrow, kind, 1)) for kind in (FLOAT, BFLOAT))
_narrow_floats2, _narrow_bfloats2 = (vectorised(8)(partial(_narrow, kind, 2)) for kind in (FLOAT, BFLOAT))


@whole
def tile(
    kind: Any,
    n: Any,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    bias: Any,
    scales: Any,
    shared: Any,
    low: Any,
    low_step: Any,
    low_words: Any,
    up: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c float32 [n, 64] = a [n] · panel + bias + low [n] · up; n is at most ROWS.

    scales, shared: of int8, each row's scale, and the panel's 64 scales and offsets. low_words 0: no change.
    """
    if kind == BFLOAT:
        _tile_bfloats(n, a, step, words, panel, bias, 0, 0, low, low_step, low_words, up, c, c_step)
    elif kind == FLOAT:
        _tile_floats(n, a, step, words, panel, bias, 0, 0, low, low_step, low_words, up, c, c_step)
    else:
        _tile_bytes(n, a, step, words, panel, bias, scales, shared, low, low_step, low_words, up, c, c_step)


@whole
def narrow(
    kind: Any,
    columns: Any,
    n: Any,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    stride: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c float32 [n, columns] = a [n] · a panel whose words are `stride` bytes apart; columns: a multiple of
    16."""
    j = 0
    while j < columns:
        at, to = panel + 4 * j, c + 4 * j
        if columns - j >= 32:
            if kind == FLOAT:
                _narrow_floats2(n, a, step, words, at, stride, to, c_step)
            else:
                _narrow_bfloats2(n, a, step, words, at, stride, to, c_step)
            j += 32
        else:
            if kind == FLOAT:
                _narrow_floats(n, a, step, words, at, stride, to, c_step)
            else:
                _narrow_bfloats(n, a, step, words, at, stride, to, c_step)
            j += 16


call_tile, call_narrow = calling(15), calling(10)
"""`tile` and `narrow` by their addresses, which a room's record holds."""
