"""Attention of each text's first row alone, by re-association: no row's key or value is ever formed.

A text has one query. Its score with row x is q·(K x) = x·(Kᵀ q), and its context is the sum of a V x over the
rows, which is V (the sum of a x). So K and V multiply one row for each text and head instead of every row of
every text. The bias of K adds the same to all scores of a head, which the softmax takes out; that of V
remains, since the probabilities add up to 1.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from hmi_kernels.encoder import BFLOAT, FLOAT
from hmi_kernels.encoder import room as rooms
from hmi_kernels.encoder.attention import turned
from hmi_kernels.encoder.change import COLUMNS, DOWN, MATRIX, ON_QKV, low_width, set_changes
from hmi_kernels.encoder.product import PANELS, WORDS, even, share, tile, tiles_of
from hmi_kernels.encoder.room import operand
from hmi_kernels.encoder.rowwise import added, copied, softmax, to_bfloats
from hmi_kernels.encoder.tile import STRIDE, call_lower, call_narrow
from hmi_kernels.encoder.vectors import FLOATS, I64, LANES, Vectors, vectorised
from hmi_kernels.encoder.vectors import WORDS as WORD_LANES
from hmi_kernels.jit import get, ir, whole

GROUP = 12
"""Texts whose products with K and V are computed together."""


def _pulled(
    kind: int, v: Vectors, up: Any, words: Any, column: Any, size: Any, q: Any, out: Any, out_step: Any
) -> None:
    """up, words, column, size, q, out, out_step: out [ranks] = upᵀ · q, over the columns column..column +
    size - 1 of the panels up; all but up float32."""
    b = v.b

    def word(w: Any, _: list[Any]) -> list[Any]:
        def columns(j: Any, carried: list[Any]) -> list[Any]:
            at = b.add(column, v.scaled(j, LANES))
            panel, inside = b.ashr(at, I64(6)), b.and_(at, I64(63))
            row = v.scaled(b.add(b.mul(panel, words), w), STRIDE)
            numbers = v.load(v.at(up, b.add(row, v.scaled(inside, 4))), WORD_LANES)
            mine = v.load(v.at(q, v.scaled(j, 4 * LANES)))
            if kind == BFLOAT:
                high = ir.Constant(WORD_LANES, [-65536] * LANES)
                pair = [b.shl(numbers, ir.Constant(WORD_LANES, [16] * LANES)), b.and_(numbers, high)]
            else:
                pair = [numbers]
            return [v.fma(b.bitcast(x, FLOATS), mine, y) for x, y in zip(pair, carried, strict=True)]

        per_word = 2 if kind == BFLOAT else 1
        sums = v.loop(b.sdiv(size, I64(LANES)), [v.const(0.0)] * per_word, columns)
        for i, x in enumerate(sums):
            v.store(v.total(x), v.at(out, b.mul(v.at(v.scaled(w, per_word), i), out_step)))
        return []

    v.loop(words, [], word)


_pulled_floats, _pulled_bfloats = (vectorised(7)(partial(_pulled, kind)) for kind in (FLOAT, BFLOAT))


@whole
def keys_changed(
    kind: Any,
    room: Any,
    change: Any,
    x: Any,
    n: Any,
    d: Any,
    q: Any,
    heads: Any,
    width: Any,
    pulled: Any,
    scores: Any,
) -> None:
    """scores [n, width] += what a module's change of K adds: (the low-rank row of x) · (upᵀ q), by head.

    x float32 [n, d]: a text's rows; q: its query. pulled: room for 4 · width bytes for each rank.
    """
    words, step = get(change, MATRIX + WORDS), 4 * low_width(change)
    rank = words * (1 if kind == FLOAT else 2)
    up, low, more = get(change, MATRIX + PANELS), get(room, rooms.TILE), get(room, rooms.SPARE)
    for h in range(heads):
        column, mine, to = d + h * (d // heads), q + 4 * h * (d // heads), pulled + 4 * h
        if kind == FLOAT:
            _pulled_floats(up, words, column, d // heads, mine, to, 4 * width)
        else:
            _pulled_bfloats(up, words, column, d // heads, mine, to, 4 * width)
    begin, end = rank // 8, (2 * rank + 7) // 8
    i = 0
    while i < n:
        rows, a, a_step = even(n - i), x + 4 * d * i, 4 * d
        if kind != FLOAT:
            for r in range(rows):
                to_bfloats(a + 4 * d * r, get(room, rooms.BFLOATS) + 2 * d * r, d // 16)
            a, a_step = get(room, rooms.BFLOATS), 2 * d
        down, columns, code = get(change, DOWN), get(change, COLUMNS), get(room, rooms.LOWER_CODE)
        call_lower(code, kind, columns, begin, end, rows, a, a_step, a_step // 4, down, low, step)
        narrow = get(room, rooms.NARROW_CODE)
        call_narrow(narrow, width, rows, low + 4 * rank, step, rank, pulled, 4 * width, more, 4 * width)
        added(more, scores + 4 * width * i, rows * width // LANES)
        i += rows


@whole
def attend_turned(
    kind: Any,
    room: Any,
    change: Any,
    x: Any,
    n: Any,
    d: Any,
    q: Any,
    heads: Any,
    factor: Any,
    relative: Any,
    relative_step: Any,
    plus: Any,
    means: Any,
    step: Any,
) -> None:
    """Replace a text's turned queries by the means of its rows under attention: one row for each head.

    x float32 [n, d]: the text's rows. means: float32 [heads, d], `step` bytes apart. change: of its module's
    q, k and v, or 0. factor, relative, relative_step, plus: as `attention.attend` takes them.
    """
    width, row, code = (heads + 15) // 16 * 16, (n + 15) // 16 * 64, get(room, rooms.NARROW_CODE)
    panel, zeros = get(room, rooms.ATTEND), get(room, rooms.ZEROS)
    scores = panel + 4 * width * d
    by_head = scores + width * row
    turned(means, step, heads, d, panel, 4 * width)
    i = 0
    while i < n:
        rows = even(n - i)
        to = scores + 4 * width * i
        call_narrow(code, width, rows, x + 4 * d * i, 4 * d, d, panel, 4 * width, to, 4 * width)
        i += rows
    if change != 0:
        keys_changed(kind, room, change, x, n, d, q, heads, width, by_head, scores)
    turned(scores, 4 * width, n, width, by_head, row)
    by_key = plus if plus != 0 else zeros
    for h in range(heads):
        distance = relative + h * relative_step if relative_step != 0 else zeros
        softmax(by_head + h * row, n, factor, distance, by_key)
    h = 0
    while h < heads:
        rows = even(heads - h)
        call_narrow(code, d, rows, by_head + h * row, row, n, x, 4 * d, means + h * step, step)
        h += rows


@whole
def turn_queries(kind: Any, room: Any, keys: Any, q: Any, n: Any, d: Any, heads: Any, means: Any) -> None:
    """means [heads, n, d] = each head's part of n queries, float32 [n, d], times that part of K."""
    operand(kind, room, q, n, d)
    a, step, words, panels = get(room, rooms.A), get(room, rooms.STEP), get(keys, WORDS), d // 64
    tiles = tiles_of(n)
    for p in range(heads * panels):
        h, r = p // panels, 0
        for t in range(tiles):
            rows, to = share(n - r, tiles - t), means + 4 * d * (n * h + r) + STRIDE * (p - h * panels)
            tile(room, kind, keys, p, rows, a + r * step + 4 * words * h, step, r, t, tiles, 0, 0, to, 4 * d)
            r += rows


