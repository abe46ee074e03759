"""A whole layer of a language model over the next rows of many sequences: RMSNorm, attention to the pages,
SwiGLU.

Rows pass in blocks. The keys and values of a block are in their pages before it attends, so a sequence's rows
may lie in several blocks, in their order.
"""

from __future__ import annotations

from typing import Any

from hmi_kernels.decoder import PAGE
from hmi_kernels.decoder.attention import attend_pages
from hmi_kernels.decoder.rowwise import (
    key_kept_bfloats,
    key_kept_floats,
    rms_normed,
    swiglu_bfloats,
    swiglu_floats,
    turned,
)
from hmi_kernels.encoder import FLOAT
from hmi_kernels.encoder import room as rooms
from hmi_kernels.encoder.ahead import AHEAD_FIELDS, fetch
from hmi_kernels.encoder.change import CHANGE_FIELDS, set_changes, set_runs
from hmi_kernels.encoder.product import MATRIX_FIELDS, multiply, share, tile, tiles_of
from hmi_kernels.encoder.room import operand, wide_operand
from hmi_kernels.encoder.rowwise import added, copied, to_bfloats
from hmi_kernels.encoder.tile import ROWS, STRIDE, around, number_bytes
from hmi_kernels.jit import get, load_i64, whole

KIND, DIM, INNER, HEADS, KV_HEADS, HEAD, EPS, FACTOR, GAIN1, GAIN2, Q_GAIN, K_GAIN = range(12)
QUERIES, KEYS_VALUES, OUT, IN_FFN, OUT_FFN = (12 + MATRIX_FIELDS * i for i in range(5))
LAYER_FIELDS = 12 + 5 * MATRIX_FIELDS
"""A layer: its kind of numbers, its sizes (HEAD: of one attention head, INNER: of the FFN); EPS and FACTOR,
the bits of float32 numbers; addresses of gains, those of each head's queries and keys 0 if there are none;
five matrices. IN_FFN has the gate, then the value."""
ON_QUERIES, ON_KEYS_VALUES, ON_OUT, ON_IN, ON_FFN = (AHEAD_FIELDS + CHANGE_FIELDS * i for i in range(5))
MODULE_FIELDS = AHEAD_FIELDS + 5 * CHANGE_FIELDS
"""One layer's part of a module: the changes of its five products."""
BLOCK = 128
"""Rows of a block."""


