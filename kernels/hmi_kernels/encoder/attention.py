"""Attention of one text, head by head, in float32."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder.product import even
from hmi_kernels.encoder.room import ATTEND, NARROW_CODE, ZEROS
from hmi_kernels.encoder.rowwise import softmax
from hmi_kernels.encoder.tile import STRIDE, call_narrow
from hmi_kernels.encoder.vectors import I64, LANES, Vectors, vectorised
from hmi_kernels.jit import get, whole


@vectorised(5)
def _turned(v: Vectors, source: Any, step: Any, rows: Any, target: Any, stride: Any) -> None:
    """target [16, 16] = the transpose of source [rows, 16], float32; its columns beyond `rows` repeat the
    last."""
    last = v.b.sub(rows, I64(1))
    lines = []
    for r in range(LANES):
        row = v.b.select(v.b.icmp_signed("<", I64(r), last), I64(r), last)
        lines.append(v.load(v.at(source, v.b.mul(row, step))))
    half = LANES // 2
    while half:  # each turn exchanges the blocks beside the diagonal
        for i in range(LANES):
            if not i & half:
                lines[i], lines[i + half] = v.exchanged(lines[i], lines[i + half], half)
        half //= 2
    for i, line in enumerate(lines):
        v.store(line, v.at(target, v.scaled(stride, i)))


@whole
def turned(rows: Any, step: Any, count: Any, size: Any, out: Any, stride: Any) -> None:
    """out [size, count up to a multiple of 16] = the transpose of [count, size], float32.

    size is a multiple of 16; rows lie `step` bytes apart, those of out `stride`. The last row fills up.
    """
    for i in range(0, count, LANES):
        for k in range(0, size, LANES):
            _turned(rows + i * step + 4 * k, step, count - i, out + k * stride + 4 * i, stride)


@whole
def attend(
    room: Any,
    qkv: Any,
    step: Any,
    length: Any,
    heads: Any,
    size: Any,
    factor: Any,
    relative: Any,
    relative_step: Any,
    plus: Any,
    out: Any,
) -> None:
    """out [length, heads · size] = softmax(factor · queries · keysᵀ + relative + plus) · values of one text.

    qkv: its rows' queries, keys and values, one after another, rows `step` bytes apart, all float32. Head h
    is at columns h · size. factor: the bits of a float32. relative: what head 0 adds at distance 0 (key less
    query), with the distances around it and the next head `relative_step` bytes on; a step of 0 for none.
    plus: what is added to each key, or 0.
    """
    turned_keys, zeros, code = get(room, ATTEND), get(room, ZEROS), get(room, NARROW_CODE)
    panels, row, width = (length + 63) // 64, (length + 63) // 64 * STRIDE, 4 * size * heads
    scores, by_key = turned_keys + panels * size * STRIDE, plus if plus != 0 else zeros
    for h in range(heads):
        queries = qkv + 4 * size * h
        for p in range(panels):
            keys = queries + width + 64 * p * step
            turned(keys, step, min(64, length - 64 * p), size, turned_keys + p * size * STRIDE, STRIDE)
        i = 0
        while i < length:
            n = even(length - i)
            for p in range(panels):
                columns, panel = min(64, (length - 64 * p + 15) // 16 * 16), turned_keys + p * size * STRIDE
                to = scores + p * STRIDE
                call_narrow(code, columns, n, queries + i * step, step, size, panel, STRIDE, to, row)
            for r in range(n):
                distance = relative + h * relative_step - 4 * (i + r) if relative_step != 0 else zeros
                softmax(scores + r * row, length, factor, distance, by_key)
            values, to = queries + 2 * width, out + i * width + 4 * size * h
            call_narrow(code, size, n, scores, row, length, values, step, to, width)
            i += n