@whole
def valued(
    kind: Any,
    room: Any,
    qkv: Any,
    means: Any,
    n: Any,
    d: Any,
    heads: Any,
    runs: Any,
    count: Any,
    context: Any,
) -> None:
    """context float32 [n, d] = each head's means [heads, n, d] times its part of V, with the runs' changes.

    A tile has 64 columns, so those of other heads are computed too where a head has fewer, and left out.
    """
    size, part, scratch, tiles = d // heads, d // 64, get(room, rooms.TILE), tiles_of(n)
    for h in range(heads):
        operand(kind, room, means + 4 * d * n * h, n, d)
        set_changes(kind, room, runs, count, ON_QKV, 2, 3)
        a, step, changes = get(room, rooms.A), get(room, rooms.STEP), get(room, rooms.CHANGES)
        for p in range(size * h // 64, (size * (h + 1) + 63) // 64):
            begin, end, r = max(size * h, 64 * p), min(size * (h + 1), 64 * p + 64), 0
            for t in range(tiles):
                rows, panel = share(n - r, tiles - t), 2 * part + p
                tile(
                    room, kind, qkv, panel, rows, a + r * step, step, r, t, tiles, changes, 2, scratch, STRIDE
                )
                for i in range(rows):
                    to = context + 4 * (d * (r + i) + begin)
                    copied(scratch + STRIDE * i + 4 * (begin - 64 * p), to, (end - begin) // 16)
                r += rows
