"""Tenants' modules on their own rows: low-rank changes inside a product, bottlenecks beside one,
LayerNorms. Here a kind is that of modules, FLOAT or BFLOAT; see `tile.around`."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import FLOAT
from hmi_kernels.encoder.ahead import AHEAD_FIELDS, FETCHED, FIRST, LAST, MODULE, RUN_FIELDS
from hmi_kernels.encoder.product import MATRIX_FIELDS, PANELS, WORDS, even, tile
from hmi_kernels.encoder.room import (
    CHANGED,
    CHANGES,
    LOW,
    LOWER_CODE,
    READ,
    READ_STEP,
    READ_WORDS,
    SPARE,
    TILE,
)
from hmi_kernels.encoder.rowwise import activated, added, normed, to_bfloats
from hmi_kernels.encoder.tile import CHANGED_FIELDS, ROWS, STRIDE, call_lower
from hmi_kernels.jit import get, load_i64, put, whole

DOWN, COLUMNS, ACTIVATION, DOWN_BIAS, MISSING, MATRIX = range(6)
CHANGE_FIELDS = 5 + MATRIX_FIELDS
"""A change: address of the panel down (0: no change) and its columns, 2, 4 or a multiple of 8; the activation
and the address of its bias; the number of first parts that it does not change and has nothing of; the matrix
up, whose words are those of one part of the low-rank row."""
NONE, RELU, SILU = range(3)
"""Activations."""
ON_QKV, ON_OUT, ATTN, AFTER_ATTN, ON_IN, ON_FFN, FFN, AFTER_FFN, AFTER_NORM = (
    AHEAD_FIELDS + CHANGE_FIELDS * i for i in range(9)
)
NORM1, NORM2 = AHEAD_FIELDS + 9 * CHANGE_FIELDS, AHEAD_FIELDS + 9 * CHANGE_FIELDS + 2
MODULE_FIELDS = AHEAD_FIELDS + 9 * CHANGE_FIELDS + 4
"""One layer's part of a module: changes of the products q k v, o, fi and fo; the bottlenecks by site; gains
and biases (addresses, 0: none) that are added to the layer's two LayerNorms."""
NORM_EPS = 0x2B8CBCCC
"""The bits of 1e-12: the eps of a module's LayerNorms."""


@whole
def low_width(change: Any) -> Any:
    """Numbers from one low-rank row to the next: whole vectors."""
    return (get(change, COLUMNS) + 15) // 16 * 16


