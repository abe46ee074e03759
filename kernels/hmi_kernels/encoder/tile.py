"""The innermost product: up to eight rows times a panel of 64 columns, in registers.

All kinds of numbers share one form. A row is a sequence of 32-bit words, each of 1 float, 2 bfloats, 2 shorts
or 4 bytes; a panel has for each word 64 columns of the same shape. One or two instructions multiply a word,
spread over 16 lanes, with 16 columns and add the products of each lane to the lane's sum. So a row's result
is the same bits whatever rows stand beside it.

A second product, a tenant's low-rank change, is added to the stored sums. Each row of a tile may have a
change of its own, so tiles do not end where a tenant's rows end.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16, INTEGERS
from hmi_kernels.encoder.isa import able, has
from hmi_kernels.encoder.vectors import (
    BF16,
    F32,
    FLOATS,
    I8,
    I16,
    I32,
    I64,
    LANES,
    WORDS,
    Vectors,
    vectorised,
)
from hmi_kernels.jit import calling, ir, whole

VECTORS, STRIDE = 4, 256
"""Vectors of a panel of 64 columns, and bytes of one word of it."""
ROWS, SUMS = (8, 24) if has("avx512f") else (6, 6)
"""Rows of a full tile, and the most sums at a time. 24 of them, four vectors of columns and a word fit the 32
registers of AVX-512; 6 sums of two registers each fit the 16 of AVX2."""
CHAINS = SUMS // 6
"""Sums of one row with one group of columns, on the way down: 6 x 4 fit the registers of AVX-512."""
CHANGED_FIELDS = 4
"""Words of a row's record of its change; see `tile`."""
FETCH_FIELDS = 4
"""Words of what a tile fetches; see `tile`."""
_PAIRS, _QUADS = ir.VectorType(BF16, 2 * LANES), ir.VectorType(I8, 4 * LANES)
_SHORTS = ir.VectorType(I16, 2 * LANES)


@whole
def around(kind: Any) -> Any:
    """The kind of all that is around a layer's own products, modules too: FLOAT or BFLOAT."""
    return BFLOAT if kind in (BFLOAT, INT8) else FLOAT


@whole
def number_bytes(kind: Any) -> Any:
    """Bytes of a number of what is `around` a kind."""
    return 4 if around(kind) == FLOAT else 2


