"""numba bodies that write rows and add them up. Integers and arrays only."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.jit import as_float, carray, compiled, inlined, pointer
from kernels.layout import ROW_HEADER, SCALES_AT

HALF_TO_SINGLE = np.float32(2.0**112)  # moves the exponent of a half, read as a single, to where it belongs
INT8_MAX = np.float32(127)
ROUNDER = np.float32(3 << 22)  # adding and taking it away rounds half to even, as long as the size is below 2**22
MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITE = np.uint32(0x7F800000)


@inlined
def f32_at(addr: Any) -> Any:
    return carray(pointer(addr), (1,), np.float32)[0]


@inlined
def from_half(bits: Any) -> Any:
    """float32 of a finite half, exact (the store refuses infinities and NaN)."""
    b = np.uint32(bits)
    magnitude = as_float(np.uint32((b & np.uint32(0x7FFF)) << np.uint32(13))) * HALF_TO_SINGLE
    return -magnitude if b & np.uint32(0x8000) else magnitude


@compiled
def encode_int8(vectors: Any, bits: Any, out: Any) -> Any:
    """float32 [m, roles, dim] -> scales and int8 bodies of uint8 [m, stride] rows. False if a number is not finite.

    bits: the same memory as uint32. The peak is found on the bits because whole numbers have no NaN to be careful
    about, so the loop becomes vector instructions; infinities and NaN are above every finite number.
    """
    m, roles, dim = vectors.shape
    for i in range(m):
        scales = out[i, SCALES_AT : SCALES_AT + 4 * roles].view(np.float32)
        for r in range(roles):
            top = np.uint32(0)
            for j in range(dim):
                top = max(top, bits[i, r, j] & MAGNITUDE)
            if top >= INFINITE:
                return False
            scale = as_float(top) / INT8_MAX
            scales[r] = scale
            body = out[i, ROW_HEADER + r * dim : ROW_HEADER + (r + 1) * dim].view(np.int8)
            if scale > 0:
                for j in range(dim):
                    q = (vectors[i, r, j] / scale + ROUNDER) - ROUNDER
                    body[j] = np.int8(np.int32(min(max(q, -INT8_MAX), INT8_MAX)))
            else:
                for j in range(dim):
                    body[j] = 0
    return True


@inlined
def sum3_int8(row: Any, dim: Any, pc: Any, sc: Any, pr: Any, sr: Any, pl: Any, sl: Any) -> Any:
    c = carray(pointer(pc), (dim,), np.int8)
    r = carray(pointer(pr), (dim,), np.int8)
    left = carray(pointer(pl), (dim,), np.int8)
    for j in range(dim):
        row[j] = np.float32(c[j]) * sc + np.float32(r[j]) * sr + np.float32(left[j]) * sl


@inlined
def sum4_int8(row: Any, dim: Any, pc: Any, sc: Any, p2: Any, s2: Any, pr: Any, sr: Any, pl: Any, sl: Any) -> Any:
    c = carray(pointer(pc), (dim,), np.int8)
    c2 = carray(pointer(p2), (dim,), np.int8)
    r = carray(pointer(pr), (dim,), np.int8)
    left = carray(pointer(pl), (dim,), np.int8)
    for j in range(dim):
        centre = np.float32(c[j]) * sc + np.float32(c2[j]) * s2
        row[j] = centre + np.float32(r[j]) * sr + np.float32(left[j]) * sl


@compiled
def add_vector(row: Any, dim: Any, addr: Any, scale: Any, dtype: Any) -> Any:
    """row += the stored vector at addr, whatever its type."""
    if dtype == 0:
        small = carray(pointer(addr), (dim,), np.int8)
        for j in range(dim):
            row[j] += np.float32(small[j]) * scale
    elif dtype == 1:
        half = carray(pointer(addr), (dim,), np.uint16)
        for j in range(dim):
            row[j] += from_half(half[j]) * scale
    else:
        single = carray(pointer(addr), (dim,), np.float32)
        for j in range(dim):
            row[j] += single[j] * scale