@whole
def changed_product(
    layer: Any,
    room: Any,
    matrix: Any,
    slot: Any,
    count: Any,
    n: Any,
    panels: Any,
    part: Any,
    c: Any,
    c_step: Any,
) -> None:
    """c = n rows of the operand · a matrix of `panels` panels, with the runs' changes at a slot. part:
    panels of one part of the changes' low-rank rows."""
    kind = get(layer, KIND)
    set_changes(around(kind), room, get(room, rooms.RUNS), count, slot, 0, panels // part)
    multiply(room, kind, layer + 8 * matrix, n, 0, panels, part, c, c_step)


@whole
def norm_heads(x: Any, heads: Any, head: Any, gain: Any, eps: Any) -> None:
    """RMSNorm of each head on its own, in place; gain 0: none."""
    if gain != 0:
        for h in range(heads):
            at = x + 4 * head * h
            rms_normed(at, gain, at, eps, head // 16)


@whole
def keep(layer: Any, row: Any, position: Any, turns: Any, table: Any, base: Any, page_bytes: Any) -> None:
    """Turn a row's queries and keys to its position, and write its keys and values into its page."""
    near, heads, kv_heads = around(get(layer, KIND)), get(layer, HEADS), get(layer, KV_HEADS)
    head, size, eps = get(layer, HEAD), number_bytes(near), get(layer, EPS)
    keys = row + 4 * heads * head
    norm_heads(row, heads, head, get(layer, Q_GAIN), eps)
    norm_heads(keys, kv_heads, head, get(layer, K_GAIN), eps)
    for h in range(heads + kv_heads):
        turned(row + 4 * head * h, turns + 4 * head * position, head // 32)
    page = base + load_i64(table + 8 * (position // PAGE)) * page_bytes
    slot = position % PAGE
    for h in range(kv_heads):
        key, value = keys + 4 * head * h, keys + 4 * head * (kv_heads + h)
        of_head = page + 2 * PAGE * head * size * h
        to = of_head + size * head * (PAGE + slot)
        if near == FLOAT:
            key_kept_floats(key, of_head + size * slot, head // 16)
            copied(value, to, head // 16)
        else:
            key_kept_bfloats(key, of_head + size * slot, head // 16)
            to_bfloats(value, to, head // 16)


@whole
def multiply_swiglu(
    room: Any, kind: Any, matrix: Any, rows: Any, panels: Any, out: Any, out_step: Any
) -> None:
    """out [rows, 64 panels] = silu(the operand · the matrix's first panels) · (its other panels), with the
    rows' changes. out is float32 or bfloat16; see `around`."""
    a, step, changes = get(room, rooms.A), get(room, rooms.STEP), get(room, rooms.CHANGES)
    gate, value = get(room, rooms.TILE), get(room, rooms.TILE) + ROWS * STRIDE
    tiles = tiles_of(rows)
    for p in range(panels):
        r = 0
        for t in range(tiles):
            n = share(rows - r, tiles - t)
            mine = a + r * step
            tile(room, kind, matrix, p, n, mine, step, r, t, tiles, changes, 0, gate, STRIDE)
            tile(room, kind, matrix, panels + p, n, mine, step, r, t, tiles, changes, 1, value, STRIDE)
            for i in range(n):
                to, at = out + (r + i) * out_step, i * STRIDE
                if around(kind) == FLOAT:
                    swiglu_floats(gate + at, value + at, to + p * STRIDE, 4)
                else:
                    swiglu_bfloats(gate + at, value + at, to + p * STRIDE // 2, 4)
            r += n


@whole
def attend_rows(
    layer: Any,
    qkv: Any,
    step: Any,
    n: Any,
    positions: Any,
    tables: Any,
    base: Any,
    page_bytes: Any,
    room: Any,
) -> None:
    """CONTEXT = attention of n rows' queries, `step` bytes apart, to the pages of their sequences."""
    near, heads, kv_heads = around(get(layer, KIND)), get(layer, HEADS), get(layer, KV_HEADS)
    head = get(layer, HEAD)
    factor, scores, zeros = get(layer, FACTOR), get(room, rooms.ATTEND), get(room, rooms.ZEROS)
    for i in range(n):
        table, tokens = load_i64(tables + 8 * i), load_i64(positions + 8 * i) + 1
        q, to = qkv + i * step, get(room, rooms.CONTEXT) + 4 * heads * head * i
        attend_pages(
            near, q, heads, kv_heads, head, factor, table, tokens, base, page_bytes, scores, zeros, to
        )


@whole
def run_block(
    layer: Any,
    x: Any,
    n: Any,
    positions: Any,
    tables: Any,
    modules: Any,
    turns: Any,
    base: Any,
    page_bytes: Any,
    room: Any,
    coming: Any,
    next_n: Any,
) -> None:
    """Run up to BLOCK rows through a layer, in place: x float32 [n, dim].

    positions, tables, modules int64 [n]: a row's place in its sequence, from 0; the address of the int64
    numbers of its sequence's pages; the record of this layer of its module, or 0. turns: float32
    [positions, head], cosines and sines as `turned` takes them. base: page 0 of this layer; a page's bytes
    in all layers. coming: the modules of the next block's next_n rows, to be fetched ahead.
    """
    kind, d, inner, eps = get(layer, KIND), get(layer, DIM), get(layer, INNER), get(layer, EPS)
    heads, kv_heads, head = get(layer, HEADS), get(layer, KV_HEADS), get(layer, HEAD)
    wide, narrow = heads * head, kv_heads * head
    step, qkv, middle = 4 * (wide + 2 * narrow), get(room, rooms.QKV), get(room, rooms.MIDDLE)
    context = get(room, rooms.CONTEXT)
    count = set_runs(0, 0, n, modules, get(room, rooms.RUNS))
    fetch(room, get(room, rooms.RUNS), count, False, (2 * wide + 2 * narrow + 2 * inner) // 64)
    for i in range(n):
        rms_normed(x + 4 * d * i, get(layer, GAIN1), middle + 4 * d * i, eps, d // 16)
    operand(kind, room, middle, n, d)
    changed_product(layer, room, QUERIES, ON_QUERIES, count, n, wide // 64, wide // 64, qkv, step)
    to, panels = qkv + 4 * wide, 2 * narrow // 64
    changed_product(layer, room, KEYS_VALUES, ON_KEYS_VALUES, count, n, panels, panels // 2, to, step)
    for i in range(n):
        table = load_i64(tables + 8 * i)
        keep(layer, qkv + i * step, load_i64(positions + 8 * i), turns, table, base, page_bytes)
    attend_rows(layer, qkv, step, n, positions, tables, base, page_bytes, room)
    operand(kind, room, context, n, wide)
    changed_product(layer, room, OUT, ON_OUT, count, n, d // 64, d // 64, middle, 4 * d)
    for i in range(n):
        added(middle + 4 * d * i, x + 4 * d * i, d // 16)
        rms_normed(x + 4 * d * i, get(layer, GAIN2), middle + 4 * d * i, eps, d // 16)
    operand(kind, room, middle, n, d)
    set_changes(around(kind), room, get(room, rooms.RUNS), count, ON_IN, 0, 2)
    width = inner * number_bytes(kind)
    multiply_swiglu(room, kind, layer + 8 * IN_FFN, n, inner // 64, get(room, rooms.WIDE), width)
    wide_operand(kind, room, n, inner)
    runs = get(room, rooms.NEXT_RUNS)
    fetch(room, runs, set_runs(0, 0, next_n, coming, runs), True, d // 64)
    changed_product(layer, room, OUT_FFN, ON_FFN, count, n, d // 64, d // 64, middle, 4 * d)
    for i in range(n):
        added(middle + 4 * d * i, x + 4 * d * i, d // 16)


@whole
def run_layers(
    layers: Any,
    first: Any,
    last: Any,
    x: Any,
    begin: Any,
    end: Any,
    rows: Any,
    positions: Any,
    tables: Any,
    modules: Any,
    turns: Any,
    base: Any,
    layer_bytes: Any,
    page_bytes: Any,
    room: Any,
    flag: Any,
) -> Any:
    """Run rows begin..end-1 of x float32 [rows, dim] through layers first..last-1, in place.

    layers: the addresses of all layers' records. modules int64 [layers, rows]. base: page 0. flag: the
    address of a number that other threads change. The others: see `run_block`.
    Returns the layer to go on with: before `last`, if the number was not 0 after a layer.
    """
    for index in range(first, last):
        layer, mine = load_i64(layers + 8 * index), modules + 8 * rows * index
        d, at = get(layer, DIM), begin
        while at < end:
            n = min(BLOCK, end - at)
            after, coming = at + n, mine
            if after == end:
                after, coming = begin, mine + 8 * rows
            next_n = min(BLOCK, end - after) if coming == mine or index + 1 < last else 0
            run_block(
                layer,
                x + 4 * d * at,
                n,
                positions + 8 * at,
                tables + 8 * at,
                mine + 8 * at,
                turns,
                base + layer_bytes * index,
                page_bytes,
                room,
                coming + 8 * after,
                next_n,
            )
            at += n
        if load_i64(flag) != 0:
            return index + 1
    return last
