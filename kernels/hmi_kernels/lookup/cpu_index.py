"""numba bodies of the index: probe and resolve along a chain. Integers and addresses only.

A hash index is an array of slots, uint64 [cap], with linear probing. A slot has a fingerprint in its high
32 bits and a row id in its low 32 bits, or is `EMPTY_SLOT`. An n-gram's home slot depends on the index's
salt, which nobody knows before the rows exist, and a search ends after `REACH` slots, so no text can be
written that makes searches long. A direct index (unigrams only) has a slot for each token: a row id or
`EMPTY_SLOT`. A row id is (ordinal of the segment << shift) | row.

Before the levels are probed, a Bloom filter in memory tells which of them may have an n-gram. It
keeps groups of words, in each group one word (lane) for each level; an n-gram sets three bits in
the words of its levels.

Slots are read from a file, so each value is checked against its bounds before it is used.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import (
    compiled,
    get,
    inlined,
    load_u8,
    load_u64,
    lowest_bit,
    match8,
    prefetch,
    put,
    sieve4,
)
from hmi_kernels.lookup.layout import EMPTY_SLOT, FIELD_BITS

EMPTY = np.uint64(EMPTY_SLOT)
LOW32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
EIGHT = np.uint64(8)
ONE = np.uint64(1)
LAST_ID = np.uint64((1 << FIELD_BITS) - 1)
MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
# The fields of a table: five addresses, the size of a vector, whether rows of other types than int8 occur.
LEVELS, SEGS, ORDERS, HEADERS, ZEROS, DIM, MIXED, TABLE_FIELDS = range(8)
# The fields of a level, which is one index: the columns of `LevelTable.levels`.
IDX, CAP, SEG0, NSEG, SHIFT, DTYPE, DEPTH, DIRECT, ORDER, STRIDE, SALT, FAR, LEVEL_COLUMNS = range(13)
# The fields of a segment: the columns of `LevelTable.segs`.
BASE, COUNT, SEEN, SEGMENT_COLUMNS = range(4)
# The fields of an order. FIRST, END: its levels. FILTER: the filter of the first LANES levels. GROUPS: the
# number of its groups, 0 for no filter. UNKNOWN: a bit for each level that the filter does not cover.
# LAST_FILTER: the filter of the last level, which is usually much larger. LAST_WORDS: the number of its
# words, 0 for no filter. LAST_BIT: the bit of that level.
FIRST, END, FILTER, GROUPS, LANES, UNKNOWN, LAST_FILTER, LAST_WORDS, LAST_BIT, ORDER_COLUMNS = range(10)
# The fields of a found n-gram: the address of its row (0: absent), its level, and the address of its bit in
# `verified`, in bits.
ROW, LEVEL, BIT, FOUND_COLUMNS = range(4)
FOUND_BYTES = 8 * FOUND_COLUMNS
PREFETCH_BYTES = 4096  # of a row that is going to be checked
# What a row found by fingerprint is: the n-gram sought, another one with the same fingerprint, or damaged.
CONFIRMED, COLLISION, DAMAGED = 1, 0, -3


@inlined
def mix(key: Any) -> Any:
    """A bijection of uint64; both halves of the result look random."""
    k = np.uint64(key)
    k ^= k >> HALF
    k *= MULTIPLIER
    k ^= k >> HALF
    k *= MULTIPLIER
    k ^= k >> HALF
    return k


@inlined
def hash_of(low: Any, high: Any, words: Any) -> Any:
    """The hash of a key of one word (low) or two."""
    return mix(low) if words == 1 else mix(low ^ mix(high))


@inlined
def home_of(hashed: Any, cap: Any, salt: Any) -> Any:
    """The home slot of a hash. Salts are odd; `PLAIN_SALT` leaves the hash unchanged."""
    factor = np.uint64(salt)
    return np.int64(((((hashed ^ (factor >> ONE)) * factor) >> HALF) * np.uint64(cap)) >> HALF)


@inlined
def level_at(levels: Any, level: Any) -> Any:
    return levels + 8 * LEVEL_COLUMNS * level


@inlined
def next_match(level: Any, hashed: Any, step: Any) -> Any:
    """The distance from the home slot to the next slot with this fingerprint, at least `step`.

    Returns -1 if a free slot or the end of the search comes first. Compares a whole cache line at a time
    and masks what lies in the line before or after the slots.
    """
    base, cap, far = get(level, IDX), get(level, CAP), get(level, FAR)
    p = home_of(hashed, cap, get(level, SALT)) + step
    p = p - cap if p >= cap else p
    while step < far:
        at = base + p * 8
        lane = (at >> 3) & 7
        width = min(8 - lane, cap - p, far - step)
        both = match8(at & ~63, hashed & LOW32) >> np.uint64(lane)
        mine = (ONE << np.uint64(width)) - ONE
        free = (both >> EIGHT) & mine
        same = both & mine & ~free
        if same | free:
            first = lowest_bit(same)
            return step + first if first < lowest_bit(free) else np.int64(-1)
        step += width
        p = p + width if p + width < cap else np.int64(0)
    return np.int64(-1)


@inlined
def row_id_at(level: Any, hashed: Any, step: Any) -> Any:
    """The row id in the slot `step` slots after the home slot."""
    cap = get(level, CAP)
    p = home_of(hashed, cap, get(level, SALT)) + step
    return np.int64(load_u64(get(level, IDX) + (p - cap if p >= cap else p) * 8) & LOW32)


@inlined
def place_of(level: Any, segs: Any, row_id: Any, found: Any) -> Any:
    """Fill `found` from a row id. False if the level has no such row, as may be in a damaged index."""
    ordinal = row_id >> get(level, SHIFT)
    if ordinal >= get(level, NSEG):
        return False
    seg = segs + 8 * SEGMENT_COLUMNS * (get(level, SEG0) + ordinal)
    row = row_id - (ordinal << get(level, SHIFT))
    if row >= get(seg, COUNT):
        return False
    put(found, ROW, get(seg, BASE) + row * get(level, STRIDE))
    put(found, LEVEL, level)
    put(found, BIT, get(seg, SEEN) * 8 + row)
    return True


@inlined
def same_key(addr: Any, low: Any, high: Any, words: Any) -> Any:
    return load_u64(addr) == low and (words == 1 or load_u64(addr + 8) == high)


@inlined
def is_collision(level: Any, addr: Any, hashed: Any, words: Any) -> Any:
    """Return whether a row with another key than the one sought has the same fingerprint. If not, the index
    is damaged, or the row is in another row's place."""
    if get(level, DIRECT):
        return False
    return (hash_of(load_u64(addr), load_u64(addr + 8), words) ^ hashed) & LOW32 == 0


