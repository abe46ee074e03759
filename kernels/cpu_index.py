"""numba bodies of the index: probe and resolve along a chain. Integers and addresses only.

A hash index is uint64 [cap] slots: high 32 bits a fingerprint, low 32 bits a row id, `EMPTY_SLOT` when free.
Collisions go to the next slot, wrapping round. A direct index (unigrams) has a slot for each token: a row id or
`EMPTY_SLOT`. A row id is (ordinal of the segment << shift) | row.
Slots come from a file: no value read from one is followed before it has been bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu_rows import row_is_sound
from kernels.jit import compiled, get, inlined, load_u8, load_u64, lowest_bit, match8, prefetch, put, store_u8
from kernels.layout import EMPTY_SLOT, FIELD_BITS

EMPTY = np.uint64(EMPTY_SLOT)
LOW32 = np.uint64(0xFFFFFFFF)
LOW8 = np.uint64(0xFF)
HALF = np.uint64(32)
EIGHT = np.uint64(8)
ONE = np.uint64(1)
LAST_ID = np.uint64((1 << FIELD_BITS) - 1)
MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
# fields of a level (one index; the columns of the level table) and of a segment
IDX, CAP, SEG0, NSEG, SHIFT, DTYPE, DEPTH, DIRECT, ORDER, STRIDE, LEVEL_COLUMNS = 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10
BASE, COUNT, SEEN, SEGMENT_COLUMNS = 0, 1, 2, 3
# fields of a found n-gram: address of its row (0 = absent), level, its `verified` bit (address in bits)
ROW, LEVEL, BIT, FOUND_COLUMNS = 0, 1, 2, 3
FOUND_BYTES = 8 * FOUND_COLUMNS
TRUE, LIES, DAMAGED = 1, 0, -3
CHUNK = 64  # rows asked for together


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
def home_of(hashed: Any, cap: Any) -> Any:
    return np.int64(((hashed >> HALF) * np.uint64(cap)) >> HALF)


@inlined
def level_at(levels: Any, level: Any) -> Any:
    return levels + 8 * LEVEL_COLUMNS * level


@inlined
def next_match(base: Any, cap: Any, hashed: Any, step: Any) -> Any:
    """Steps from the home slot to the first with this fingerprint, `step` or more; -1 if a free slot comes before.

    Whole cache lines are compared; what lies in one before or after the slots is left out of the answer.
    """
    p = home_of(hashed, cap) + step
    p = p - cap if p >= cap else p
    while step < cap:
        at = base + p * 8
        lane = (at >> 3) & 7
        width = min(8 - lane, cap - p)
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
def row_id_at(base: Any, cap: Any, hashed: Any, step: Any) -> Any:
    """The row id in the slot `step` after the home."""
    p = home_of(hashed, cap) + step
    return np.int64(load_u64(base + (p - cap if p >= cap else p) * 8) & LOW32)


@inlined
def place_of(level: Any, segs: Any, row_id: Any, found: Any) -> Any:
    """Fill `found` from a row id and say whether it lies inside what the level covers (a damaged index may lie)."""
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
    base, cap = get(level, IDX), get(level, CAP)
    step = np.int64(0)
    while True:
        step = next_match(base, cap, hashed, step)
        if step < 0:
            return False
        if place_of(level, segs, row_id_at(base, cap, hashed, step), found):
            return True
        step += 1


@inlined
def ask_level(level: Any, low: Any, hashed: Any) -> Any:
    """Ask for the slot where a level would have an n-gram."""
    slot = get(level, IDX) + 8 * (np.int64(low & LAST_ID) if get(level, DIRECT) else home_of(hashed, get(level, CAP)))
    prefetch(slot)
    prefetch(slot + 56)  # a probe from the end of a cache line often goes on to the next


@inlined
def seek_level(level: Any, segs: Any, low: Any, hashed: Any, found: Any) -> Any:
    """Fill `found` from a level by fingerprint; whether there is anything. Touches no row."""
    return seek_direct(level, segs, low, found) if get(level, DIRECT) else seek_hashed(level, segs, hashed, found)


@inlined
def ask_row(found: Any) -> Any:
    """Ask for a row's first line, and for the first of its next page if it has one.

    In a loop of nothing else: the processor waits for the page of what it is asked for, and can wait for many at once.
    """
    row = get(found, ROW)
    if row != 0:
        prefetch(row)
        prefetch(max(row, (row + get(get(found, LEVEL), STRIDE) - 1) & ~4095))
        prefetch(get(found, BIT) >> 3)


@compiled
def seek_exactly(levels: Any, segs: Any, lo: Any, hi: Any, low: Any, high: Any, words: Any, found: Any) -> Any:
    """The slow tail: another n-gram carried the fingerprint (one look-up in some four thousand million)."""
    hashed = hash_of(low, high, words)
    for number in range(lo, hi):
        level = level_at(levels, number)
        if get(level, DIRECT):
            if seek_direct(level, segs, low, found) and same_key(get(found, ROW), low, high, words):
                return
            continue
        base, cap = get(level, IDX), get(level, CAP)
        step = next_match(base, cap, hashed, np.int64(0))
        while step >= 0:
            inside = place_of(level, segs, row_id_at(base, cap, hashed, step), found)
            if inside and same_key(get(found, ROW), low, high, words):
                return
            step = next_match(base, cap, hashed, step + 1)
    put(found, ROW, np.int64(0))


@compiled
def seek(levels: Any, segs: Any, lo: Any, hi: Any, keys: Any, m: Any, words: Any, found: Any) -> Any:
    """Look for keys[:m] in levels lo..hi-1 in turn, by fingerprint alone.

    keys uint64 [.., 2] (low word, high word); found int64 [.., FOUND_COLUMNS]. The slots of a level are all asked for
    before the first is used, so that the cache misses overlap. Touches no row.
    """
    todo, hashes = np.empty(m, np.int64), np.empty(m, np.uint64)
    first = found.ctypes.data
    for i in range(m):
        found[i, ROW] = 0
        todo[i] = i
        hashes[i] = hash_of(keys[i, 0], keys[i, 1], words)
    left = m
    for number in range(lo, hi):
        level = level_at(levels, number)
        for q in range(left):
            ask_level(level, keys[todo[q], 0], hashes[todo[q]])
        waiting = 0
        for q in range(left):
            i = todo[q]
            if not seek_level(level, segs, keys[i, 0], hashes[i], first + FOUND_BYTES * i):
                todo[waiting] = i
                waiting += 1
        left = waiting


@compiled
def first_use(headers: Any, found: Any) -> Any:
    """Check a row that nobody used since it was mapped, and mark it. False: its bytes are not what was written."""
    level, bit = get(found, LEVEL), get(found, BIT)
    if not row_is_sound(get(found, ROW), get(level, STRIDE), get(headers, get(level, ORDER))):
        return False
    # a bit that another thread's write undoes only means another check
    store_u8(bit >> 3, np.uint8(load_u8(bit >> 3) | np.uint8(1 << (bit & 7))))
    return True


@inlined
def confirmed(headers: Any, found: Any, low: Any, high: Any, words: Any) -> Any:
    """Whether `found` is this n-gram (TRUE) or another of its fingerprint (LIES); its row is checked on first use."""
    bit = get(found, BIT)
    if not (load_u8(bit >> 3) >> np.uint8(bit & 7)) & np.uint8(1) and not first_use(headers, found):
        return DAMAGED
    return TRUE if same_key(get(found, ROW), low, high, words) else LIES


@compiled
def confirm(
    levels: Any, segs: Any, headers: Any, lo: Any, hi: Any, keys: Any, m: Any, words: Any, found: Any, check: Any
) -> Any:
    """Compare what `seek` found with the keys in the rows and check rows on first use. -1, or which is damaged."""
    for i in range(m):
        if i % CHUNK == 0:
            for following in range(i, min(i + CHUNK, m)):
                ask_row(found.ctypes.data + FOUND_BYTES * following)
        one, low, high = found.ctypes.data + FOUND_BYTES * i, keys[i, 0], keys[i, 1]
        if get(one, ROW) == 0:
            continue
        if check:
            state = confirmed(headers, one, low, high, words)
        else:
            state = TRUE if same_key(get(one, ROW), low, high, words) else LIES
        if state == LIES:
            seek_exactly(levels, segs, lo, hi, low, high, words, one)
            if check and get(one, ROW) != 0:
                state = confirmed(headers, one, low, high, words)
        if state == DAMAGED:
            return i
    return -1
