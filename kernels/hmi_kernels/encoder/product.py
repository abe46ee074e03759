"""Rows times a whole matrix, tile by tile, with what the rows' modules add."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import FLOAT, INTEGERS
from hmi_kernels.encoder.ahead import LINE, set_fetches
from hmi_kernels.encoder.room import CHANGES, FETCHES, SCALES, STEP, TILE, TILE_CODE, A
from hmi_kernels.encoder.rowwise import gelu_bfloats, gelu_floats
from hmi_kernels.encoder.tile import CHANGED_FIELDS, ROWS, STRIDE, around, call_tile
from hmi_kernels.jit import get, prefetch, whole

PANELS, BIAS, SHARED, WORDS = range(4)
MATRIX_FIELDS = 4
"""A matrix: addresses of its panels, of its bias (float32) and, of integers, of 64 scales (float32) and 64
offsets (int32) for each panel; words of a row."""


@whole
def tiles_of(rows: Any) -> Any:
    """Return the number of tiles of so many rows."""
    return (rows + ROWS - 1) // ROWS


@whole
def share(rows: Any, tiles: Any) -> Any:
    """Return the number of rows of the next of so many tiles."""
    return (rows + tiles - 1) // tiles


@whole
def even(rows: Any) -> Any:
    """Return the number of rows of the next tile, chosen so that the tiles of these rows are about equal."""
    return share(rows, tiles_of(rows))


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
    t: Any,
    tiles: Any,
    changes: Any,
    part: Any,
    c: Any,
    c_step: Any,
) -> None:
    """Tile t of the tiles of panel p of a matrix, n rows; r: the first one's place in the block."""
    words = get(matrix, WORDS)
    panel, bias = get(matrix, PANELS) + p * words * STRIDE, get(matrix, BIAS) + p * STRIDE
    scales, shared = get(room, SCALES) + 4 * r, get(matrix, SHARED) + p * 2 * STRIDE
    mine = changes + 8 * CHANGED_FIELDS * r if changes != 0 else 0
    if t == 0:
        for i in range(0, STRIDE, LINE):
            prefetch(bias + STRIDE + i)
        for i in range(0, 2 * STRIDE if kind in INTEGERS else 0, LINE):
            prefetch(shared + 2 * STRIDE + i)
    code, fetches = get(room, TILE_CODE), room + 8 * FETCHES
    set_fetches(room, panel, words, n, t, tiles)
    call_tile(code, kind, n, a, step, words, panel, bias, scales, shared, mine, p, part, fetches, c, c_step)


@whole
def multiply(
    room: Any, kind: Any, matrix: Any, rows: Any, first: Any, last: Any, part: Any, c: Any, c_step: Any
) -> None:
    """c float32 [rows, 64 (last - first)] = the operand · panels first..last-1 + bias + the rows' changes.

    part: panels that read the same low-rank words; the next part reads the next words.
    """
    a, step, changes, tiles = get(room, A), get(room, STEP), get(room, CHANGES), tiles_of(rows)
    for p in range(first, last):
        r, of_part = 0, p // part
        for t in range(tiles):
            n, to = share(rows - r, tiles - t), c + r * c_step + (p - first) * STRIDE
            tile(room, kind, matrix, p, n, a + r * step, step, r, t, tiles, changes, of_part, to, c_step)
            r += n


@whole
def multiply_gelu(room: Any, kind: Any, matrix: Any, rows: Any, panels: Any, out: Any, out_step: Any) -> None:
    """out [rows, 64 panels] = GELU(the operand · matrix + bias + the rows' changes).

    out is float32 or bfloat16; see `around`.
    """
    a, step, scratch, changes = get(room, A), get(room, STEP), get(room, TILE), get(room, CHANGES)
    tiles = tiles_of(rows)
    for p in range(panels):
        r = 0
        for t in range(tiles):
            n = share(rows - r, tiles - t)
            tile(room, kind, matrix, p, n, a + r * step, step, r, t, tiles, changes, 0, scratch, STRIDE)
            for i in range(n):
                if around(kind) == FLOAT:
                    gelu_floats(scratch + i * STRIDE, out + (r + i) * out_step + p * STRIDE, 4)
                else:
                    gelu_bfloats(scratch + i * STRIDE, out + (r + i) * out_step + p * STRIDE // 2, 4)
            r += n
