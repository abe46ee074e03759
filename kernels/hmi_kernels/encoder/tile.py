"""The innermost product: up to six rows times a panel of 64 columns, in registers.

All kinds of numbers share one form. A row is a sequence of 32-bit words, each of 1 float, 2 bfloats or 4
bytes; a panel has for each word 64 columns of the same shape. One instruction multiplies a word, spread over
16 lanes, with 16 columns and adds the products of each lane to the lane's sum. So a row's result is the same
bits whatever rows stand beside it.

A second product, a tenant's low-rank change, is added to the sums before they are stored. Each row of a tile
may have a change of its own, so tiles do not end where a tenant's rows end.
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
CHAINS = 4 if has("avx512f") else 1
"""Sums of one row with one group of columns, on the way down: 6 x 4 fit the registers of AVX-512."""
CHANGED_FIELDS = 3
"""Words of a row's record of its change; see `tile`."""
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
    v: Vectors,
    kind: int,
    sums: list[Any],
    rows: int,
    a: Any,
    step: Any,
    words: Any,
    panel: Any,
    stride: Any,
    ahead: Any = None,
) -> list[Any]:
    """The sums [rows x vectors], each plus a row's products with one vector of a panel's columns.

    Row r begins `step` bytes after row r - 1, a panel's word `stride` bytes after the one before. ahead:
    an address, from which one line is fetched at each word, and the panel behind this one with them.
    """
    wide = len(sums) // rows

    def body(i: Any, carried: list[Any]) -> list[Any]:
        at, word_at = v.at(panel, v.b.mul(i, stride)), v.at(a, v.scaled(i, 4))
        columns = [v.load(v.at(at, 64 * j), WORDS) for j in range(wide)]
        if ahead is not None:
            v.prefetch(v.at(ahead, v.scaled(i, 64)))
            # A row alone waits for memory at every word, and more requests only delay it.
            for j in range(wide if rows > 1 else 0):
                v.prefetch(v.at(at, v.at(v.b.mul(words, stride), 64 * j)))
        after = []
        for r in range(rows):
            word = v.spread(v.load(v.at(word_at, v.scaled(step, r)), I32))
            after += [_dot(v, kind, carried[wide * r + j], word, columns[j]) for j in range(wide)]
        return after

    return v.loop(words, sums, body)


