"""How one n-gram entry lies in memory: the contract between the store's files and the kernels.

Windows are n = 1..5 tokens wide. An entry ("row") of order k <= n holds one vector for each placement s =
0..n-k of the k-gram in the window and each of its ids j = 0..k-1; that vector's role is s * k + j. A row is:

    0           u64 * words   packed key (see `pack_keys`); beside the scales, so that comparing it costs no
    cache miss 8 * words   f32 * roles   one scale per vector (1.0 for the float types) header - 8  u64
    the row's check (see `row_checks`; of format 2 `sum_checks`); 0 in rows of format 1 header      the
    vectors, one after another, int8 | fp16 | fp32

Header and row are padded to a multiple of `ROW_ALIGN` bytes. Everything is little-endian. For n = 3 the roles
are: trigram left, centre, right; bigram left of x and centre of y in (x, y, .), centre of x and right of y in
(., x, y); unigram left, centre, right.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

MAX_N: Final = 5
ROW_ALIGN: Final = 16
ID_LIMIT: Final = 1 << 20  # token ids are below this
FIELD_BITS: Final = 21
WORD_IDS: Final = 3  # ids in one word of a key
TAG_SHIFT: Final = (
    62  # the order 1..3, in the two bits no id can reach: keys of different orders never coincide
)
CHECK_FACTOR: Final = 0x9E3779B97F4A7C15  # of format 2
CHECK_KEYS: Final = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)  # of a row's first word, and of the end
# What a word's keys are above those of the one before.
CHECK_STEPS: Final = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB)
DTYPES: Final = {"int8": 0, "fp16": 1, "fp32": 2}
NUMPY_TYPES: Final[dict[int, np.dtype[Any]]] = {0: np.dtype("i1"), 1: np.dtype("<f2"), 2: np.dtype("<f4")}
EMPTY_SLOT: Final = 0xFFFFFFFFFFFFFFFF
PLAIN_SALT: Final = 1  # the salt of an index that has none: it changes nothing
REACH: Final = 1024  # an n-gram lies less than so many slots after its home; random keys come to some 500
MAX_INDEXED: Final = 3 << 30  # rows under one index: its slots, 4/3 as many, are still numbered by 32 bits
# By storage type: sums of five stay finite, halves too.
TOO_LARGE: Final = {0: 2.0**124, 1: 65520.0, 2: 2.0**124}

Keys = NDArray[np.uint64]  # [m, words]
Bytes = NDArray[np.uint8]


def before(n: int) -> int:
    """Tokens of a window that stand before its centre; the centre is position before(n)."""
    return (n - 1) // 2


def roles(n: int, order: int) -> int:
    """Vectors of one row."""
    assert 1 <= order <= n <= MAX_N
    return order * (n - order + 1)


def words(order: int) -> int:
    """u64 words of a key."""
    return 1 if order <= WORD_IDS else 2


def _up(value: int) -> int:
    return -(-value // ROW_ALIGN) * ROW_ALIGN


def scales_at(order: int) -> int:
    """Offset of the scales in a row."""
    return 8 * words(order)


def header_bytes(n: int, order: int) -> int:
    """Bytes of a row before its vectors; the check is the last 8 of them."""
    return _up(scales_at(order) + 4 * roles(n, order) + 8)


def stride(n: int, order: int, dim: int, dtype: int) -> int:
    """Bytes of one row."""
    return _up(header_bytes(n, order) + roles(n, order) * dim * NUMPY_TYPES[dtype].itemsize)


def pack_keys(ngrams: NDArray[np.uint32]) -> Keys:
    """uint32 [m, order] of ids below `ID_LIMIT` -> uint64 [m, words].

    Word 0 holds the last three ids (the last one lowest) and, up to order 3, the order as a tag; word 1 the
    ids before.
    """
    m, order = ngrams.shape
    keys = np.zeros((m, words(order)), np.uint64)
    keys[:, 0] = order << TAG_SHIFT if order <= WORD_IDS else 0
    for column in range(order):
        word, place = divmod(order - 1 - column, WORD_IDS)
        keys[:, word] |= ngrams[:, column].astype(np.uint64) << np.uint64(FIELD_BITS * place)
    return keys


def unpack_keys(keys: Keys, order: int) -> NDArray[np.uint32]:
    """uint64 [m, words] -> uint32 [m, order]; the inverse of `pack_keys`."""
    ngrams = np.empty((keys.shape[0], order), np.uint32)
    for column in range(order):
        word, place = divmod(order - 1 - column, WORD_IDS)
        ngrams[:, column] = (keys[:, word] >> np.uint64(FIELD_BITS * place)) & np.uint64(ID_LIMIT - 1)
    return ngrams


def row_keys(rows: Bytes, order: int) -> Keys:
    """The packed keys of uint8 [m, stride] rows, as uint64 [m, words] (a copy, native order)."""
    return np.ascontiguousarray(rows[:, : scales_at(order)]).view("<u8").astype(np.uint64)


def row_scales(rows: Bytes, n: int, order: int) -> NDArray[np.float32]:
    """The scales of uint8 [m, stride] rows, float32 [m, roles] (a copy)."""
    start = scales_at(order)
    return np.ascontiguousarray(rows[:, start : start + 4 * roles(n, order)]).view("<f4").astype(np.float32)


def folded(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The high half of a * b xor the low one, uint64."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = (a0 * b0 >> half) + (a1 * b0 & low) + (a0 * b1 & low)
    high = a1 * b1 + (a1 * b0 >> half) + (a0 * b1 >> half) + (middle >> half)
    return np.asarray(high ^ (a * b), np.uint64)


def halves(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The product of a word's halves, uint64."""
    return np.asarray((words & np.uint64((1 << 32) - 1)) * (words >> np.uint64(32)), np.uint64)


