"""Attention of one text, head by head, in float32."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.encoder import FLOAT
from hmi_kernels.encoder.room import ATTEND, NARROW_CODE, TILE_CODE, ZEROS
from hmi_kernels.encoder.rowwise import softmax
from hmi_kernels.encoder.tile import ROWS, STRIDE, call_narrow, call_tile
from hmi_kernels.jit import get, load_u32, store_u32, whole


@whole
def turned(keys: Any, step: Any, count: Any, size: Any, panels: Any) -> None:
    """One head's keys [count, size], rows `step` bytes apart, as panels of 64 keys; keys beyond the last are
    0."""
    for p in range((count + 63) // 64):
        for j in range(64):
            i = 64 * p + j
            for k in range(size):
                value = load_u32(keys + i * step + 4 * k) if i < count else np.uint32(0)
                store_u32(panels + (p * size + k) * STRIDE + 4 * j, value)


@whole
def attend(
    layer_room: Any,
    queries: Any,
    count: Any,
    query_step: Any,
    keys: Any,
    values: Any,
    step: Any,
    length: Any,
    heads: Any,
    size: Any,
    factor: Any,
    relative: Any,
    relative_step: Any,
    plus: Any,
    out: Any,
    out_step: Any,
) -> None:
    """out [count, heads · size] = softmax(factor · queries · keysᵀ + relative + plus) · values of one text.

    The queries are the text's first `count` rows, keys and values its `length` rows, all float32. Head h is
    at columns h · size. factor: the bits of a float32. relative: what head 0 adds at distance 0 (key less
    query), with the distances around it and the next head `relative_step` bytes on; a step of 0 for none.
    plus: what is added to each key, or 0.
    """
    room, zeros = get(layer_room, ATTEND), get(layer_room, ZEROS)
    code, narrow_code = get(layer_room, TILE_CODE), get(layer_room, NARROW_CODE)
    panels, row = (length + 63) // 64, (length + 63) // 64 * STRIDE
    scores, by_key = room + panels * size * STRIDE, plus if plus != 0 else zeros
    for h in range(heads):
        at = 4 * size * h
        turned(keys + at, step, length, size, room)
        for i in range(0, count, ROWS):
            n, q = min(ROWS, count - i), queries + i * query_step + at
            for p in range(panels):
                panel, to = room + p * size * STRIDE, scores + p * STRIDE
                call_tile(code, FLOAT, n, q, query_step, size, panel, zeros, 0, 0, 0, 0, 0, to, row)
            for r in range(n):
                distance = relative + h * relative_step - 4 * (i + r) if relative_step != 0 else zeros
                softmax(scores + r * row, length, factor, distance, by_key)
            to = out + i * out_step + at
            call_narrow(narrow_code, size, n, scores, row, length, values + at, step, to, out_step)