def _in_chains(v: Vectors, kind: int, rows: int, a: Any, step: Any, pairs: Any, panel: Any) -> list[Any]:
    """The sums of each row with eight columns, twice in 16 lanes: those of even and of odd words.

    A row has one sum here, and each product waits for the one before: CHAINS sums shorten the wait.
    """

    def body(i: Any, carried: list[Any]) -> list[Any]:
        after = []
        for chain in range(CHAINS):
            pair = v.b.add(v.scaled(i, CHAINS), I64(chain))
            columns, pair_at = v.load(v.at(panel, v.scaled(pair, 64)), WORDS), v.at(a, v.scaled(pair, 8))
            for r in range(rows):
                both = v.b.bitcast(v.spread(v.load(v.at(pair_at, v.scaled(step, r)), I64), LANES // 2), WORDS)
                after.append(_dot(v, kind, carried[rows * chain + r], both, columns))
        return after

    sums = v.loop(v.b.sdiv(pairs, I64(CHAINS)), _zeros(kind, CHAINS * rows), body)
    while len(sums) > rows:
        half = len(sums) // 2
        sums = [v.b.fadd(x, y) for x, y in zip(sums[:half], sums[half:], strict=True)]
    return sums


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
    """n, a, step, words, panel, bias, scales, shared, changes, p, part, ahead, c, c_step: see `tile`."""
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
    ahead: Any,
    c: Any,
    c_step: Any,
) -> None:
    stride = I64(STRIDE)
    for first in range(0, STRIDE, 64 * WIDE):
        at = v.at(panel, first)
        sums = _products(v, kind, _zeros(kind, rows * WIDE), rows, a, step, words, at, stride, ahead)
        for r in range(rows):
            for j in range(WIDE):
                x, column = sums[WIDE * r + j], first + 64 * j
                if kind == INT8:
                    by_column = v.load(v.at(shared, column))
                    offset = v.load(v.at(shared, STRIDE + column), WORDS)
                    x = _rescaled(v, x, by_column, offset, v.spread(v.load(v.at(scales, 4 * r), F32)))
                sums[WIDE * r + j] = v.b.fadd(x, v.load(v.at(bias, column)))
        changed = partial(_changed, v, kind, sums, rows, changes, p, part, first)
        any_change = v.b.icmp_signed("!=", changes, I64(0))
        _stored(v, v.where(any_change, sums, changed), rows, v.at(c, first), c_step)


def _changed(
    v: Vectors, kind: int, sums: list[Any], rows: int, changes: Any, p: Any, part: Any, first: int
) -> list[Any]:
    """The sums, each plus its row's own low-rank product: together if all rows have one module."""
    records = [
        [v.load(v.at(changes, 8 * (CHANGED_FIELDS * r + i)), I64) for i in range(3)] for r in range(rows)
    ]
    low, _, up = records[0]
    same = ir.IntType(1)(1)
    for _, _, other in records[1:]:
        same = v.b.and_(same, v.b.icmp_signed("==", other, up))
    step = v.b.sub(records[1][0], low) if rows > 1 else I64(0)

    def added(sums: list[Any], count: int, record: list[Any]) -> list[Any]:
        low, words, up = record
        low = v.at(low, v.b.mul(part, v.scaled(words, 4)))
        panel = v.at(up, v.at(v.b.mul(p, v.scaled(words, STRIDE)), first))
        of_module = FLOAT if kind == FLOAT else BFLOAT
        more = partial(_products, v, of_module, sums, count, low, step, words, panel, I64(STRIDE))
        return v.where(v.b.icmp_signed(">", words, I64(0)), sums, more)

    def each() -> list[Any]:
        by_row = (added(together[WIDE * r : WIDE * r + WIDE], 1, record) for r, record in enumerate(records))
        return [x for row in by_row for x in row]

    together = v.where(same, sums, partial(added, sums, rows, records[0]))
    return together if rows == 1 else v.where(v.b.not_(same), together, each)


def _narrow(
    wide: int, v: Vectors, n: Any, a: Any, step: Any, words: Any, panel: Any, stride: Any, *c: Any
) -> None:
    """n, a, step, words, panel, stride, c, c_step: c = a · a panel of 16, 32 or 64 columns, float32."""

    def product(rows: int) -> None:
        sums = _products(v, FLOAT, _zeros(FLOAT, rows * wide), rows, a, step, words, panel, stride)
        _stored(v, sums, rows, *c)

    v.switch(n, {rows: partial(product, rows) for rows in range(1, ROWS + 1)})


def _lowered(
    kind: int, v: Vectors, n: Any, a: Any, step: Any, pairs: Any, panel: Any, c: Any, c_step: Any
) -> None:
    """n, a, step, pairs, panel, c, c_step: c = a · a panel of eight columns."""
    if not able(kind):
        v.trap()
        return

    def product(rows: int) -> None:
        for r, x in enumerate(_in_chains(v, kind, rows, a, step, pairs, panel)):
            even, odd = (v.picked(x, range(i, LANES, 2)) for i in range(2))
            v.store(v.b.fadd(even, odd), v.at(c, v.scaled(c_step, r)))

    v.switch(n, {rows: partial(product, rows) for rows in range(1, ROWS + 1)})


_tile_floats, _tile_bfloats, _tile_bytes = (
    vectorised(14)(partial(_tile, kind)) for kind in (FLOAT, BFLOAT, INT8)
)
_narrow1, _narrow2, _narrow4 = (vectorised(8)(partial(_narrow, wide)) for wide in (1, 2, VECTORS))
_lowered_floats, _lowered_bfloats = (vectorised(7)(partial(_lowered, kind)) for kind in (FLOAT, BFLOAT))


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
    ahead: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c float32 [n, 64] = a [n] · panel + bias + each row's change; n is at most ROWS.

    scales, shared: of int8, each row's scale, and the panel's 64 scales and offsets. changes: 0, or a record
    of CHANGED_FIELDS words for each row: the address of its low-rank numbers, words of one part of them (0:
    no change), its panels up. Of these the tile takes part `part` and panel p. ahead: an address, from
    which a line is fetched at each word.
    """
    if kind == BFLOAT:
        _tile_bfloats(n, a, step, words, panel, bias, 0, 0, changes, p, part, ahead, c, c_step)
    elif kind == FLOAT:
        _tile_floats(n, a, step, words, panel, bias, 0, 0, changes, p, part, ahead, c, c_step)
    else:
        _tile_bytes(n, a, step, words, panel, bias, scales, shared, changes, p, part, ahead, c, c_step)


@whole
def narrow(
    columns: Any, n: Any, a: Any, step: Any, words: Any, panel: Any, stride: Any, c: Any, c_step: Any
) -> None:
    """c [n, columns] = a [n] · a panel whose words are `stride` bytes apart, all float32; columns: a multiple
    of 16."""
    j = 0
    while j < columns:
        at, to = panel + 4 * j, c + 4 * j
        if WIDE == VECTORS and columns - j >= 64:
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
    kind: Any, first: Any, last: Any, n: Any, a: Any, step: Any, words: Any, panel: Any, c: Any, c_step: Any
) -> None:
    """c float32 [n, 8 last] = a [n] · groups first..last-1 of a panel of groups of eight columns, each to its
    place; n is at most ROWS.

    A group has, for each pair of words, eight columns of the same shape. So a vector of 16 words holds eight
    columns, and is full at a rank of eight. A panel of 16 columns would be half empty.
    """
    for g in range(first, last):
        at, to = panel + 32 * words * g, c + 32 * g
        if kind == FLOAT:
            _lowered_floats(n, a, step, words // 2, at, to, c_step)
        else:
            _lowered_bfloats(n, a, step, words // 2, at, to, c_step)


call_tile, call_narrow, call_lower = calling(15), calling(9), calling(10)
"""`tile`, `narrow` and `lower` by their addresses, which a room's record holds."""
