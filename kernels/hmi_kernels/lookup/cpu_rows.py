"""numba bodies that encode rows, check them and add their vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.jit import as_bits, as_float, carray, compiled, folded, inlined, pointer, prefetch
from hmi_kernels.lookup.layout import CHECK_FACTOR, CHECK_KEYS, CHECK_STEPS, DTYPES, TOO_LARGE, Bytes

_AHEAD = 4  # rows prefetched ahead of the copy; more does not help, since a row is about twenty cache lines


def gather(addresses: NDArray[np.int64], out: Bytes) -> None:
    """Copy out.shape[1] bytes from each address to a row of out, uint8 [m, bytes], in one thread.

    The addresses are not checked: that many bytes must be readable at each.
    """
    assert addresses.dtype == np.int64
    assert out.dtype == np.uint8
    assert out.flags.c_contiguous
    assert out.shape[0] == addresses.size
    _gather(addresses, out.shape[1], out)


@compiled
def _gather(addresses: Any, size: Any, out: Any) -> Any:
    m = addresses.size
    for i in range(m):
        if i + _AHEAD < m:
            for at in range(0, size, 64):
                prefetch(addresses[i + _AHEAD] + at)
        row = carray(pointer(addresses[i]), (size,), np.uint8)
        for j in range(size):
            out[i, j] = row[j]


HALF_TO_SINGLE = np.float32(2.0**112)  # corrects the exponent of a half whose bits are read as a single's
INT8_MAX = np.float32(127)
# Adding and subtracting it rounds to a whole number, ties to even, for numbers below 2**22 in size.
ROUNDER = np.float32(3 << 22)
MAGNITUDE = np.uint32(0x7FFFFFFF)
OVERFLOW, HALF_OVERFLOW = (np.float32(TOO_LARGE[DTYPES[kind]]).view(np.uint32) for kind in ("fp32", "fp16"))
LEAST_SCALE = np.float32(2.0**-126)  # smaller scales have too few bits to divide by
HALF_NORMAL = np.uint32(0x38800000)  # the bits of 2**-14, the smallest normal half
HALF_BIAS = np.uint32(112 << 23)  # the difference between the exponents of a single and of a half
LOW_HALF, HALF_BITS = np.uint64(0xFFFFFFFF), np.uint64(32)
FACTOR = np.uint64(CHECK_FACTOR)
KEY_A, KEY_B = (np.uint64(key) for key in CHECK_KEYS)
STEP_A, STEP_B = (np.uint64(step) for step in CHECK_STEPS)
BELOW_HALF = np.uint32(0x7FFF)


@inlined
def from_half(bits: Any) -> Any:
    """The float32 of a finite half, exact. The store refuses infinities and NaN."""
    b = np.uint32(bits)
    magnitude = as_float(np.uint32((b & np.uint32(0x7FFF)) << np.uint32(13))) * HALF_TO_SINGLE
    return -magnitude if b & np.uint32(0x8000) else magnitude


@inlined
def halves(word: Any) -> Any:
    """The product of the two halves of a word."""
    return (word & LOW_HALF) * (word >> HALF_BITS)


@inlined
def check_of(words: Any, header: Any) -> Any:
    """The right check of a row (`layout.row_checks`). words: the row, uint64 [stride / 8]."""
    a, b, total_a, total_b = KEY_A, KEY_B, np.uint64(0), np.uint64(0)
    for j in range(words.size):
        total_a += halves(words[j] + a)
        total_b += halves(words[j] ^ b)
        a += STEP_A
        b += STEP_B
    at = header // 8 - 1
    a, b = KEY_A + np.uint64(at) * STEP_A, KEY_B + np.uint64(at) * STEP_B
    total_a -= halves(words[at] + a) - halves(a)
    total_b -= halves(words[at] ^ b) - halves(b)
    return folded(total_a ^ KEY_A, total_b ^ KEY_B) + np.uint64(8 * words.size)


@inlined
def sum_of(words: Any, header: Any) -> Any:
    """The right check of a row of format 2 (`layout.sum_checks`)."""
    at = header // 8 - 1
    total = np.uint64(0)
    for j in range(words.size):
        total += words[j] * (FACTOR * np.uint64(2 * j + 1))
    return total - words[at] * (FACTOR * np.uint64(2 * at + 1)) + np.uint64(8 * words.size)


@compiled
def row_is_sound(addr: Any, stride: Any, header: Any) -> Any:
    """Return whether a row passes the check of either format, since an index may have rows of both.

    A damaged row passes the check of the wrong format with a probability of 2**-64.
    """
    words = carray(pointer(addr), (stride // 8,), np.uint64)
    check = words[header // 8 - 1]
    return check_of(words, header) == check or sum_of(words, header) == check


@compiled
def check_rows(words: Any, header: Any, old: Any, sound: Any) -> Any:
    """Fill sound bool [m] for rows uint64 [m, stride / 8]. old: by the check of format 2."""
    for i in range(words.shape[0]):
        check = words[i, header // 8 - 1]
        sound[i] = (sum_of(words[i], header) if old else check_of(words[i], header)) == check


@inlined
def peak(bits: Any) -> Any:
    """The bits of the largest magnitude among float32 numbers, given as bits.

    Integers have no NaN to treat specially, so the loop compiles to vector instructions. Infinity and NaN
    come out larger than every finite number.
    """
    top = np.uint32(0)
    for j in range(bits.size):
        top = max(top, bits[j] & MAGNITUDE)
    return top


@inlined
def quantise(vector: Any, scale: Any, body: Any) -> Any:
    """Write float32 [dim] / scale to body, int8 [dim], rounded to nearest, ties to even."""
    if scale > 0:
        for j in range(body.size):
            q = (vector[j] / scale + ROUNDER) - ROUNDER
            body[j] = np.int8(np.int32(min(max(q, -INT8_MAX), INT8_MAX)))
    else:
        body[:] = 0


@inlined
def to_half(bits: Any) -> Any:
    """The bits of the half nearest to a float32 below `HALF_OVERFLOW`, ties to even.

    Subnormal halves are spaced like the float32 numbers between 0.5 and 1, so adding 0.5 rounds to them.
    """
    magnitude = bits & MAGNITUDE
    normal = (
        magnitude - HALF_BIAS + np.uint32(0xFFF) + ((magnitude >> np.uint32(13)) & np.uint32(1))
    ) >> np.uint32(13)
    small = as_bits(as_float(magnitude) + np.float32(0.5)) - as_bits(np.float32(0.5))
    return (normal if magnitude >= HALF_NORMAL else small) | ((bits >> np.uint32(16)) & np.uint32(0x8000))


@inlined
def write_vector(dtype: Any, vector: Any, bits: Any, scale: Any, body: Any) -> Any:
    """Encode a vector float32 [dim], with its `bits` uint32 [dim], to body uint8 and scale float32 [1].

    Returns False if a number is too large for the storage type.
    """
    top = peak(bits)
    if dtype == 0:
        whole = as_float(top) / INT8_MAX
        scale[0] = whole if whole >= LEAST_SCALE else np.float32(0)
        if top < OVERFLOW:
            quantise(vector, scale[0], body.view(np.int8))
        return top < OVERFLOW
    scale[0] = 1
    if dtype == 2:
        body.view(np.uint32)[:] = bits
        return top < OVERFLOW
    halves = body.view(np.uint16)
    for j in range(halves.size):
        halves[j] = np.uint16(to_half(bits[j]))
    return top < HALF_OVERFLOW


@compiled
def encode(keys: Any, vectors: Any, bits: Any, dtype: Any, scales_at: Any, header: Any, out: Any) -> Any:
    """Encode keys uint64 [m, words] and vectors float32 [m, roles, dim] as rows; writes every byte of `out`.

    bits: the vectors' memory as uint32. out: uint8 [m, stride]. Returns False if a number is infinite, NaN
    or too large for its storage type.
    """
    m, roles, dim = vectors.shape
    size = dim << dtype
    for i in range(m):
        words = out[i].view(np.uint64)
        words[: header // 8] = 0
        words[(header + roles * size) // 8 :] = 0
        words[: keys.shape[1]] = keys[i]
        for r in range(roles):
            at = header + r * size
            scale = out[i, scales_at + 4 * r : scales_at + 4 * r + 4].view(np.float32)
            if not write_vector(dtype, vectors[i, r], bits[i, r], scale, out[i, at : at + size]):
                return False
        words[header // 8 - 1] = check_of(words, header)
    return True


@compiled
def add_vector(row: Any, dim: Any, addr: Any, scale: Any, weight: Any, dtype: Any) -> Any:
    """Add weight * scale * the stored vector at `addr`, of storage type `dtype`, to row float32 [dim]."""
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
    """The bits of a finite float32 -> those of the nearest bfloat16, ties to even."""
    return (value_bits + BELOW_HALF + ((value_bits >> np.uint32(16)) & np.uint32(1))) >> np.uint32(16)


@compiled
def store_bfloat(row: Any, dim: Any, addr: Any) -> Any:
    """Write float32 [dim] at the address `row` as bfloat16 to the address `addr`."""
    row_bits = carray(pointer(row), (dim,), np.uint32)
    out = carray(pointer(addr), (dim,), np.uint16)
    for j in range(dim):
        out[j] = np.uint16(to_bfloat(row_bits[j]))