@inlined
def seek_direct(level: Any, segs: Any, low: Any, found: Any) -> Any:
    """Fill `found` from a direct index. Returns whether it has the token."""
    token = np.int64(low & LAST_ID)
    if token >= get(level, CAP):
        return False
    slot = load_u64(get(level, IDX) + token * 8)
    return slot <= LOW32 and place_of(level, segs, np.int64(slot), found)


@inlined
def seek_hashed(level: Any, segs: Any, hashed: Any, found: Any) -> Any:
    """Fill `found` from the first slot with this fingerprint. Returns whether there is one. Reads no row."""
    step = np.int64(0)
    while True:
        step = next_match(level, hashed, step)
        if step < 0:
            return False
        if place_of(level, segs, row_id_at(level, hashed, step), found):
            return True
        step += 1


@inlined
def prefetch_slot(level: Any, low: Any, hashed: Any) -> Any:
    """Prefetch the slot where a level would have an n-gram."""
    if get(level, DIRECT):
        slot = get(level, IDX) + 8 * np.int64(low & LAST_ID)
    else:
        slot = get(level, IDX) + 8 * home_of(hashed, get(level, CAP), get(level, SALT))
    prefetch(slot)
    prefetch(slot + 56)  # a search that starts at the end of a cache line often continues in the next


@inlined
def seek_level(level: Any, segs: Any, low: Any, hashed: Any, found: Any) -> Any:
    """Fill `found` from a level by fingerprint. Returns whether there is a match. Reads no row."""
    if get(level, DIRECT):
        return seek_direct(level, segs, low, found)
    return seek_hashed(level, segs, hashed, found)


