"""numba bodies that seek batches of n-grams along a chain, and confirm what was found by
the keys in the rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, get, inlined, load_u8, load_u64, put, store_u8
from hmi_kernels.lookup.cpu_index import (
    BIT,
    CAP,
    COLLISION,
    CONFIRMED,
    DAMAGED,
    DIRECT,
    EMPTY,
    FOUND_BYTES,
    HALF,
    IDX,
    LEVEL,
    LOW32,
    ORDER,
    ROW,
    STRIDE,
    hash_of,
    is_checked,
    is_collision,
    level_at,
    next_match,
    place_of,
    prefetch_row,
    prefetch_slot,
    row_id_at,
    same_key,
    seek_direct,
    seek_level,
)
from hmi_kernels.lookup.cpu_rows import row_is_sound
from hmi_kernels.lookup.layout import TAG_SHIFT

CHUNK = 64  # rows prefetched together
ONE_TAG = np.uint64(1 << TAG_SHIFT)


@compiled
def seek_exactly(
    levels: Any, segs: Any, lo: Any, hi: Any, low: Any, high: Any, words: Any, found: Any
) -> Any:
    """Seek an n-gram by key in levels lo..hi-1: the slow path after a collision (one look-up in 2**32)."""
    hashed = hash_of(low, high, words)
    for number in range(lo, hi):
        level = level_at(levels, number)
        if get(level, DIRECT):
            if seek_direct(level, segs, low, found) and same_key(get(found, ROW), low, high, words):
                return
            continue
        step = next_match(level, hashed, np.int64(0))
        while step >= 0:
            inside = place_of(level, segs, row_id_at(level, hashed, step), found)
            if inside and same_key(get(found, ROW), low, high, words):
                return
            step = next_match(level, hashed, step + 1)
    put(found, ROW, np.int64(0))


@compiled
def seek(levels: Any, segs: Any, lo: Any, hi: Any, keys: Any, m: Any, words: Any, found: Any) -> Any:
    """Seek keys[:m] in levels lo..hi-1, one level after the other, by fingerprint. Reads no row.

    keys uint64 [≥ m, 2]: low word, high word. Fills found int64 [≥ m, FOUND_COLUMNS]. All slots of a level
    are prefetched before the first is used, so that the cache misses overlap.
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
            prefetch_slot(level, keys[todo[q], 0], hashes[todo[q]])
        waiting = 0
        for q in range(left):
            i = todo[q]
            if not seek_level(level, segs, keys[i, 0], hashes[i], first + FOUND_BYTES * i):
                todo[waiting] = i
                waiting += 1
        left = waiting


@compiled
def first_use(headers: Any, found: Any) -> Any:
    """Check a row's checksum and mark the row as checked. False if the check fails."""
    level, bit = get(found, LEVEL), get(found, BIT)
    if not row_is_sound(get(found, ROW), get(level, STRIDE), get(headers, get(level, ORDER))):
        return False
    # Not atomic: if another thread's write undoes the bit, the row is only checked again.
    store_u8(bit >> 3, np.uint8(load_u8(bit >> 3) | np.uint8(1 << (bit & 7))))
    return True


@inlined
def confirmed(headers: Any, found: Any, low: Any, high: Any, words: Any) -> Any:
    """Compare the key in the row `found` with the one sought; the row is checked on first use.

    Returns CONFIRMED, COLLISION for another n-gram of the same fingerprint, or DAMAGED if the check fails
    or the row's key has another fingerprint than the index says.
    """
    bit = get(found, BIT)
    if not is_checked(bit) and not first_use(headers, found):
        return DAMAGED
    row = get(found, ROW)
    if same_key(row, low, high, words):
        return CONFIRMED
    return COLLISION if is_collision(get(found, LEVEL), row, hash_of(low, high, words), words) else DAMAGED


@compiled
def confirm(
    levels: Any,
    segs: Any,
    headers: Any,
    lo: Any,
    hi: Any,
    keys: Any,
    m: Any,
    words: Any,
    found: Any,
    check: Any,
) -> Any:
    """Confirm what `seek` found for keys[:m] by the keys in the rows; after collisions, seek again by key.

    check: whether rows are checked on first use. Returns -1, or the index of a key whose row is damaged.
    """
    for i in range(m):
        if i % CHUNK == 0:
            for following in range(i, min(i + CHUNK, m)):
                prefetch_row(found.ctypes.data + FOUND_BYTES * following)
        one, low, high = found.ctypes.data + FOUND_BYTES * i, keys[i, 0], keys[i, 1]
        if get(one, ROW) == 0:
            continue
        if check:
            state = confirmed(headers, one, low, high, words)
        else:
            state = CONFIRMED if same_key(get(one, ROW), low, high, words) else COLLISION
        if state == COLLISION:
            seek_exactly(levels, segs, lo, hi, low, high, words, one)
            if check and get(one, ROW) != 0:
                state = confirmed(headers, one, low, high, words)
        if state == DAMAGED:
            return i
    return -1


@compiled
def misplaced(level: Any, segs: Any, words: Any, found: Any) -> Any:
    """Return whether any row of an index has another key than its slot says; the first such goes to
    `found`."""
    at = found.ctypes.data
    for p in range(get(level, CAP)):
        slot = load_u64(get(level, IDX) + 8 * p)
        if slot == EMPTY or not place_of(level, segs, np.int64(slot & LOW32), at):
            continue
        row = get(at, ROW)
        low, high = load_u64(row), load_u64(row + 8)
        if get(level, DIRECT):
            right = low == ONE_TAG | np.uint64(p)
        else:
            right = hash_of(low, high, words) & LOW32 == slot >> HALF
        if not right:
            return True
    return False