def _wide(rows: int, vectors: int = VECTORS) -> int:
    """The vectors of a panel that so many rows are multiplied with at a time."""
    return max(wide for wide in (1, 2, 4) if wide <= max(1, min(vectors, SUMS // rows)))


def _dot(v: Vectors, kind: int, total: Any, word: Any, columns: Any) -> Any:
    """total + the products of the lanes' words; word and columns are int32 lanes."""
    if kind == BFLOAT:
        word, columns = v.b.bitcast(word, _PAIRS), v.b.bitcast(columns, _PAIRS)
        return v.call("llvm.x86.avx512bf16.dpbf16ps.512", FLOATS, total, word, columns)
    if kind == INT8:
        word, columns = v.b.bitcast(word, _QUADS), v.b.bitcast(columns, _QUADS)
        return v.call("llvm.x86.avx512.vpdpbusd.512", WORDS, total, word, columns)
    if kind == INT16:
        return v.b.add(total, _short_products(v, v.b.bitcast(word, _SHORTS), v.b.bitcast(columns, _SHORTS)))
    return v.fma(v.b.bitcast(word, FLOATS), v.b.bitcast(columns, FLOATS), total)


def _short_products(v: Vectors, word: Any, columns: Any) -> Any:
    """Each pair of neighbours' products, summed."""
    if has("avx512bw"):
        return v.call("llvm.x86.avx512.pmaddw.d.512", WORDS, word, columns)
    half = ir.VectorType(I32, LANES // 2)
    low, high = (
        v.call("llvm.x86.avx2.pmadd.wd", half, v.picked(word, lanes), v.picked(columns, lanes))
        for lanes in (range(LANES), range(LANES, 2 * LANES))
    )
    return v.b.shuffle_vector(low, high, ir.Constant(WORDS, list(range(LANES))))


def _products(
    v: Vectors,
    kind: int,
    sums: list[Any],
    rows: int,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    stride: Any,
    fetches: Sequence[Any] = (),
) -> list[Any]:
    """The sums [rows x vectors], each plus a row's products with one vector of a panel's columns.

    Row r begins `step` bytes after row r - 1, a panel's word `stride` bytes after the one before. fetches:
    addresses, each followed by what is added to it at each word: a line is fetched from there.
    """
    wide = len(sums) // rows

    def body(i: Any, carried: list[Any]) -> list[Any]:
        at, word_at = v.at(panel, v.b.mul(i, stride)), v.at(a, v.scaled(i, 4))
        columns = [v.load(v.at(at, 64 * j), WORDS) for j in range(wide)]
        for begin, apart in zip(fetches[::2], fetches[1::2], strict=True):
            v.prefetch(v.at(begin, v.b.mul(i, apart)))
        after = []
        for r in range(rows):
            word = v.spread(v.load(v.at(word_at, v.scaled(step, r)), I32))
            after += [_dot(v, kind, carried[wide * r + j], word, columns[j]) for j in range(wide)]
        return after

    return v.loop(words, sums, body)


def _in_chains(
    v: Vectors, kind: int, rows: int, a: Any, step: Any, words: Any, panel: Any, columns: int
) -> list[Any]:
    """The sums of each row with so many columns, up to eight.

    A vector holds several words of each column, whose products come into sums of their own. A row has few
    sums here, and each product waits for the one before: CHAINS of them shorten the wait.
    """
    together = LANES // columns

    def body(i: Any, carried: list[Any]) -> list[Any]:
        after = []
        for chain in range(CHAINS):
            at = v.b.add(v.scaled(i, CHAINS), I64(chain))
            there, mine = v.load(v.at(panel, v.scaled(at, 64)), WORDS), v.at(a, v.scaled(at, 4 * together))
            for r in range(rows):
                few = v.load(v.at(mine, v.scaled(step, r)), ir.VectorType(I64, together // 2))
                some = v.b.bitcast(v.picked(few, [i % (together // 2) for i in range(LANES // 2)]), WORDS)
                after.append(_dot(v, kind, carried[rows * chain + r], some, there))
        return after

    sums = v.loop(v.b.sdiv(words, I64(CHAINS * together)), _zeros(kind, CHAINS * rows), body)
    while len(sums) > rows:
        half = len(sums) // 2
        sums = [v.b.fadd(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    for _ in range(together.bit_length() - 1):
        sums = [_halved(v, x) for x in sums]
    return sums


def _halved(v: Vectors, x: Any) -> Any:
    """Each lane plus the next one, of which half are left."""
    even, odd = (v.picked(x, range(i, x.type.count, 2)) for i in range(2))
    return v.b.fadd(even, odd)


def _zeros(kind: int, count: int) -> list[Any]:
    zero = ir.Constant(WORDS, [0] * LANES) if kind in INTEGERS else ir.Constant(FLOATS, [0.0] * LANES)
    return [zero] * count


def _stored(v: Vectors, sums: list[Any], rows: int, c: Any, c_step: Any) -> None:
    wide = len(sums) // rows
    for r in range(rows):
        for j in range(wide):
            v.store(sums[wide * r + j], v.at(c, v.at(v.scaled(c_step, r), 64 * j)))


def _tile(kind: int, v: Vectors, n: Any, *given: Any) -> None:
    """n, a, step, words, panel, bias, scales, shared, changes, p, part, fetches, c, c_step: see `tile`."""
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
    changes: Any,
    p: Any,
    part: Any,
    fetches: Any,
    c: Any,
    c_step: Any,
) -> None:
    lines = [v.load(v.at(fetches, 8 * i), I64) for i in range(FETCH_FIELDS)]
    wide = _wide(rows)
    for first in range(0, STRIDE, 64 * wide):
        at, columns = v.at(panel, first), range(first, first + 64 * wide, 64)
        start = _zeros(kind, rows * wide)
        if kind == INT8:  # bytes of rows are 128 too large, which the offsets take back
            zero = start[0]
            start = [v.b.sub(zero, v.load(v.at(shared, STRIDE + j), WORDS)) for j in columns] * rows
        sums = _products(v, kind, start, rows, a, step, words, at, I64(STRIDE), lines)
        for i in range(0, FETCH_FIELDS, 2):
            lines[i] = v.at(lines[i], v.b.mul(words, lines[i + 1]))
        for j, column in enumerate(columns):
            plus = v.load(v.at(bias, column))
            by_column = v.load(v.at(shared, column)) if kind in INTEGERS else None
            for k, r in ((wide * r + j, r) for r in range(rows)):
                if kind in INTEGERS:
                    by_row = v.spread(v.load(v.at(scales, 4 * r), F32))
                    sums[k] = v.fma(v.b.fmul(v.floats(sums[k]), by_column), by_row, plus)
                else:
                    sums[k] = v.b.fadd(sums[k], plus)
        _stored(v, sums, rows, v.at(c, first), c_step)
    changed = partial(_changed, v, kind, rows, changes, p, part, c, c_step)
    v.where(v.b.icmp_signed("!=", changes, I64(0)), [], changed)


def _changed(
    v: Vectors, kind: int, rows: int, changes: Any, p: Any, part: Any, c: Any, c_step: Any
) -> list[Any]:
    """Add to each row of c its own low-rank product: together if all rows have one module."""
    ups = [v.load(v.at(changes, 8 * (CHANGED_FIELDS * r + 2)), I64) for r in range(rows)]
    same = ir.IntType(1)(1)
    for other in ups[1:]:
        same = v.b.and_(same, v.b.icmp_signed("==", other, ups[0]))

    def added(count: int, r: Any) -> list[Any]:
        record, to = v.at(changes, v.scaled(r, 8 * CHANGED_FIELDS)), v.at(c, v.b.mul(c_step, r))
        low, words, up, missing = (v.load(v.at(record, 8 * i), I64) for i in range(CHANGED_FIELDS))
        step = v.b.sub(v.load(v.at(record, 8 * CHANGED_FIELDS), I64), low) if count > 1 else I64(0)
        low = v.at(low, v.b.mul(part, v.scaled(words, 4)))
        panel = v.at(up, v.b.mul(p, v.scaled(words, STRIDE)))

        def more() -> list[Any]:
            wide = _wide(count)
            for first in range(0, STRIDE, 64 * wide):
                at = v.at(to, first)
                sums = [
                    v.load(v.at(at, v.at(v.scaled(c_step, i), 64 * j)))
                    for i in range(count)
                    for j in range(wide)
                ]
                columns = v.at(panel, first)
                sums = _products(v, around(kind), sums, count, low, step, words, columns, I64(STRIDE))
                _stored(v, sums, count, at, c_step)
            return []

        there = v.b.and_(v.b.icmp_signed(">", words, I64(0)), v.b.icmp_signed(">=", part, missing))
        return v.where(there, [], more)

    if rows == 1:
        return added(1, I64(0))
    v.where(same, [], partial(added, rows, I64(0)))
    return v.where(v.b.not_(same), [], lambda: v.loop(I64(rows), [], lambda r, _: added(1, r)))


def _narrow(
    wide: int, v: Vectors, n: Any, a: Any, step: Any, words: Any, panel: Any, stride: Any, c: Any, c_step: Any
) -> None:
    """n, a, step, words, panel, stride, c, c_step: c = a · a panel of 16, 32 or 64 columns, float32."""

    def product(rows: int) -> None:
        at_once = _wide(rows, wide)
        for first in range(0, 64 * wide, 64 * at_once):
            zeros, at = _zeros(FLOAT, rows * at_once), v.at(panel, first)
            sums = _products(v, FLOAT, zeros, rows, a, step, words, at, stride)
            _stored(v, sums, rows, v.at(c, first), c_step)

    v.switch(n, {rows: partial(product, rows) for rows in range(1, ROWS + 1)})


def _lowered(
    columns: int,
    kind: int,
    v: Vectors,
    n: Any,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    c: Any,
    c_step: Any,
) -> None:
    """n, a, step, words, panel, c, c_step: c = a · a panel of so many columns."""
    if not able(kind):
        v.trap()
        return

    def product(rows: int) -> None:
        for begin in range(0, rows, SUMS // CHAINS):
            some = min(rows - begin, SUMS // CHAINS)
            at = v.at(a, v.scaled(step, begin))
            for r, x in enumerate(_in_chains(v, kind, some, at, step, words, panel, columns)):
                v.store(x, v.at(c, v.scaled(c_step, begin + r)))

    v.switch(n, {rows: partial(product, rows) for rows in range(1, ROWS + 1)})


_tile_floats, _tile_bfloats, _tile_bytes, _tile_shorts = (
    vectorised(14)(partial(_tile, kind)) for kind in (FLOAT, BFLOAT, INT8, INT16)
)
_narrow1, _narrow2, _narrow4 = (vectorised(8)(partial(_narrow, wide)) for wide in (1, 2, VECTORS))
_lowered2, _lowered4, _lowered8 = (
    [vectorised(7)(partial(_lowered, columns, kind)) for kind in (FLOAT, BFLOAT)] for columns in (2, 4, 8)
)
_lowered2_floats, _lowered2_bfloats = _lowered2
_lowered4_floats, _lowered4_bfloats = _lowered4
_lowered8_floats, _lowered8_bfloats = _lowered8


@whole
def passes_of(n: Any) -> Any:
    """Return how often a tile of n rows passes over the words of its panel."""
    return VECTORS // (VECTORS if SUMS // n >= VECTORS else 2 if SUMS // n >= 2 else 1)


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
    changes: Any,
    p: Any,
    part: Any,
    fetches: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c float32 [n, 64] = a [n] · panel + bias + each row's change; n is at most ROWS.

    scales, shared: of integers, each row's scale, and the panel's 64 scales and offsets. changes: 0, or a
    record of CHANGED_FIELDS words for each row: the address of its low-rank numbers, words of one part of
    them (0: no change), its panels up, and the number of first parts that do not change. The addresses are as
    if those were there, too. Of these the tile takes part `part` and panel p. fetches: the address of
    FETCH_FIELDS words, twice an address and what is added to it at each word: a line is fetched from there.
    """
    if kind == BFLOAT:
        _tile_bfloats(n, a, step, words, panel, bias, 0, 0, changes, p, part, fetches, c, c_step)
    elif kind == FLOAT:
        _tile_floats(n, a, step, words, panel, bias, 0, 0, changes, p, part, fetches, c, c_step)
    elif kind == INT8:
        _tile_bytes(n, a, step, words, panel, bias, scales, shared, changes, p, part, fetches, c, c_step)
    else:
        _tile_shorts(n, a, step, words, panel, bias, scales, shared, changes, p, part, fetches, c, c_step)


@whole
def narrow(
    columns: Any, n: Any, a: Any, step: Any, words: Any, panel: Any, stride: Any, c: Any, c_step: Any
) -> None:
    """c [n, columns] = a [n] · a panel whose words are `stride` bytes apart, all float32; columns: a multiple
    of 16."""
    j = 0
    while j < columns:
        at, to = panel + 4 * j, c + 4 * j
        if columns - j >= 64:
            _narrow4(n, a, step, words, at, stride, to, c_step)
            j += 64
        elif columns - j >= 32:
            _narrow2(n, a, step, words, at, stride, to, c_step)
            j += 32
        else:
            _narrow1(n, a, step, words, at, stride, to, c_step)
            j += 16


@whole
def lower(
    kind: Any,
    columns: Any,
    first: Any,
    last: Any,
    n: Any,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c float32 [n, columns] = a [n] · a panel of 2, 4 or 8 columns, or of groups of eight, of which those
    of first..last-1 are computed, each to its place; n is at most ROWS.

    A vector of 16 words holds 16 / columns words of each column, so it is full at any rank.
    """
    if columns == 2:
        if kind == FLOAT:
            _lowered2_floats(n, a, step, words, panel, c, c_step)
        else:
            _lowered2_bfloats(n, a, step, words, panel, c, c_step)
    elif columns == 4:
        if kind == FLOAT:
            _lowered4_floats(n, a, step, words, panel, c, c_step)
        else:
            _lowered4_bfloats(n, a, step, words, panel, c, c_step)
    else:
        for g in range(first, last):
            at, to = panel + 32 * words * g, c + 32 * g
            if kind == FLOAT:
                _lowered8_floats(n, a, step, words, at, to, c_step)
            else:
                _lowered8_bfloats(n, a, step, words, at, to, c_step)


call_tile, call_narrow, call_lower = calling(15), calling(9), calling(11)
"""`tile`, `narrow` and `lower` by their addresses, which a room's record holds."""
