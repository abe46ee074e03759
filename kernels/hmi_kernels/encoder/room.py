"""The memory that one thread computes in, as a record of addresses; `buffers.Buffers` allocates it."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import BFLOAT, FLOAT, INT8, INT16
from hmi_kernels.encoder.rowwise import bfloats_to_bytes, floats_to_bytes, floats_to_shorts, to_bfloats
from hmi_kernels.encoder.tile import FETCH_FIELDS, around, number_bytes
from hmi_kernels.jit import get, put, whole

(
    A,
    STEP,
    READ,
    READ_STEP,
    READ_WORDS,
    BFLOATS,
    NUMBERS,
    SCALES,
    QKV,
    QUERIES,
    FIRSTS,
    MEANS,
    CONTEXT,
    MIDDLE,
    WIDE,
    LOW,
    TILE,
    SPARE,
    ATTEND,
    CHANGES,
    CHANGED,
    FETCH_RUNS,
    FETCH_COUNT,
    FETCH_NEXT,
    FETCH_LEFT,
    FETCH_RATE,
    NEXT_COUNT,
    NEXT_RUNS,
    RUNS,
    QUERY_RUNS,
    ZEROS,
    TILE_CODE,
    NARROW_CODE,
    LOWER_CODE,
) = range(34)
FETCHES = 34
FIELDS = FETCHES + FETCH_FIELDS
"""The operand of the next product: its first row A and bytes from row to row; the same rows as modules read
them, with words of a row; and CHANGES, what the rows' modules add to that product, in CHANGED or 0. The other
fields are buffers for the rows of a block of texts, except these: MEANS (`first.turn_queries`), TILE and
SPARE (rows of a tile), ATTEND (`attention.attend` and `first.attend_turned`), CHANGED, RUNS and QUERY_RUNS
(records), ZEROS; the addresses of `tile.tile`, `tile.narrow` and `tile.lower`; and FETCHES, as `tile.tile`
takes them."""


@whole
def _put(room: Any, a: Any, step: Any, read: Any, read_step: Any, read_words: Any) -> None:
    put(room, A, a)
    put(room, STEP, step)
    put(room, READ, read)
    put(room, READ_STEP, read_step)
    put(room, READ_WORDS, read_words)


@whole
def _shortened(room: Any, x: Any, n: Any, width: Any) -> None:
    """Let the next product read n rows of float32 [n, width] as 16-bit integers."""
    numbers, scales = get(room, NUMBERS), get(room, SCALES)
    for i in range(n):
        floats_to_shorts(x + 4 * width * i, numbers + 2 * width * i, scales + 4 * i, width // 16)
    put(room, A, numbers)
    put(room, STEP, 2 * width)


@whole
def operand(kind: Any, room: Any, x: Any, n: Any, width: Any) -> None:
    """Make n rows of float32 [n, width] the operand of the next product."""
    bfloats, numbers, scales = get(room, BFLOATS), get(room, NUMBERS), get(room, SCALES)
    if around(kind) == FLOAT:
        _put(room, x, 4 * width, x, 4 * width, width)
        if kind == INT16:
            _shortened(room, x, n, width)
        return
    for i in range(n):
        to_bfloats(x + 4 * width * i, bfloats + 2 * width * i, width // 16)
    if kind == BFLOAT:
        _put(room, bfloats, 2 * width, bfloats, 2 * width, width // 2)
        return
    for i in range(n):
        floats_to_bytes(x + 4 * width * i, numbers + width * i, scales + 4 * i, width // 16)
    _put(room, numbers, width, bfloats, 2 * width, width // 2)


@whole
def wide_operand(kind: Any, room: Any, n: Any, width: Any) -> None:
    """Make the rows in WIDE the operand. They are float32 or bfloat16 already."""
    wide, numbers = get(room, WIDE), get(room, NUMBERS)
    size = number_bytes(kind)
    _put(room, wide, size * width, wide, size * width, width * size // 4)
    if kind == INT16:
        _shortened(room, wide, n, width)
    if kind == INT8:
        for i in range(n):
            bfloats_to_bytes(
                wide + 2 * width * i, numbers + width * i, get(room, SCALES) + 4 * i, width // 16
            )
        put(room, A, numbers)
        put(room, STEP, width)
