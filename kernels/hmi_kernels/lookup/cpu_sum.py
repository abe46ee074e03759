"""The last stage of cpu.py: a token's vector is the sum of terms of its own window and of its neighbours'."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import carray, compiled, get, inlined, load_f32, pointer, prefetch, sum_block
from hmi_kernels.lookup.cpu_ring import (
    CENTRE,
    CENTRE2,
    HALF,
    LEFT,
    MEAN,
    ONE,
    RIGHT,
    SCALES,
    VECTORS,
    field_at,
)
from hmi_kernels.lookup.cpu_rows import add_vector


@inlined
def scale_of(token: Any, term: Any) -> Any:
    return load_f32(field_at(token, SCALES + term))


@inlined
def kind_of(token: Any, term: Any) -> Any:
    return get(token, SCALES + term) >> 32


@inlined
def add_int8(before: Any, token: Any, after: Any, ahead: Any, dim: Any, out: Any) -> Any:
    """Write the sum of a token's vectors, all of them int8, to the address `out`.

    Meanwhile, prefetch the vectors of the window `ahead`.
    """
    pc, p2 = get(token, VECTORS + CENTRE), get(token, VECTORS + CENTRE2)
    pr, pl = get(before, VECTORS + RIGHT), get(after, VECTORS + LEFT)
    sc, s2 = scale_of(token, CENTRE), scale_of(token, CENTRE2)
    sr, sl = scale_of(before, RIGHT), scale_of(after, LEFT)
    nl, nc, nr = get(ahead, VECTORS + LEFT), get(ahead, VECTORS + CENTRE), get(ahead, VECTORS + RIGHT)
    mean = get(token, MEAN) != 0
    for b in range(0, dim - 63, 64):
        prefetch(nl + b)
        prefetch(nc + b)
        prefetch(nr + b)
        if mean:
            sum_block(out + 4 * b, (pc + b, p2 + b, pr + b, pl + b), (sc, s2, sr, sl))
        else:
            sum_block(out + 4 * b, (pc + b, pr + b, pl + b), (sc, sr, sl))
    prefetch(nr + dim - 1)
    if dim & 63:
        add_tail(dim, out, (pc, p2, pr, pl), (sc, s2, sr, sl), mean)


@compiled
def add_tail(dim: Any, out: Any, vectors: Any, scales: Any, mean: Any) -> Any:
    """The sum of the columns after the last whole block of 64."""
    row = carray(pointer(out), (dim,), np.float32)
    c, d = carray(pointer(vectors[0]), (dim,), np.int8), carray(pointer(vectors[1]), (dim,), np.int8)
    e, f = carray(pointer(vectors[2]), (dim,), np.int8), carray(pointer(vectors[3]), (dim,), np.int8)
    for j in range(dim & ~63, dim):
        centre = np.float32(c[j]) * scales[0]
        if mean:
            centre = centre * HALF + (np.float32(d[j]) * scales[1]) * HALF
        row[j] = centre + np.float32(e[j]) * scales[2] + np.float32(f[j]) * scales[3]


@compiled
def add_mixed(before: Any, token: Any, after: Any, ahead: Any, dim: Any, out: Any) -> Any:
    """`add_int8` for any mix of storage types."""
    for term in range(4):
        if term != CENTRE2 or get(ahead, MEAN) != 0:
            for b in range(0, dim << kind_of(ahead, term), 64):
                prefetch(get(ahead, VECTORS + term) + b)
    row = carray(pointer(out), (dim,), np.float32)
    row[:] = 0
    mean = get(token, MEAN) != 0
    for owner, term, weight in (
        (token, CENTRE, HALF if mean else ONE),
        (token, CENTRE2, HALF),
        (before, RIGHT, ONE),
        (after, LEFT, ONE),
    ):
        if mean or term != CENTRE2:
            add_vector(
                row, dim, get(owner, VECTORS + term), scale_of(owner, term), weight, kind_of(owner, term)
            )