@inlined
def filter_bits(fingerprint: Any) -> Any:
    """The three bits that a fingerprint sets in a word of a filter."""
    six = np.uint64(63)
    return (
        (ONE << (fingerprint & six))
        | (ONE << ((fingerprint >> np.uint64(6)) & six))
        | (ONE << ((fingerprint >> np.uint64(12)) & six))
    )


@inlined
def filter_at(order: Any, fingerprint: Any) -> Any:
    """The address of a fingerprint's group in an order's filter."""
    group = np.int64((fingerprint * np.uint64(get(order, GROUPS))) >> HALF)
    return get(order, FILTER) + 8 * get(order, LANES) * group


@inlined
def last_filter_at(order: Any, fingerprint: Any) -> Any:
    """The address of a fingerprint's word in the filter of an order's last level."""
    return get(order, LAST_FILTER) + 8 * np.int64((fingerprint * np.uint64(get(order, LAST_WORDS))) >> HALF)


@inlined
def prefetch_filters(order: Any, hashed: Any) -> Any:
    """Prefetch what `query_filters` reads."""
    at = filter_at(order, hashed & LOW32)
    for line in range(0, max(get(order, LANES), 1), 8):
        prefetch(at + 8 * line)
    prefetch(last_filter_at(order, hashed & LOW32))


@inlined
def query_filters(order: Any, hashed: Any) -> Any:
    """The levels of an order that may have an n-gram: bit i is set for the i-th level. It is set for levels
    without a filter."""
    fingerprint, left = hashed & LOW32, ~np.uint64(0)
    bits = filter_bits(fingerprint)
    if get(order, GROUPS) != 0:
        at, left = filter_at(order, fingerprint), np.uint64(get(order, UNKNOWN))
        for lane in range(0, get(order, LANES), 4):
            left |= sieve4(at + 8 * lane, bits) << np.uint64(lane)
    if get(order, LAST_WORDS) != 0:
        absent = load_u64(last_filter_at(order, fingerprint)) & bits != bits
        left &= ~(np.uint64(get(order, LAST_BIT)) if absent else np.uint64(0))
    return left


@inlined
def next_level(left: Any, step: Any) -> Any:
    """The next level in `left`, after `step` was removed. `left` has 64 bits: every level beyond them
    follows."""
    return lowest_bit(left) if step < 63 else step + 1


@inlined
def prefetch_slots(levels: Any, order: Any, low: Any, hashed: Any, left: Any) -> Any:
    """Prefetch the slots where the levels in `left` would have an n-gram."""
    step = lowest_bit(left)
    while get(order, FIRST) + step < get(order, END):
        prefetch_slot(level_at(levels, get(order, FIRST) + step), low, hashed)
        left &= left - ONE
        step = next_level(left, step)


@inlined
def seek_levels(levels: Any, segs: Any, order: Any, low: Any, hashed: Any, left: Any, found: Any) -> Any:
    """Fill `found` from the first level in `left` with the fingerprint. Returns whether there
    is one. Reads no row."""
    step = lowest_bit(left)
    while get(order, FIRST) + step < get(order, END):
        if seek_level(level_at(levels, get(order, FIRST) + step), segs, low, hashed, found):
            return True
        left &= left - ONE
        step = next_level(left, step)
    return False


@inlined
def is_checked(bit: Any) -> Any:
    """Return whether the row of this `verified` bit has been checked since it was mapped."""
    return (load_u8(bit >> 3) >> np.uint8(bit & 7)) & np.uint8(1) != 0


@compiled
def prefetch_whole_row(row: Any, size: Any) -> Any:
    """Prefetch a row that will be checked, up to PREFETCH_BYTES: the check reads every line of it."""
    for at in range(0, min(size, PREFETCH_BYTES), 64):
        prefetch(row + at)


@inlined
def prefetch_row(found: Any) -> Any:
    """Prefetch a row's first cache line, and the start of its last page; all of a row not checked yet.

    Call it in a loop of nothing else: a prefetch waits for the translation of its page, and the processor
    can wait for many of these at once.
    """
    row = get(found, ROW)
    if row != 0:
        prefetch(row)
        prefetch(max(row, (row + get(get(found, LEVEL), STRIDE) - 1) & ~4095))
        if not is_checked(get(found, BIT)):
            prefetch_whole_row(row, get(get(found, LEVEL), STRIDE))
