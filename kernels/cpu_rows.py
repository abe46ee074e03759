"""numba bodies that write rows, check them and add their vectors up. Integers and arrays only."""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.jit import as_float, carray, compiled, inlined, pointer
from kernels.layout import CHECK_FACTOR

HALF_TO_SINGLE = np.float32(2.0**112)  # moves the exponent of a half, read as a single, to where it belongs
INT8_MAX = np.float32(127)
ROUNDER = np.float32(3 << 22)  # adding and taking it away rounds half to even, as long as the size is below 2**22
MAGNITUDE = np.uint32(0x7FFFFFFF)
INFINITE = np.uint32(0x7F800000)
FACTOR = np.uint64(CHECK_FACTOR)
BELOW_HALF = np.uint32(0x7FFF)


@inlined
def from_half(bits: Any) -> Any:
    """float32 of a finite half, exact (the store refuses infinities and NaN)."""
    b = np.uint32(bits)
    magnitude = as_float(np.uint32((b & np.uint32(0x7FFF)) << np.uint32(13))) * HALF_TO_SINGLE
    return -magnitude if b & np.uint32(0x8000) else magnitude


@inlined
def check_of(words: Any, header: Any) -> Any:
    """What the check of a row must be (`kernels.layout.row_checks`); words: the row as uint64 [stride / 8]."""
    at = header // 8 - 1
    total = np.uint64(0)
    for j in range(words.size):
        total += words[j] * (FACTOR * np.uint64(2 * j + 1))
    return total - words[at] * (FACTOR * np.uint64(2 * at + 1)) + np.uint64(8 * words.size)


@compiled
def row_is_sound(addr: Any, stride: Any, header: Any) -> Any:
    words = carray(pointer(addr), (stride // 8,), np.uint64)
    return check_of(words, header) == words[header // 8 - 1]


@compiled
def check_rows(words: Any, header: Any, sound: Any) -> Any:
    """words uint64 [m, stride / 8] -> sound bool [m]."""
    for i in range(words.shape[0]):
        sound[i] = check_of(words[i], header) == words[i, header // 8 - 1]


@compiled
def seal_rows(words: Any, header: Any) -> Any:
    """Write the check of every row, uint64 [m, stride / 8]."""
    for i in range(words.shape[0]):
        words[i, header // 8 - 1] = check_of(words[i], header)


@compiled
def encode_int8(vectors: Any, bits: Any, scales_at: Any, header: Any, out: Any) -> Any:
    """float32 [m, roles, dim] -> scales and int8 bodies of uint8 [m, stride] rows. False if a number is not finite.

    bits: the same memory as uint32. The peak is found on the bits because whole numbers have no NaN to be careful
    about, so the loop becomes vector instructions; infinities and NaN are above every finite number.
    """
    m, roles, dim = vectors.shape
    for i in range(m):
        scales = out[i, scales_at : scales_at + 4 * roles].view(np.float32)
        for r in range(roles):
            top = np.uint32(0)
            for j in range(dim):
                top = max(top, bits[i, r, j] & MAGNITUDE)
            if top >= INFINITE:
                return False
            scale = as_float(top) / INT8_MAX
            scales[r] = scale
            body = out[i, header + r * dim : header + (r + 1) * dim].view(np.int8)
            if scale > 0:
                for j in range(dim):
                    q = (vectors[i, r, j] / scale + ROUNDER) - ROUNDER
                    body[j] = np.int8(np.int32(min(max(q, -INT8_MAX), INT8_MAX)))
            else:
                for j in range(dim):
                    body[j] = 0
    return True


@compiled
def add_vector(row: Any, dim: Any, addr: Any, scale: Any, weight: Any, dtype: Any) -> Any:
    """row += weight * the stored vector at addr, whatever its type."""
    if dtype == 0:
        small = carray(pointer(addr), (dim,), np.int8)
        for j in range(dim):
            row[j] += (np.float32(small[j]) * scale) * weight
    elif dtype == 1:
        half = carray(pointer(addr), (dim,), np.uint16)
        for j in range(dim):
            row[j] += (from_half(half[j]) * scale) * weight
    else:
        single = carray(pointer(addr), (dim,), np.float32)
        for j in range(dim):
            row[j] += (single[j] * scale) * weight


@inlined
def to_bfloat(value_bits: Any) -> Any:
    """The bfloat16 bits of a finite float32's bits, rounded to nearest, half to even."""
    return (value_bits + BELOW_HALF + ((value_bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@compiled
def store_bfloat(row: Any, dim: Any, addr: Any) -> Any:
    """float32 [dim] at address row -> bfloat16 bits at addr."""
    row_bits = carray(pointer(row), (dim,), np.uint32)
    out = carray(pointer(addr), (dim,), np.uint16)
    for j in range(dim):
        out[j] = np.uint16(to_bfloat(row_bits[j]))
