"""numba bodies of the index: probe and resolve along a chain. Integers and addresses only.

A hash index is uint64 [cap] slots: high 32 bits a fingerprint, low 32 bits a row id, `EMPTY_SLOT` when free.
A collision goes to the next slot, wrapping round. An n-gram's home slot depends on the index's salt, which
nobody knows before the rows exist, and a search ends after `REACH` slots, so no text can be written to make
searches long. A direct index (unigrams) has a slot for each token: a row id or `EMPTY_SLOT`. A row id is
(ordinal of the segment << shift) | row. Before the nearer levels of an n-gram are probed, a filter in memory
says which of them may have it. It keeps `lanes` words together, one for each level; an n-gram of a level sets
three bits in that level's word. Slots come from a file: each value is bounded before it is followed.
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
# fields of a table: addresses, numbers of a vector, whether rows of other types than int8 occur
LEVELS, SEGS, ORDERS, HEADERS, ZEROS, DIM, MIXED, TABLE_FIELDS = 0, 1, 2, 3, 4, 5, 6, 7
# fields of a level (one index; the columns of the level table) and of a segment
IDX, CAP, SEG0, NSEG, SHIFT, DTYPE, DEPTH, DIRECT, ORDER, STRIDE, SALT, FAR, LEVEL_COLUMNS = range(13)
BASE, COUNT, SEEN, SEGMENT_COLUMNS = 0, 1, 2, 3
# fields of an order: its levels (first, end); the filter over the first `LANES` of them, how many groups of
# words it has (0: no filter) and a word with the bits of levels that it does not know; the filter of the last
# level alone, which is mostly much larger, how many words it has (0: no filter) and that level's bit
FIRST, END, FILTER, GROUPS, LANES, UNKNOWN, LAST_FILTER, LAST_WORDS, LAST_BIT, ORDER_COLUMNS = (
    0,
    1,
    2,
    3,
    4,
    5,
    6,
    7,
    8,
    9,
)
# fields of a found n-gram: address of its row (0 = absent), level, its `verified` bit (address in bits)
ROW, LEVEL, BIT, FOUND_COLUMNS = 0, 1, 2, 3
AT_ONCE = 4096  # bytes of a row that are asked for before it is checked
FOUND_BYTES = 8 * FOUND_COLUMNS
TRUE, LIES, DAMAGED = 1, 0, -3


@inlined
def mix(key: Any) -> Any:
    """A bijection of uint64 whose both halves look random."""
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
    """Salts are odd; `PLAIN_SALT` leaves the hash as it is."""
    factor = np.uint64(salt)
    return np.int64(((((hashed ^ (factor >> ONE)) * factor) >> HALF) * np.uint64(cap)) >> HALF)


@inlined
def level_at(levels: Any, level: Any) -> Any:
    return levels + 8 * LEVEL_COLUMNS * level


@inlined
def next_match(level: Any, hashed: Any, step: Any) -> Any:
    """Steps from the home slot to the first with this fingerprint, `step` or more; -1 if a free slot or the
    end of the search comes before.

    Whole cache lines are compared; what lies in one before or after the slots is left out of the answer.
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
    """The row id in the slot `step` after the home."""
    cap = get(level, CAP)
    p = home_of(hashed, cap, get(level, SALT)) + step
    return np.int64(load_u64(get(level, IDX) + (p - cap if p >= cap else p) * 8) & LOW32)


@inlined
def place_of(level: Any, segs: Any, row_id: Any, found: Any) -> Any:
    """Fill `found` from a row id and say whether it lies inside what the level covers (a damaged index may
    lie)."""
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
def is_meant(level: Any, addr: Any, hashed: Any, words: Any) -> Any:
    """Whether a row that has another key than what led to it may be what the index means here: an n-gram of
    the same fingerprint. Else a sound row, perhaps, though in another one's place."""
    if get(level, DIRECT):
        return False
    return (hash_of(load_u64(addr), load_u64(addr + 8), words) ^ hashed) & LOW32 == 0


@inlined
def seek_direct(level: Any, segs: Any, low: Any, found: Any) -> Any:
    """Fill `found` from a direct index; whether there is anything."""
    token = np.int64(low & LAST_ID)
    if token >= get(level, CAP):
        return False
    slot = load_u64(get(level, IDX) + token * 8)
    return slot <= LOW32 and place_of(level, segs, np.int64(slot), found)


@inlined
def seek_hashed(level: Any, segs: Any, hashed: Any, found: Any) -> Any:
    """Fill `found` from the first slot with this fingerprint; whether there is one. Touches no row."""
    step = np.int64(0)
    while True:
        step = next_match(level, hashed, step)
        if step < 0:
            return False
        if place_of(level, segs, row_id_at(level, hashed, step), found):
            return True
        step += 1


