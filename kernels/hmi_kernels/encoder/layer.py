"""A whole encoder layer over the packed rows of many texts.

Texts pass in blocks of some hundred rows. Each block passes through the whole layer, so that results between
the products stay in the second-level cache.
"""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import room as rooms
from hmi_kernels.encoder.ahead import fetch
from hmi_kernels.encoder.attention import attend
from hmi_kernels.encoder.change import (
    AFTER_ATTN,
    AFTER_FFN,
    ATTN,
    DOWN,
    FFN,
    NORM1,
    NORM2,
    ON_FFN,
    ON_IN,
    ON_OUT,
    ON_QKV,
    changed,
    changed_after_norm,
    normalised,
    set_changes,
    set_runs,
)
from hmi_kernels.encoder.first import GROUP, attend_turned, turn_queries, valued
from hmi_kernels.encoder.product import MATRIX_FIELDS, multiply, multiply_gelu
from hmi_kernels.encoder.room import operand, wide_operand
from hmi_kernels.encoder.rowwise import copied
from hmi_kernels.encoder.tile import around, number_bytes
from hmi_kernels.jit import get, load_i64, put, whole

KIND, DIM, INNER, HEADS, EPS, FACTOR, GAIN1, BIAS1, GAIN2, BIAS2, RELATIVE, RELATIVE_STEP = range(12)
QKV, OUT, IN_FFN, OUT_FFN, KEYS, VALUES = (12 + MATRIX_FIELDS * i for i in range(6))
LAYER_FIELDS = 12 + 6 * MATRIX_FIELDS
"""A layer: its kind of numbers, its sizes (INNER: of the FFN); EPS and FACTOR, the bits of float32 numbers;
addresses of gains and biases; relative attention as `attend` takes it, steps of 0 for none; four matrices.
Layers whose first rows may be wanted alone also have KEYS, each head's part of K transposed, one after
another; and, if they are integers, VALUES: V in what is `around` them, with the addresses of a matrix that
begins with Q and K."""
BLOCK = 128
"""Rows of a block, unless one text has more."""


@whole
def block_end(offsets: Any, begin: Any, texts: Any) -> Any:
    """The end of the block of texts that begins here."""
    end, start = begin + 1, load_i64(offsets + 8 * begin)
    while end < texts and load_i64(offsets + 8 * end + 8) - start <= BLOCK:
        end += 1
    return end


@whole
def rest_panels(layer: Any) -> Any:
    """Return the number of panels of a layer's products but the last."""
    return (4 * get(layer, DIM) + get(layer, INNER)) // 64


