"""The ring buffer in which cpu.py keeps tokens between its stages, and the stages that probe indexes.

A record of the ring holds a token's state: the keys and hashes of its n-grams, the levels that may have
them, the rows found, and finally the terms of its window.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, get, inlined, load_i32, put
from hmi_kernels.lookup.cpu_index import (
    END,
    FIRST,
    FOUND_COLUMNS,
    ORDER_COLUMNS,
    ROW,
    mix,
    prefetch_filters,
    prefetch_slots,
    query_filters,
    seek_levels,
)
from hmi_kernels.lookup.cpu_seek import seek_exactly
from hmi_kernels.lookup.layout import FIELD_BITS, TAG_SHIFT, header_bytes, scales_at

SHIFT1 = np.uint64(FIELD_BITS)
SHIFT2 = np.uint64(2 * FIELD_BITS)
TAG3 = np.uint64(3 << TAG_SHIFT)
TAG2 = np.uint64(2 << TAG_SHIFT)
TAG1 = np.uint64(1 << TAG_SHIFT)
HEADER, SCALES_AT = header_bytes(3, 3), scales_at(3)  # the same for all three orders
ONE, HALF = np.float32(1), np.float32(0.5)
CHUNK = 16  # tokens that a stage processes at a time
# How many tokens each stage is behind the first. The chunk between two stages gives memory time to answer.
FILTERS, TRIGRAMS, PAIRS, ONES, TERMS = (1 + CHUNK * stage for stage in range(1, 6))
SUMS = TERMS + 6
RING = 128  # the number of records: a power of two, more than SUMS + CHUNK
# The words of a token's record: its id (0 in a gap), its index in the batch (or GAP), and the states of the
# bigram that ends with the token and of its unigram (IDLE, PREFETCHED or SOUGHT).
TOKEN, INDEX, PAIR_STATE, ONE_STATE = range(4)
IDLE, PREFETCHED, SOUGHT = range(3)
GAP = -1
# Where the three words of an n-gram begin, for the trigram around the token, the bigram and the unigram: its
# key, its hash, and the levels that may have it, a bit for each.
TRI_KEY, PAIR_KEY, ONE_KEY = 4, 7, 10
KEY, HASH, LEVELS_LEFT = range(3)
# Where the FOUND_COLUMNS words of the rows found for these begin.
TRI_FOUND, PAIR_FOUND, ONE_FOUND = 13, 16, 19
# The terms of the token's window: four addresses of vectors, then four words with a scale in the lower half
# and a storage type in the upper half. MEAN: whether the centre is the mean of two terms.
VECTORS, SCALES, MEAN, RECORD = 22, 26, 30, 32
LEFT, CENTRE, CENTRE2, RIGHT = range(4)
SCRATCH_WORDS = FOUND_COLUMNS + RECORD * RING + 4  # a damaged row's record, the ring, the cursor, a pointer


@inlined
def record_at(ring: Any, i: Any) -> Any:
    """The address of the record of token i, modulo the ring's size."""
    return ring + (i & (RING - 1)) * (8 * RECORD)


@inlined
def neighbours(ring: Any, i: Any) -> Any:
    """The records of the tokens i - 1, i and i + 1."""
    return record_at(ring, i - 1), record_at(ring, i), record_at(ring, i + 1)


@inlined
def field_at(record: Any, field: Any) -> Any:
    """The address of a field."""
    return record + 8 * field


@inlined
def reset_probes(token: Any) -> Any:
    """Mark the token's n-grams as not sought."""
    put(token, PAIR_STATE, np.int64(IDLE))
    put(token, ONE_STATE, np.int64(IDLE))
    put(token, TRI_FOUND + ROW, np.int64(0))
    put(token, PAIR_FOUND + ROW, np.int64(0))
    put(token, ONE_FOUND + ROW, np.int64(0))


@inlined
def feed(token: Any, cursor: Any, tokens: Any, offsets: Any, texts: Any) -> Any:
    """Put the next token, or the gap between two texts, into the record `token`.

    tokens, offsets: addresses. cursor: three words, the next token, the end of its text and the next text.
    """
    here, text = get(cursor, 0), get(cursor, 2)
    if here < get(cursor, 1):
        put(token, TOKEN, np.int64(load_i32(tokens + 4 * here)))
        put(token, INDEX, here)
        put(cursor, 0, here + 1)
    else:
        put(token, TOKEN, np.int64(0))
        put(token, INDEX, np.int64(GAP))
        if text < texts:
            put(cursor, 0, get(offsets, text))
            put(cursor, 1, get(offsets, text + 1))
            put(cursor, 2, text + 1)
    reset_probes(token)


@inlined
def order_at(orders: Any, order: Any) -> Any:
    """The address of the fields of an order."""
    return orders + 8 * ORDER_COLUMNS * order


@inlined
def note(token: Any, at: Any, key: Any, order: Any) -> Any:
    """Store a key and its hash in the words from `at` on, and prefetch its words of the filters."""
    hashed = mix(key)
    put(token, at + KEY, np.int64(key))
    put(token, at + HASH, np.int64(hashed))
    prefetch_filters(order, hashed)


@inlined
def prefetch_noted(token: Any, at: Any, levels: Any, order: Any) -> Any:
    """Query the filters for the n-gram at `at`, and prefetch its slots in the levels that may have it."""
    key, hashed = np.uint64(get(token, at + KEY)), np.uint64(get(token, at + HASH))
    left = query_filters(order, hashed)
    put(token, at + LEVELS_LEFT, np.int64(left))
    prefetch_slots(levels, order, key, hashed, left)