@inlined
def ask_level(level: Any, low: Any, hashed: Any) -> Any:
    """Ask for the slot where a level would have an n-gram."""
    place = (
        np.int64(low & LAST_ID) if get(level, DIRECT) else home_of(hashed, get(level, CAP), get(level, SALT))
    )
    slot = get(level, IDX) + 8 * place
    prefetch(slot)
    prefetch(slot + 56)  # a probe from the end of a cache line often goes on to the next


@inlined
def seek_level(level: Any, segs: Any, low: Any, hashed: Any, found: Any) -> Any:
    """Fill `found` from a level by fingerprint; whether there is anything. Touches no row."""
    return (
        seek_direct(level, segs, low, found)
        if get(level, DIRECT)
        else seek_hashed(level, segs, hashed, found)
    )


@inlined
def filter_bits(mark: Any) -> Any:
    """The three bits that a fingerprint sets in its word."""
    six = np.uint64(63)
    return (
        (ONE << (mark & six))
        | (ONE << ((mark >> np.uint64(6)) & six))
        | (ONE << ((mark >> np.uint64(12)) & six))
    )


@inlined
def filter_at(order: Any, mark: Any) -> Any:
    """Where an order's filter has the words of a fingerprint."""
    group = np.int64((mark * np.uint64(get(order, GROUPS))) >> HALF)
    return get(order, FILTER) + 8 * get(order, LANES) * group


@inlined
def last_filter_at(order: Any, mark: Any) -> Any:
    return get(order, LAST_FILTER) + 8 * np.int64((mark * np.uint64(get(order, LAST_WORDS))) >> HALF)


@inlined
def ask_filters(order: Any, hashed: Any) -> Any:
    prefetch(filter_at(order, hashed & LOW32))
    prefetch(last_filter_at(order, hashed & LOW32))


@inlined
def sift(order: Any, hashed: Any) -> Any:
    """Which of an order's levels may have an n-gram: bit i for the i-th, ones for all that no filter
    knows."""
    mark, left = hashed & LOW32, ~np.uint64(0)
    bits = filter_bits(mark)
    if get(order, GROUPS) != 0:
        at, left = filter_at(order, mark), np.uint64(get(order, UNKNOWN))
        for lane in range(0, get(order, LANES), 4):
            left |= sieve4(at + 8 * lane, bits) << np.uint64(lane)
    if get(order, LAST_WORDS) != 0:
        absent = load_u64(last_filter_at(order, mark)) & bits != bits
        left &= ~(np.uint64(get(order, LAST_BIT)) if absent else np.uint64(0))
    return left


@inlined
def next_level(left: Any, step: Any) -> Any:
    """The level after `step` that `left` has: beyond 64 levels there is no filter."""
    return lowest_bit(left) if step < 63 else step + 1


@inlined
def ask_levels(levels: Any, order: Any, low: Any, hashed: Any, left: Any) -> Any:
    """Ask for the slots where the levels that are left would have an n-gram."""
    step = lowest_bit(left)
    while get(order, FIRST) + step < get(order, END):
        ask_level(level_at(levels, get(order, FIRST) + step), low, hashed)
        left &= left - ONE
        step = next_level(left, step)


@inlined
def seek_levels(levels: Any, segs: Any, order: Any, low: Any, hashed: Any, left: Any, found: Any) -> Any:
    """Fill `found` from the first level that has the fingerprint; whether there is one. Touches no row."""
    step = lowest_bit(left)
    while get(order, FIRST) + step < get(order, END):
        if seek_level(level_at(levels, get(order, FIRST) + step), segs, low, hashed, found):
            return True
        left &= left - ONE
        step = next_level(left, step)
    return False


@inlined
def is_checked(bit: Any) -> Any:
    """Whether the row of a `verified` bit has been checked since it was mapped."""
    return (load_u8(bit >> 3) >> np.uint8(bit & 7)) & np.uint8(1) != 0


@compiled
def ask_whole(row: Any, size: Any) -> Any:
    """Ask for a row that will be checked: its check is too slow to run from one cache miss into the next."""
    for at in range(0, min(size, AT_ONCE), 64):
        prefetch(row + at)


@inlined
def ask_row(found: Any) -> Any:
    """Ask for a row's first line, and for the first of its next page if it has one; for all of one not
    checked yet.

    In a loop of nothing else: the processor waits for the page of what it is asked for, and can wait for many
    at once.
    """
    row = get(found, ROW)
    if row != 0:
        prefetch(row)
        prefetch(max(row, (row + get(get(found, LEVEL), STRIDE) - 1) & ~4095))
        if not is_checked(get(found, BIT)):
            ask_whole(row, get(get(found, LEVEL), STRIDE))
