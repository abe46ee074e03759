"""Rows times a whole matrix, tile by tile, with what the rows' modules add."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import FLOAT
from hmi_kernels.encoder.ahead import fetched
from hmi_kernels.encoder.room import CHANGES, SCALES, STEP, TILE, TILE_CODE, A
from hmi_kernels.encoder.rowwise import gelu_bfloats, gelu_floats
from hmi_kernels.encoder.tile import CHANGED_FIELDS, ROWS, STRIDE, call_tile
from hmi_kernels.jit import get, whole

PANELS, BIAS, SHARED, WORDS = range(4)
MATRIX_FIELDS = 4
"""A matrix: addresses of its panels, of its bias (float32) and, in int8, of 64 scales (float32) and 64
offsets (int32) for each panel; words of a row."""


@whole
def even(rows: Any) -> Any:
    """Return the number of rows of the next tile, chosen so that the tiles of these rows are about equal."""
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
    changes: Any,
    part: Any,
    c: Any,
    c_step: Any,
) -> None:
    """n rows times panel p of a matrix; r: the first one's place in the block."""
    words = get(matrix, WORDS)
    panel, bias = get(matrix, PANELS) + p * words * STRIDE, get(matrix, BIAS) + p * STRIDE
    scales, shared = get(room, SCALES) + 4 * r, get(matrix, SHARED) + p * 2 * STRIDE
    mine = changes + 8 * CHANGED_FIELDS * r if changes != 0 else 0
    code, ahead = get(room, TILE_CODE), fetched(room, words, r // n)
    ahead = a if ahead == 0 else ahead  # whose lines are there
    call_tile(code, kind, n, a, step, words, panel, bias, scales, shared, mine, p, part, ahead, c, c_step)


@whole
def multiply(
    room: Any, kind: Any, matrix: Any, rows: Any, first: Any, last: Any, part: Any, c: Any, c_step: Any
) -> None:
    """c float32 [rows, 64 (last - first)] = the operand · panels first..last-1 + bias + the rows' changes.

    part: panels that read the same low-rank words; the next part reads the next words.
    """
    a, step, changes = get(room, A), get(room, STEP), get(room, CHANGES)
    for p in range(first, last):
        r = 0
        while r < rows:
            n, to = even(rows - r), c + r * c_step + (p - first) * STRIDE
            tile(room, kind, matrix, p, n, a + r * step, step, r, changes, p // part, to, c_step)
            r += n


@whole
def multiply_gelu(room: Any, kind: Any, matrix: Any, rows: Any, panels: Any, out: Any, out_step: Any) -> None:
    """out [rows, 64 panels] = GELU(the operand · matrix + bias + the rows' changes).

    out is bfloat16, but float32 if the kind is.
    """
    a, step, scratch, changes = get(room, A), get(room, STEP), get(room, TILE), get(room, CHANGES)
    for p in range(panels):
        r = 0
        while r < rows:
            n = even(rows - r)
            tile(room, kind, matrix, p, n, a + r * step, step, r, changes, 0, scratch, STRIDE)
            for i in range(n):
                if kind == FLOAT:
                    gelu_floats(scratch + i * STRIDE, out + (r + i) * out_step + p * STRIDE, 4)
                else:
                    gelu_bfloats(scratch + i * STRIDE, out + (r + i) * out_step + p * STRIDE // 2, 4)
            r += n