@inlined
def seek(token: Any, at: Any, found: Any, levels: Any, segs: Any, order: Any) -> Any:
    """Fill the words from `found` on with the row of the n-gram stored at `at`. Returns whether a
    level has its fingerprint."""
    key, hashed = np.uint64(get(token, at + KEY)), np.uint64(get(token, at + HASH))
    left = np.uint64(get(token, at + LEVELS_LEFT))
    return seek_levels(levels, segs, order, key, hashed, left, field_at(token, found))


@inlined
def trigram_key(before: Any, token: Any, after: Any) -> Any:
    a, b, c = np.uint64(get(before, TOKEN)), np.uint64(get(token, TOKEN)), np.uint64(get(after, TOKEN))
    return TAG3 | (a << SHIFT2) | (b << SHIFT1) | c


@inlined
def pair_key(before: Any, token: Any) -> Any:
    return TAG2 | (np.uint64(get(before, TOKEN)) << SHIFT1) | np.uint64(get(token, TOKEN))


@inlined
def one_key(token: Any) -> Any:
    return TAG1 | np.uint64(get(token, TOKEN))


@inlined
def prefetch_pair(before: Any, token: Any, levels: Any, orders: Any) -> Any:
    """Start seeking the bigram that ends with this token, unless that was done already."""
    if get(token, PAIR_STATE) == IDLE:
        put(token, PAIR_STATE, np.int64(PREFETCHED))
        note(token, PAIR_KEY, pair_key(before, token), order_at(orders, 2))
        prefetch_noted(token, PAIR_KEY, levels, order_at(orders, 2))


@inlined
def prefetch_one(token: Any, levels: Any, orders: Any) -> Any:
    """The same for the token's unigram."""
    if get(token, ONE_STATE) == IDLE:
        put(token, ONE_STATE, np.int64(PREFETCHED))
        note(token, ONE_KEY, one_key(token), order_at(orders, 1))
        prefetch_noted(token, ONE_KEY, levels, order_at(orders, 1))


@inlined
def seek_pair(token: Any, levels: Any, segs: Any, orders: Any) -> Any:
    if get(token, PAIR_STATE) == PREFETCHED:
        put(token, PAIR_STATE, np.int64(SOUGHT))
        seek(token, PAIR_KEY, PAIR_FOUND, levels, segs, order_at(orders, 2))


@inlined
def seek_one(token: Any, levels: Any, segs: Any, orders: Any) -> Any:
    if get(token, ONE_STATE) == PREFETCHED:
        put(token, ONE_STATE, np.int64(SOUGHT))
        seek(token, ONE_KEY, ONE_FOUND, levels, segs, order_at(orders, 1))


@inlined
def probe_trigram(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """Seek the trigram; if it is absent, start seeking the bigrams on both sides. Returns
    whether it is absent."""
    if get(token, INDEX) == GAP or seek(token, TRI_KEY, TRI_FOUND, levels, segs, order_at(orders, 3)):
        return False
    if get(before, TOKEN) != 0:
        prefetch_pair(before, token, levels, orders)
    if get(after, TOKEN) != 0:
        prefetch_pair(token, after, levels, orders)
    return True


@inlined
def is_complete(token: Any) -> Any:
    """Return whether a record needs no back-off: its trigram was found, or it is a gap."""
    return get(token, TRI_FOUND + ROW) != 0 or get(token, INDEX) == GAP


@inlined
def probe_pairs(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """Seek the bigrams of an incomplete window, and start seeking the unigrams of tokens that none covers."""
    if is_complete(token):
        return
    seek_pair(token, levels, segs, orders)
    seek_pair(after, levels, segs, orders)
    left = get(before, TOKEN) != 0 and get(token, PAIR_FOUND + ROW) != 0
    right = get(after, TOKEN) != 0 and get(after, PAIR_FOUND + ROW) != 0
    if get(before, TOKEN) != 0 and not left:
        prefetch_one(before, levels, orders)
    if not left and not right:
        prefetch_one(token, levels, orders)
    if get(after, TOKEN) != 0 and not right:
        prefetch_one(after, levels, orders)


@inlined
def probe_ones(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """Seek the unigrams of an incomplete window."""
    if not is_complete(token):
        seek_one(before, levels, segs, orders)
        seek_one(token, levels, segs, orders)
        seek_one(after, levels, segs, orders)


@compiled
def probe_exactly(window: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """Seek all n-grams of a window again, by their keys: the slow path after a collision of fingerprints."""
    before, token, after = window
    zero, tri, two, one = np.uint64(0), order_at(orders, 3), order_at(orders, 2), order_at(orders, 1)
    key = trigram_key(before, token, after)
    seek_exactly(levels, segs, get(tri, FIRST), get(tri, END), key, zero, 1, field_at(token, TRI_FOUND))
    for last, here in ((before, token), (token, after)):
        key = pair_key(last, here)
        put(here, PAIR_KEY, np.int64(key))
        seek_exactly(levels, segs, get(two, FIRST), get(two, END), key, zero, 1, field_at(here, PAIR_FOUND))
    for here in (before, token, after):
        key = one_key(here)
        put(here, ONE_KEY, np.int64(key))
        seek_exactly(levels, segs, get(one, FIRST), get(one, END), key, zero, 1, field_at(here, ONE_FOUND))
