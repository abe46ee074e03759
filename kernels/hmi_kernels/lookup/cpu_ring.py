"""The ring of records in which `hmi_kernels.lookup.cpu` keeps a token between its stages, and the stages that
probe.

A record holds a token's state: its keys and hashes, the levels that may have them, the rows found, and
finally the terms of its window.
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
    ask_filters,
    ask_levels,
    mix,
    seek_levels,
    sift,
)
from hmi_kernels.lookup.cpu_seek import seek_exactly
from hmi_kernels.lookup.layout import FIELD_BITS, TAG_SHIFT, header_bytes, scales_at

SHIFT1 = np.uint64(FIELD_BITS)
SHIFT2 = np.uint64(2 * FIELD_BITS)
TAG3 = np.uint64(3 << TAG_SHIFT)
TAG2 = np.uint64(2 << TAG_SHIFT)
TAG1 = np.uint64(1 << TAG_SHIFT)
HEADER, SCALES_AT = header_bytes(3, 3), scales_at(3)  # the same for the three orders
ONE, HALF = np.float32(1), np.float32(0.5)
CHUNK = 16  # tokens that a stage takes together
# how many tokens a stage is behind the first; one chunk between two of them lets the memory answer
SIFT, TRIGRAMS, PAIRS, ONES, TERMS = (1 + CHUNK * stage for stage in range(1, 6))
SUMS = TERMS + 6
RING = 128  # records, more than SUMS + CHUNK
# a token's record, in words: its id (0 in a gap) and index in the batch (or GAP); key and hash of the trigram
# around it and the levels that may have it; the same of the bigram that ends with it and of it alone, and
# whether they have been asked for; what was found; the terms of its window (addresses of vectors; scales and,
# in the upper half of the word, storage types) and whether the centre is a mean of two
TOKEN, INDEX, PAIR_STATE, ONE_STATE = 0, 1, 2, 3
TRI_KEY, PAIR_KEY, ONE_KEY = 4, 7, 10
KEY, HASH, LEFT_OVER = 0, 1, 2
TRI_FOUND, PAIR_FOUND, ONE_FOUND = 13, 16, 19
VECTORS, SCALES, MEAN, RECORD = 22, 26, 30, 32
LEFT, CENTRE, CENTRE2, RIGHT = 0, 1, 2, 3
GAP = -1
IDLE, ASKED, SOUGHT = 0, 1, 2
ROOM = FOUND_COLUMNS + RECORD * RING + 4


@inlined
def record_at(ring: Any, i: Any) -> Any:
    return ring + (i & (RING - 1)) * (8 * RECORD)


@inlined
def neighbours(ring: Any, i: Any) -> Any:
    return record_at(ring, i - 1), record_at(ring, i), record_at(ring, i + 1)


@inlined
def part(record: Any, field: Any) -> Any:
    return record + 8 * field


@inlined
def forget(token: Any) -> Any:
    put(token, PAIR_STATE, np.int64(IDLE))
    put(token, ONE_STATE, np.int64(IDLE))
    put(token, TRI_FOUND + ROW, np.int64(0))
    put(token, PAIR_FOUND + ROW, np.int64(0))
    put(token, ONE_FOUND + ROW, np.int64(0))


@inlined
def feed(token: Any, cursor: Any, tokens: Any, offsets: Any, texts: Any) -> Any:
    """The next token, or the gap around texts, into a record. cursor: next token, end of its text, next
    text."""
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
    forget(token)


@inlined
def order_at(orders: Any, order: Any) -> Any:
    return orders + 8 * ORDER_COLUMNS * order


@inlined
def note(token: Any, at: Any, key: Any, order: Any) -> Any:
    """Note a key and its hash from word `at` on, and ask for what the filter says about it."""
    hashed = mix(key)
    put(token, at + KEY, np.int64(key))
    put(token, at + HASH, np.int64(hashed))
    ask_filters(order, hashed)


@inlined
def ask(token: Any, at: Any, levels: Any, order: Any) -> Any:
    """Ask for the slots of the n-gram noted, in the levels that may have it."""
    key, hashed = np.uint64(get(token, at + KEY)), np.uint64(get(token, at + HASH))
    left = sift(order, hashed)
    put(token, at + LEFT_OVER, np.int64(left))
    ask_levels(levels, order, key, hashed, left)


@inlined
def seek(token: Any, at: Any, found: Any, levels: Any, segs: Any, order: Any) -> Any:
    """Fill the words from `found` on with where the n-gram noted is; whether any level has its
    fingerprint."""
    key, hashed = np.uint64(get(token, at + KEY)), np.uint64(get(token, at + HASH))
    return seek_levels(
        levels, segs, order, key, hashed, np.uint64(get(token, at + LEFT_OVER)), part(token, found)
    )


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
def ask_pair(before: Any, token: Any, levels: Any, orders: Any) -> Any:
    """The bigram that ends with this token, once."""
    if get(token, PAIR_STATE) == IDLE:
        put(token, PAIR_STATE, np.int64(ASKED))
        note(token, PAIR_KEY, pair_key(before, token), order_at(orders, 2))
        ask(token, PAIR_KEY, levels, order_at(orders, 2))


@inlined
def ask_one(token: Any, levels: Any, orders: Any) -> Any:
    if get(token, ONE_STATE) == IDLE:
        put(token, ONE_STATE, np.int64(ASKED))
        note(token, ONE_KEY, one_key(token), order_at(orders, 1))
        ask(token, ONE_KEY, levels, order_at(orders, 1))


@inlined
def seek_pair(token: Any, levels: Any, segs: Any, orders: Any) -> Any:
    if get(token, PAIR_STATE) == ASKED:
        put(token, PAIR_STATE, np.int64(SOUGHT))
        seek(token, PAIR_KEY, PAIR_FOUND, levels, segs, order_at(orders, 2))


@inlined
def seek_one(token: Any, levels: Any, segs: Any, orders: Any) -> Any:
    if get(token, ONE_STATE) == ASKED:
        put(token, ONE_STATE, np.int64(SOUGHT))
        seek(token, ONE_KEY, ONE_FOUND, levels, segs, order_at(orders, 1))


@inlined
def probe_trigram(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """Where the trigram is, or else the bigrams on either side of the token asked for. Whether there was
    none."""
    if get(token, INDEX) == GAP or seek(token, TRI_KEY, TRI_FOUND, levels, segs, order_at(orders, 3)):
        return False
    if get(before, TOKEN) != 0:
        ask_pair(before, token, levels, orders)
    if get(after, TOKEN) != 0:
        ask_pair(token, after, levels, orders)
    return True


@inlined
def done(token: Any) -> Any:
    """Whether a record needs no back-off: its trigram was found, or it is a gap."""
    return get(token, TRI_FOUND + ROW) != 0 or get(token, INDEX) == GAP


@inlined
def probe_pairs(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """Where the bigrams are, or else the tokens that they leave out asked for."""
    if done(token):
        return
    seek_pair(token, levels, segs, orders)
    seek_pair(after, levels, segs, orders)
    left = get(before, TOKEN) != 0 and get(token, PAIR_FOUND + ROW) != 0
    right = get(after, TOKEN) != 0 and get(after, PAIR_FOUND + ROW) != 0
    if get(before, TOKEN) != 0 and not left:
        ask_one(before, levels, orders)
    if not left and not right:
        ask_one(token, levels, orders)
    if get(after, TOKEN) != 0 and not right:
        ask_one(after, levels, orders)


@inlined
def probe_ones(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    if not done(token):
        seek_one(before, levels, segs, orders)
        seek_one(token, levels, segs, orders)
        seek_one(after, levels, segs, orders)


@compiled
def probe_exactly(before: Any, token: Any, after: Any, levels: Any, segs: Any, orders: Any) -> Any:
    """The slow tail: an n-gram of this window was another one of the same fingerprint. All again, by their
    keys."""
    zero, tri, two, one = np.uint64(0), order_at(orders, 3), order_at(orders, 2), order_at(orders, 1)
    key = trigram_key(before, token, after)
    seek_exactly(levels, segs, get(tri, FIRST), get(tri, END), key, zero, 1, part(token, TRI_FOUND))
    for last, here in ((before, token), (token, after)):
        key = pair_key(last, here)
        put(here, PAIR_KEY, np.int64(key))
        seek_exactly(levels, segs, get(two, FIRST), get(two, END), key, zero, 1, part(here, PAIR_FOUND))
    for here in (before, token, after):
        put(here, ONE_KEY, np.int64(one_key(here)))
        seek_exactly(
            levels, segs, get(one, FIRST), get(one, END), one_key(here), zero, 1, part(here, ONE_FOUND)
        )