@whole
def lowered(
    room: Any,
    kind: Any,
    change: Any,
    first: Any,
    last: Any,
    n: Any,
    a: Any,
    step: Any,
    words: Any,
    scratch: Any,
    low: Any,
) -> None:
    """low [n, low_width] = activation(n rows · the panel down + bias): It is float32 if the kind is, else
    bfloat16. Only parts first..last-1 are computed."""
    width, activation = low_width(change), get(change, ACTIVATION)
    to = low if kind == FLOAT else scratch
    rank = get(change, MATRIX + WORDS) * (1 if kind == FLOAT else 2)
    begin, end = first * rank // 8, (last * rank + 7) // 8
    panel, code, columns = get(change, DOWN), get(room, LOWER_CODE), get(change, COLUMNS)
    call_lower(code, kind, columns, begin, end, n, a, step, words, panel, to, 4 * width)
    for i in range(n):
        if activation != NONE:
            activated(to + 4 * width * i, get(change, DOWN_BIAS), activation, width // 16)
        if kind != FLOAT:
            to_bfloats(to + 4 * width * i, low + 2 * width * i, width // 16)


@whole
def set_runs(offsets: Any, begin: Any, end: Any, modules: Any, runs: Any) -> Any:
    """Group neighbouring texts with the same module to runs, and return the number of runs.

    A run spans rows of the block, or texts if offsets is 0.
    """
    start, count, last = begin if offsets == 0 else load_i64(offsets + 8 * begin), 0, -1
    run = runs - 8 * RUN_FIELDS
    for t in range(begin, end):
        module = load_i64(modules + 8 * t)
        if module != last:
            count, run, last = count + 1, run + 8 * RUN_FIELDS, module
            put(run, FIRST, (t if offsets == 0 else load_i64(offsets + 8 * t)) - start)
            put(run, MODULE, module)
            put(run, FETCHED, module)
        put(run, LAST, (t + 1 if offsets == 0 else load_i64(offsets + 8 * t + 8)) - start)
    return count


@whole
def set_changes(kind: Any, room: Any, runs: Any, count: Any, slot: Any, first: Any, last: Any) -> None:
    """Set what the modules add to the next product at this slot: for the rows of each run, in parts
    first..last-1."""
    low, size, found = get(room, LOW), 4 if kind == FLOAT else 2, False
    read, in_words = get(room, READ_STEP), get(room, READ_WORDS)
    for s in range(count):
        run = runs + 8 * RUN_FIELDS * s
        r, end, module = get(run, FIRST), get(run, LAST), get(run, MODULE)
        mine = get(room, CHANGED) + 8 * CHANGED_FIELDS * r
        if module == 0 or get(module, slot + DOWN) == 0:
            for i in range(end - r):
                put(mine, CHANGED_FIELDS * i + 1, 0)
                put(mine, CHANGED_FIELDS * i + 2, 0)
            continue
        found, change = True, module + 8 * slot
        step, words, up = size * low_width(change), get(change, MATRIX + WORDS), get(change, MATRIX + PANELS)
        missing = get(change, MISSING)
        begin = max(first - missing, 0)
        for i in range(end - r):
            put(mine, CHANGED_FIELDS * i, low + step * i - 4 * words * missing)
            put(mine, CHANGED_FIELDS * i + 1, words)
            put(mine, CHANGED_FIELDS * i + 2, up)
            put(mine, CHANGED_FIELDS * i + 3, missing)
        while r < end:
            n, a = even(end - r), get(room, READ) + r * read
            lowered(room, kind, change, begin, last - missing, n, a, read, in_words, get(room, TILE), low)
            low += n * step
            r += n
    put(room, CHANGES, get(room, CHANGED) if found else 0)


@whole
def bottleneck(kind: Any, room: Any, change: Any, n: Any, source: Any, d: Any, y: Any) -> None:
    """y += the change of source: up to ROWS rows of float32 [n, d]. source may be y."""
    rows, scratch, low = get(room, SPARE), get(room, TILE), get(room, LOW)
    a, step, words = source, 4 * d, d
    if kind != FLOAT:
        a, step, words = rows, 2 * d, d // 2
        for i in range(n):
            to_bfloats(source + 4 * d * i, rows + 2 * d * i, d // 16)
    lowered(room, kind, change, 0, 1, n, a, step, words, scratch, low)
    low_step = low_width(change) * (4 if kind == FLOAT else 2)
    for p in range(d // 64):
        tile(room, kind, change + 8 * MATRIX, p, n, low, low_step, 0, 0, 1, 0, 0, scratch, STRIDE)
        for i in range(n):
            added(scratch + STRIDE * i, y + 4 * d * i + STRIDE * p, 4)


@whole
def changed(kind: Any, room: Any, runs: Any, count: Any, slot: Any, source: Any, d: Any, y: Any) -> None:
    """y += each run's bottleneck at this slot, of its own rows of source: float32 [rows, d]."""
    for s in range(count):
        run = runs + 8 * RUN_FIELDS * s
        module = get(run, MODULE)
        if module == 0 or get(module, slot + DOWN) == 0:
            continue
        r, end = get(run, FIRST), get(run, LAST)
        while r < end:
            n = even(end - r)
            bottleneck(kind, room, module + 8 * slot, n, source + 4 * d * r, d, y + 4 * d * r)
            r += n


@whole
def normalised(
    room: Any,
    runs: Any,
    count: Any,
    slot: Any,
    y: Any,
    residual: Any,
    gain: Any,
    bias: Any,
    eps: Any,
    d: Any,
    out: Any,
) -> None:
    """out = LayerNorm(y + residual), float32 [rows, d], with each run's own gain and bias added. out may be
    y."""
    spare = get(room, SPARE)
    for s in range(count):
        run = runs + 8 * RUN_FIELDS * s
        module = get(run, MODULE)
        own = module != 0 and get(module, slot) != 0
        for r in range(get(run, FIRST), get(run, LAST)):
            at = 4 * d * r
            if own:
                normed(
                    y + at, residual + at, get(module, slot), get(module, slot + 1), spare, NORM_EPS, d // 16
                )
            normed(y + at, residual + at, gain, bias, out + at, eps, d // 16)
            if own:
                added(spare, out + at, d // 16)


@whole
def changed_after_norm(
    kind: Any, room: Any, runs: Any, count: Any, y: Any, residual: Any, gain: Any, bias: Any, eps: Any, d: Any
) -> None:
    """y += each run's bottleneck of LayerNorm(y + residual), float32 [rows, d]."""
    normal = get(room, SPARE) + 2 * ROWS * d
    for s in range(count):
        run = runs + 8 * RUN_FIELDS * s
        module = get(run, MODULE)
        if module == 0 or get(module, AFTER_NORM + DOWN) == 0:
            continue
        r, end = get(run, FIRST), get(run, LAST)
        while r < end:
            n = even(end - r)
            for i in range(n):
                at = 4 * d * (r + i)
                normed(y + at, residual + at, gain, bias, normal + 4 * d * i, eps, d // 16)
            bottleneck(kind, room, module + 8 * AFTER_NORM, n, normal, d, y + 4 * d * r)
            r += n
