"""Tenants' modules on their own rows: low-rank changes inside a product, bottlenecks beside one,
LayerNorms."""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder import BFLOAT, FLOAT
from hmi_kernels.encoder.product import (
    BEGIN,
    END,
    LOW_STEP,
    LOW_WORDS,
    MATRIX_FIELDS,
    PANELS,
    SEGMENT_FIELDS,
    UP,
    WORDS,
    even,
    tile,
)
from hmi_kernels.encoder.product import LOW as SEGMENT_LOW
from hmi_kernels.encoder.room import (
    LOW,
    NARROW_CODE,
    NO_SEGMENT,
    READ,
    READ_STEP,
    READ_WORDS,
    SEGMENTS,
    SPARE,
    TILE,
)
from hmi_kernels.encoder.rowwise import activated, added, normed, to_bfloats
from hmi_kernels.encoder.tile import ROWS, STRIDE, call_narrow
from hmi_kernels.jit import get, put, whole

DOWN, COLUMNS, ACTIVATION, DOWN_BIAS, MATRIX = range(5)
CHANGE_FIELDS = 4 + MATRIX_FIELDS
"""A change: address of the panel down (0: no change) and its columns, a multiple of 16; the activation and
the address of its bias; the matrix up, whose words are those of one part of the low-rank row."""
NONE, RELU, SILU = range(3)
"""Activations."""
ON_QKV, ON_OUT, ON_IN, ON_FFN, ATTN, FFN, AFTER_ATTN, AFTER_FFN, AFTER_NORM = (
    CHANGE_FIELDS * i for i in range(9)
)
NORM1, NORM2 = 9 * CHANGE_FIELDS, 9 * CHANGE_FIELDS + 2
MODULE_FIELDS = 9 * CHANGE_FIELDS + 4
"""One layer's part of a module: changes of the products q k v, o, fi and fo; the bottlenecks by site; gains
and biases (addresses, 0: none) that are added to the layer's two LayerNorms."""
NORM_EPS = 0x2B8CBCCC
"""The bits of 1e-12: the eps of a module's LayerNorms."""
RUN_FIELDS = 3
"""A run of texts with one module: first row, end, the module's record (0: none)."""


@whole
def lowered(
    room: Any, kind: Any, change: Any, n: Any, a: Any, step: Any, words: Any, scratch: Any, low: Any
) -> None:
    """low [n, COLUMNS] = activation(n rows · the panel down + bias): float32 if the kind is, else
    bfloat16."""
    columns, activation = get(change, COLUMNS), get(change, ACTIVATION)
    to = low if kind == FLOAT else scratch
    of_module, panel, stride = FLOAT if kind == FLOAT else BFLOAT, get(change, DOWN), 4 * columns
    call_narrow(get(room, NARROW_CODE), of_module, columns, n, a, step, words, panel, stride, to, stride)
    for i in range(n):
        if activation != NONE:
            activated(to + 4 * columns * i, get(change, DOWN_BIAS), activation, columns // 16)
        if kind != FLOAT:
            to_bfloats(to + 4 * columns * i, low + 2 * columns * i, columns // 16)


@whole
def set_segments(kind: Any, room: Any, runs: Any, count: Any, slot: Any) -> None:
    """The segments of the next product: each run of rows with what its module adds at this slot."""
    low, size = get(room, LOW), 4 if kind == FLOAT else 2
    for s in range(count):
        run, segment = runs + 8 * RUN_FIELDS * s, get(room, SEGMENTS) + 8 * SEGMENT_FIELDS * s
        begin, end, module = get(run, 0), get(run, 1), get(run, 2)
        put(segment, BEGIN, begin)
        put(segment, END, end)
        put(segment, LOW_WORDS, 0)
        if module == 0 or get(module, slot + DOWN) == 0:
            continue
        change = module + 8 * slot
        step = size * get(change, COLUMNS)
        put(segment, SEGMENT_LOW, low)
        put(segment, LOW_STEP, step)
        put(segment, LOW_WORDS, get(change, MATRIX + WORDS))
        put(segment, UP, get(change, MATRIX + PANELS))
        read = get(room, READ_STEP)
        for r in range(begin, end, ROWS):
            n = min(ROWS, end - r)
            lowered(
                room,
                kind,
                change,
                n,
                get(room, READ) + r * read,
                read,
                get(room, READ_WORDS),
                get(room, TILE),
                low,
            )
            low += n * step


@whole
def bottleneck(kind: Any, room: Any, change: Any, n: Any, source: Any, d: Any, y: Any) -> None:
    """y += the change of source: up to ROWS rows of float32 [n, d]. source may be y."""
    rows, scratch, low = get(room, SPARE), get(room, TILE), get(room, LOW)
    a, step, words = source, 4 * d, d
    if kind != FLOAT:
        a, step, words = rows, 2 * d, d // 2
        for i in range(n):
            to_bfloats(source + 4 * d * i, rows + 2 * d * i, d // 16)
    lowered(room, kind, change, n, a, step, words, scratch, low)
    of_module = FLOAT if kind == FLOAT else BFLOAT
    low_step = get(change, COLUMNS) * (4 if kind == FLOAT else 2)
    for p in range(d // 64):
        tile(
            room,
            of_module,
            change + 8 * MATRIX,
            p,
            n,
            low,
            low_step,
            0,
            get(room, NO_SEGMENT),
            0,
            scratch,
            STRIDE,
        )
        for i in range(n):
            added(scratch + STRIDE * i, y + 4 * d * i + STRIDE * p, 4)


@whole
def changed(kind: Any, room: Any, runs: Any, count: Any, slot: Any, source: Any, d: Any, y: Any) -> None:
    """y += each run's bottleneck at this slot, of its own rows of source: float32 [rows, d]."""
    for s in range(count):
        run = runs + 8 * RUN_FIELDS * s
        module = get(run, 2)
        if module == 0 or get(module, slot + DOWN) == 0:
            continue
        r, end = get(run, 0), get(run, 1)
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
        module = get(run, 2)
        own = module != 0 and get(module, slot) != 0
        for r in range(get(run, 0), get(run, 1)):
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
        module = get(run, 2)
        if module == 0 or get(module, AFTER_NORM + DOWN) == 0:
            continue
        r, end = get(run, 0), get(run, 1)
        while r < end:
            n = even(end - r)
            for i in range(n):
                at = 4 * d * (r + i)
                normed(y + at, residual + at, gain, bias, normal + 4 * d * i, eps, d // 16)
            bottleneck(kind, room, module + 8 * AFTER_NORM, n, normal, d, y + 4 * d * r)
            r += n
