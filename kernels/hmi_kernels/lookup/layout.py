"""The memory layout of an n-gram's entry: the contract between the store's files and the kernels.

Windows are n = 1..5 tokens wide. An entry ("row") of order k <= n of a centred window has a vector for each
place s = 0..n-k of the k-gram in the window and each of its ids j = 0..k-1; that vector's role is s * k + j.
A causal window ends with its token, and an entry has one vector, which is that of its last id. A row is:

    offset      type          content
    0           u64 * words   the packed key (`pack_keys`)
    8 * words   f32 * roles   a scale for each vector (1.0 for the float types)
    header - 8  u64           the row's check: `row_checks`, in format 2 `sum_checks`, in format 1 zero
    header                    the vectors, one after another: int8, fp16 or fp32

The key stands beside the scales, so that comparing it costs no extra cache miss. Header and row are padded
to a multiple of `ROW_ALIGN` bytes. Everything is little-endian. For n = 3 the roles are: of a trigram left,
centre, right; of a bigram left of x and centre of y in (x, y, .), then centre of x and right of y in (., x,
y); of a unigram left, centre, right.
"""

from __future__ import annotations

from typing import Any, Final, Literal

import numpy as np
from numpy.typing import NDArray

MAX_N: Final = 5
ROW_ALIGN: Final = 16
ID_LIMIT: Final = 1 << 20  # token ids are below this
FIELD_BITS: Final = 21  # bits for an id in a key
WORD_IDS: Final = 3  # ids in a word of a key
# The tag is the order 1..3, in the two bits that no id reaches: keys of different orders never coincide.
TAG_SHIFT: Final = 62
CHECK_FACTOR: Final = 0x9E3779B97F4A7C15  # of `sum_checks`
CHECK_KEYS: Final = (0x9E3779B97F4A7C15, 0xD1B54A32D192ED03)  # of `row_checks`: for word 0 and for the end
# By how much a word's keys are larger than those of the word before it.
CHECK_STEPS: Final = (0xA0761D6478BD642F, 0xE7037ED1A0B428DB)
DTYPES: Final = {
    "int8": 0,
    "fp16": 1,
    "fp32": 2,
}  # the code of each storage type; a number has 1 << code bytes
NUMPY_TYPES: Final[dict[int, np.dtype[Any]]] = {0: np.dtype("i1"), 1: np.dtype("<f2"), 2: np.dtype("<f4")}
EMPTY_SLOT: Final = 0xFFFFFFFFFFFFFFFF
PLAIN_SALT: Final = 1  # the salt of an index without one: home slots are those of the plain hash
REACH: Final = (
    1024  # every n-gram lies less than this many slots after its home slot; random keys reach about 500
)
MAX_INDEXED: Final = 3 << 30  # the most rows of an index: its slots, 4/3 as many, are numbered in 32 bits
# By storage type: stored numbers are smaller, so that fp16 stays finite, and a sum of five numbers too.
TOO_LARGE: Final = {0: 2.0**124, 1: 65520.0, 2: 2.0**124}

Keys = NDArray[np.uint64]  # [m, words]
Bytes = NDArray[np.uint8]
Window = Literal["centred", "causal"]  # the n tokens around a token, or those that end with it


def before(n: int) -> int:
    """The number of tokens before a centred window's centre, which is also the position of the centre."""
    return (n - 1) // 2


def roles(n: int, order: int, window: Window = "centred") -> int:
    """The number of vectors of a row."""
    assert 1 <= order <= n <= MAX_N
    return 1 if window == "causal" else order * (n - order + 1)


def words(order: int) -> int:
    """The number of u64 words of a key."""
    return 1 if order <= WORD_IDS else 2


