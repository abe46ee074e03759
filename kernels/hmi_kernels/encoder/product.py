"""Rows times a whole matrix, tile by tile. Texts with modules of their own get their change in the tile."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import FLOAT
from hmi_kernels.encoder.room import SCALES, SEGMENTS, STEP, TILE, TILE_CODE, A
from hmi_kernels.encoder.rowwise import gelu_bfloats, gelu_floats
from hmi_kernels.encoder.tile import ROWS, STRIDE, call_tile
from hmi_kernels.jit import get, whole

PANELS, BIAS, SHARED, WORDS = range(4)
MATRIX_FIELDS = 4
"""A matrix: addresses of its panels, of its bias (float32) and, in int8, of 64 scales (float32) and 64
offsets (int32) for each panel; words of a row."""
BEGIN, END, LOW, LOW_STEP, LOW_WORDS, UP = range(6)
SEGMENT_FIELDS = 6
"""A segment of rows with one module: its rows; low-rank numbers of the first, bytes from row to row, words of
one part; panels up."""


@whole
def even(rows: Any) -> Any:
    """Rows of the next tile, so that the tiles of these rows are about equal."""
    tiles = (rows + ROWS - 1) // ROWS
    return (rows + tiles - 1) // tiles


@whole
def tile(
    room: Any,
    kind: Any,
    matrix: Any,
    p: Any,
    n: Any,
    a: Any,
    step: Any,
    r: Any,
    segment: Any,
    low: Any,
    c: Any,
    c_step: Any,
) -> None:
    """n rows times panel p of a matrix; r: the first one's place in the block."""
    words, low_words, low_step = get(matrix, WORDS), get(segment, LOW_WORDS), get(segment, LOW_STEP)
    panel, bias = get(matrix, PANELS) + p * words * STRIDE, get(matrix, BIAS) + p * STRIDE
    scales, shared = get(room, SCALES) + 4 * r, get(matrix, SHARED) + p * 2 * STRIDE
    up, code = get(segment, UP) + p * low_words * STRIDE, get(room, TILE_CODE)
    call_tile(
        code, kind, n, a, step, words, panel, bias, scales, shared, low, low_step, low_words, up, c, c_step
    )


@whole
def multiply(
    room: Any, kind: Any, matrix: Any, count: Any, first: Any, last: Any, part: Any, c: Any, c_step: Any
) -> None:
    """c float32 [rows, 64 (last - first)] = the operand · panels first..last-1 + bias + the segments'
    changes.

    part: panels that read the same low-rank words; the next part reads the next words.
    """
    a, step = get(room, A), get(room, STEP)
    for p in range(first, last):
        for s in range(count):
            segment = get(room, SEGMENTS) + 8 * SEGMENT_FIELDS * s
            begin, end = get(segment, BEGIN), get(segment, END)
            low = get(segment, LOW) + 4 * get(segment, LOW_WORDS) * (p // part)
            r = begin
            while r < end:
                n = even(end - r)
                to, mine = c + r * c_step + (p - first) * STRIDE, low + (r - begin) * get(segment, LOW_STEP)
                tile(room, kind, matrix, p, n, a + r * step, step, r, segment, mine, to, c_step)
                r += n


@whole
def multiply_gelu(
    room: Any, kind: Any, matrix: Any, count: Any, panels: Any, out: Any, out_step: Any
) -> None:
    """out [rows, 64 panels] = GELU(the operand · matrix + bias + the segments' changes).

    out is bfloat16, but float32 if the kind is.
    """
    a, step, scratch = get(room, A), get(room, STEP), get(room, TILE)
    for p in range(panels):
        for s in range(count):
            segment = get(room, SEGMENTS) + 8 * SEGMENT_FIELDS * s
            begin, end = get(segment, BEGIN), get(segment, END)
            r = begin
            while r < end:
                n = even(end - r)
                mine = get(segment, LOW) + (r - begin) * get(segment, LOW_STEP)
                tile(room, kind, matrix, p, n, a + r * step, step, r, segment, mine, scratch, STRIDE)
                for i in range(n):
                    if kind == FLOAT:
                        gelu_floats(scratch + i * STRIDE, out + (r + i) * out_step + p * STRIDE, 4)
                    else:
                        gelu_bfloats(scratch + i * STRIDE, out + (r + i) * out_step + p * STRIDE // 2, 4)
                r += n