def row_checks(rows: Bytes, n: int, order: int) -> NDArray[np.uint64]:
    """What the check of uint8 [m, stride] rows must be, uint64 [m]: the slow, plain meaning.

    Two sums over the row's u64 words w_j, the check itself taken as 0: of halves(w_j + a_j) and of halves(w_j
    ^ b_j), where (a_0, b_0) are `CHECK_KEYS` and each further word's are `CHECK_STEPS` higher; stride + their
    product, folded, after another xor with `CHECK_KEYS`. All modulo 2**64. A product of halves changes by
    what the other half is, so that damage in one place is the negative of damage in another once in 2**32,
    and in both sums once in 2**64.
    """
    row_words = _without_checks(rows, n, order)
    j = np.arange(row_words.shape[1], dtype=np.uint64)
    (key_a, a), (key_b, b) = (
        (np.uint64(key), np.uint64(key) + j * np.uint64(step))
        for key, step in zip(CHECK_KEYS, CHECK_STEPS, strict=True)
    )
    total_a = halves(row_words + a).sum(axis=1, dtype=np.uint64)
    total_b = halves(row_words ^ b).sum(axis=1, dtype=np.uint64)
    return np.asarray(folded(total_a ^ key_a, total_b ^ key_b) + np.uint64(rows.shape[1]), np.uint64)


def sum_checks(rows: Bytes, n: int, order: int) -> NDArray[np.uint64]:
    """The same of rows of format 2: stride + the sum of w_j * CHECK_FACTOR * (2 j + 1) over the words w_j.

    Damage inside one word always shows; in two words it may cancel out, as it does when both lose their
    highest bit.
    """
    row_words = _without_checks(rows, n, order)
    odd = np.arange(row_words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    total = (row_words * (odd * np.uint64(CHECK_FACTOR))).sum(axis=1, dtype=np.uint64)
    return np.asarray(total + np.uint64(rows.shape[1]), np.uint64)


def _without_checks(rows: Bytes, n: int, order: int) -> NDArray[np.uint64]:
    """The words of uint8 [m, stride] rows, a copy, their checks 0."""
    row_words = np.ascontiguousarray(rows).view("<u8").astype(np.uint64)
    row_words[:, header_bytes(n, order) // 8 - 1] = 0
    return row_words


def decode(rows: Bytes, n: int, order: int, dim: int, dtype: int) -> NDArray[np.float32]:
    """uint8 [m, stride] rows -> float32 [m, roles, dim]; the plain numpy meaning of a stored row."""
    kind, count, start = NUMPY_TYPES[dtype], roles(n, order), header_bytes(n, order)
    body = np.ascontiguousarray(rows[:, start : start + count * dim * kind.itemsize])
    vectors: NDArray[np.float32] = body.view(kind).astype(np.float32).reshape(rows.shape[0], count, dim)
    return np.asarray(vectors * row_scales(rows, n, order)[:, :, None], np.float32)