def _up(value: int) -> int:
    return -(-value // ROW_ALIGN) * ROW_ALIGN


def scales_at(order: int) -> int:
    """The offset of the scales in a row."""
    return 8 * words(order)


def header_bytes(n: int, order: int, window: Window = "centred") -> int:
    """The number of bytes before a row's vectors. The last 8 of them are the check."""
    return _up(scales_at(order) + 4 * roles(n, order, window) + 8)


def stride(n: int, order: int, dim: int, dtype: int, window: Window = "centred") -> int:
    """The number of bytes of a row."""
    body = roles(n, order, window) * dim * NUMPY_TYPES[dtype].itemsize
    return _up(header_bytes(n, order, window) + body)


def pack_keys(ngrams: NDArray[np.uint32]) -> Keys:
    """Ids below `ID_LIMIT`, uint32 [m, order] -> keys uint64 [m, words].

    Word 0 has the last three ids, the very last in the lowest bits, and up to order 3 also the order as a
    tag. Word 1 has the ids before these.
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


def row_scales(rows: Bytes, n: int, order: int, window: Window = "centred") -> NDArray[np.float32]:
    """The scales of uint8 [m, stride] rows, float32 [m, roles] (a copy)."""
    start = scales_at(order)
    end = start + 4 * roles(n, order, window)
    return np.ascontiguousarray(rows[:, start:end]).view("<f4").astype(np.float32)


def folded(a: NDArray[np.uint64], b: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The high half of the 128-bit product a * b, xor its low half."""
    half, low = np.uint64(32), np.uint64((1 << 32) - 1)
    a0, a1, b0, b1 = a & low, a >> half, b & low, b >> half
    middle = (a0 * b0 >> half) + (a1 * b0 & low) + (a0 * b1 & low)
    high = a1 * b1 + (a1 * b0 >> half) + (a0 * b1 >> half) + (middle >> half)
    return np.asarray(high ^ (a * b), np.uint64)


def halves(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The product of the two halves of each word, uint64."""
    return np.asarray((words & np.uint64((1 << 32) - 1)) * (words >> np.uint64(32)), np.uint64)


def row_checks(rows: Bytes, n: int, order: int, window: Window = "centred") -> NDArray[np.uint64]:
    """The right checks of rows uint8 [m, stride], uint64 [m]: the slow, plain definition.

    Over a row's u64 words w_j, with 0 in place of the check, let A be the sum of halves(w_j + a_j) and B
    the sum of halves(w_j ^ b_j), where (a_0, b_0) are `CHECK_KEYS` and (a_j, b_j) grow by `CHECK_STEPS`
    from word to word. The check is folded(A ^ a_0, B ^ b_0) + stride, all modulo 2**64. How much a change
    of one half changes a product depends on the other half, so damage in one word cancels damage in another
    with a probability of 2**-32 in one sum, and 2**-64 in both.
    """
    row_words = _without_checks(rows, header_bytes(n, order, window))
    j = np.arange(row_words.shape[1], dtype=np.uint64)
    (key_a, a), (key_b, b) = (
        (np.uint64(key), np.uint64(key) + j * np.uint64(step))
        for key, step in zip(CHECK_KEYS, CHECK_STEPS, strict=True)
    )
    total_a = halves(row_words + a).sum(axis=1, dtype=np.uint64)
    total_b = halves(row_words ^ b).sum(axis=1, dtype=np.uint64)
    return np.asarray(folded(total_a ^ key_a, total_b ^ key_b) + np.uint64(rows.shape[1]), np.uint64)


def sum_checks(rows: Bytes, n: int, order: int) -> NDArray[np.uint64]:
    """The right checks of rows of format 2: stride + the sum of w_j * CHECK_FACTOR * (2 j + 1), modulo 2**64.

    Damage in one word is always found. Damage in two words may cancel out, as when both lose their highest
    bit.
    """
    row_words = _without_checks(rows, header_bytes(n, order))
    odd = np.arange(row_words.shape[1], dtype=np.uint64) * np.uint64(2) + np.uint64(1)
    total = (row_words * (odd * np.uint64(CHECK_FACTOR))).sum(axis=1, dtype=np.uint64)
    return np.asarray(total + np.uint64(rows.shape[1]), np.uint64)


def _without_checks(rows: Bytes, header: int) -> NDArray[np.uint64]:
    """A copy of the words of rows uint8 [m, stride], with 0 in place of their checks.

    header: their `header_bytes`.
    """
    row_words = np.ascontiguousarray(rows).view("<u8").astype(np.uint64)
    row_words[:, header // 8 - 1] = 0
    return row_words


def decode(
    rows: Bytes, n: int, order: int, dim: int, dtype: int, window: Window = "centred"
) -> NDArray[np.float32]:
    """Rows uint8 [m, stride] -> vectors float32 [m, roles, dim], in plain numpy."""
    kind, count, start = NUMPY_TYPES[dtype], roles(n, order, window), header_bytes(n, order, window)
    body = np.ascontiguousarray(rows[:, start : start + count * dim * kind.itemsize])
    vectors: NDArray[np.float32] = body.view(kind).astype(np.float32).reshape(rows.shape[0], count, dim)
    return np.asarray(vectors * row_scales(rows, n, order, window)[:, :, None], np.float32)