@whole
def product(
    layer: Any,
    room: Any,
    matrix: Any,
    slot: Any,
    runs: Any,
    count: Any,
    n: Any,
    first: Any,
    last: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c = n rows of the operand · panels first..last-1 of a matrix, with the runs' changes at a slot.

    A part of the matrix, and of the changes' low-rank rows, is as many columns as the layer has dimensions.
    """
    kind, part = get(layer, KIND), get(layer, DIM) // 64
    set_changes(around(kind), room, runs, count, slot, first // part, last // part)
    multiply(room, kind, layer + 8 * matrix, n, first, last, part, c, c_step)


@whole
def attend_all(layer: Any, offsets: Any, begin: Any, end: Any, plus: Any, room: Any) -> None:
    """CONTEXT = attention of each text of the block over its queries, keys and values in QKV."""
    d, heads, factor, step = get(layer, DIM), get(layer, HEADS), get(layer, FACTOR), 12 * get(layer, DIM)
    start, context = load_i64(offsets + 8 * begin), get(room, rooms.CONTEXT)
    relative, relative_step = get(layer, RELATIVE), get(layer, RELATIVE_STEP)
    for t in range(begin, end):
        row = load_i64(offsets + 8 * t) - start
        length = load_i64(offsets + 8 * t + 8) - start - row
        at, to = get(room, rooms.QKV) + row * step, context + 4 * d * row
        by_key, size = plus + 4 * (start + row) if plus != 0 else 0, d // heads
        attend(room, at, step, length, heads, size, factor, relative, relative_step, by_key, to)


@whole
def finish(layer: Any, room: Any, x: Any, n: Any, runs: Any, count: Any, out: Any) -> None:
    """Compute everything after attention, from CONTEXT and x float32 [n, dim] to out."""
    kind, d, inner, eps = get(layer, KIND), get(layer, DIM), get(layer, INNER), get(layer, EPS)
    y, middle, part = get(room, rooms.CONTEXT), get(room, rooms.MIDDLE), get(layer, DIM) // 64
    near = around(kind)
    operand(kind, room, y, n, d)
    product(layer, room, OUT, ON_OUT, runs, count, n, 0, part, middle, 4 * d)
    changed(near, room, runs, count, ATTN, x, d, middle)
    changed(near, room, runs, count, AFTER_ATTN, middle, d, middle)
    gain, bias = get(layer, GAIN1), get(layer, BIAS1)
    normalised(room, runs, count, NORM1, middle, x, gain, bias, eps, d, middle)
    operand(kind, room, middle, n, d)
    set_changes(near, room, runs, count, ON_IN, 0, 1)
    wide, wide_step = get(room, rooms.WIDE), inner * number_bytes(kind)
    multiply_gelu(room, kind, layer + 8 * IN_FFN, n, inner // 64, wide, wide_step)
    wide_operand(kind, room, n, inner)
    fetch(room, get(room, rooms.NEXT_RUNS), get(room, rooms.NEXT_COUNT), True, part)
    product(layer, room, OUT_FFN, ON_FFN, runs, count, n, 0, part, y, 4 * d)
    changed(near, room, runs, count, FFN, middle, d, y)
    changed(near, room, runs, count, AFTER_FFN, y, d, y)
    gain, bias = get(layer, GAIN2), get(layer, BIAS2)
    changed_after_norm(near, room, runs, count, y, middle, gain, bias, eps, d)
    normalised(room, runs, count, NORM2, y, middle, gain, bias, eps, d, out)


@whole
def block(
    layer: Any, x: Any, offsets: Any, begin: Any, end: Any, count: Any, plus: Any, room: Any, out: Any
) -> None:
    """`run_layer` for the texts begin..end-1, whose runs are set."""
    d, start = get(layer, DIM), load_i64(offsets + 8 * begin)
    n, mine, qkv = load_i64(offsets + 8 * end) - start, x + 4 * d * start, get(room, rooms.QKV)
    runs = get(room, rooms.RUNS)
    operand(get(layer, KIND), room, mine, n, d)
    fetch(room, runs, count, False, rest_panels(layer))
    product(layer, room, QKV, ON_QKV, runs, count, n, 0, 3 * d // 64, qkv, 12 * d)
    attend_all(layer, offsets, begin, end, plus, room)
    finish(layer, room, mine, n, runs, count, out + 4 * d * start)


@whole
def attend_first(
    layer: Any, x: Any, offsets: Any, begin: Any, end: Any, modules: Any, plus: Any, room: Any, at: Any
) -> None:
    """CONTEXT = attention of the first rows of up to GROUP texts, whose queries are QUERIES from row `at`
    on. Its two products do not multiply integers: one rounding for each text and head does not average out as
    those of all rows do."""
    kind, d, heads, n = get(layer, KIND), get(layer, DIM), get(layer, HEADS), end - begin
    q, context, means = 4 * d * at + get(room, rooms.QUERIES), 4 * d * at, get(room, rooms.MEANS)
    near = around(kind)
    turn_queries(near, room, layer + 8 * KEYS, q, n, d, heads, means)
    factor, relative, relative_step = get(layer, FACTOR), get(layer, RELATIVE), get(layer, RELATIVE_STEP)
    for t in range(begin, end):
        row, module = load_i64(offsets + 8 * t), load_i64(modules + 8 * t)
        change = 0 if module == 0 or get(module, ON_QKV + DOWN) == 0 else module + 8 * ON_QKV
        length, mine = load_i64(offsets + 8 * t + 8) - row, 4 * d * (t - begin)
        attend_turned(
            near,
            room,
            change,
            x + 4 * d * row,
            length,
            d,
            q + mine,
            heads,
            factor,
            relative,
            relative_step,
            plus + 4 * row if plus != 0 else 0,
            means + mine,
            4 * d * n,
        )
    runs = get(room, rooms.RUNS)
    count = set_runs(0, begin, end, modules, runs)
    matrix = layer + 8 * (QKV if kind == near else VALUES)
    valued(near, room, matrix, means, n, d, heads, runs, count, context + get(room, rooms.CONTEXT))


@whole
def first_rows(
    layer: Any, x: Any, offsets: Any, begin: Any, end: Any, modules: Any, plus: Any, room: Any, out: Any
) -> None:
    """out [texts, dim] = each text's first row after the layer, for up to BLOCK texts begin..end-1."""
    kind, d, part, queries = get(layer, KIND), get(layer, DIM), get(layer, DIM) // 64, end - begin
    firsts, q, runs = get(room, rooms.FIRSTS), get(room, rooms.QUERIES), get(room, rooms.QUERY_RUNS)
    for t in range(queries):
        copied(x + 4 * d * load_i64(offsets + 8 * (begin + t)), firsts + 4 * d * t, d // 16)
    operand(kind, room, firsts, queries, d)
    count = set_runs(0, begin, end, modules, runs)
    fetch(room, runs, count, False, rest_panels(layer))
    product(layer, room, QKV, ON_QKV, runs, count, queries, 0, part, q, 4 * d)
    for t in range(begin, end, GROUP):
        attend_first(layer, x, offsets, t, min(t + GROUP, end), modules, plus, room, t - begin)
    fetch(room, runs, count, False, rest_panels(layer))
    finish(layer, room, firsts, queries, runs, count, out + 4 * d * begin)


@whole
def run_layer(
    layer: Any,
    x: Any,
    offsets: Any,
    texts: Any,
    modules: Any,
    coming: Any,
    plus: Any,
    first_only: Any,
    room: Any,
    out: Any,
) -> None:
    """x float32 [rows, dim] -> out, the same shape, or [texts, dim] if only each text's first row is wanted.

    offsets int64 [texts + 1]; modules int64 [texts], records of this layer or 0; coming: those of the next
    layer, to be fetched ahead, or 0; plus: float32 [rows + 15] that is added to the scores of each row as a
    key, or 0.
    """
    put(room, rooms.NEXT_COUNT, 0)
    if first_only:
        for begin in range(0, texts, BLOCK):
            first_rows(layer, x, offsets, begin, min(begin + BLOCK, texts), modules, plus, room, out)
        return
    begin, end = 0, block_end(offsets, 0, texts)
    count = set_runs(offsets, begin, end, modules, get(room, rooms.RUNS))
    while begin < texts:
        after, runs = end, get(room, rooms.NEXT_RUNS)
        if end < texts:
            after = block_end(offsets, end, texts)
            put(room, rooms.NEXT_COUNT, set_runs(offsets, end, after, modules, runs))
        elif coming != 0:
            first = block_end(offsets, 0, texts)
            put(room, rooms.NEXT_COUNT, set_runs(offsets, 0, first, coming, runs))
        else:
            put(room, rooms.NEXT_COUNT, 0)
        block(layer, x, offsets, begin, end, count, plus, room, out)
        put(room, rooms.NEXT_RUNS, get(room, rooms.RUNS))
        put(room, rooms.RUNS, runs)
        begin, end, count = end, after, get(room, rooms.NEXT_COUNT)
