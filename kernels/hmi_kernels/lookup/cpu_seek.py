"""numba bodies that seek whole batches of n-grams along a chain and compare what was found with the rows'
keys."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, get, inlined, load_u8, load_u64, put, store_u8
from hmi_kernels.lookup.cpu_index import (
    BIT,
    CAP,
    DAMAGED,
    DIRECT,
    EMPTY,
    FOUND_BYTES,
    HALF,
    IDX,
    LEVEL,
    LIES,
    LOW32,
    ORDER,
    ROW,
    STRIDE,
    TRUE,
    ask_level,
    ask_row,
    hash_of,
    is_checked,
    is_meant,
    level_at,
    next_match,
    place_of,
    row_id_at,
    same_key,
    seek_direct,
    seek_level,
)
from hmi_kernels.lookup.cpu_rows import row_is_sound
from hmi_kernels.lookup.layout import TAG_SHIFT

CHUNK = 64  # rows asked for together
ONE_TAG = np.uint64(1 << TAG_SHIFT)


@compiled
def seek_exactly(
    levels: Any, segs: Any, lo: Any, hi: Any, low: Any, high: Any, words: Any, found: Any
) -> Any:
    """The slow tail: another n-gram carried the fingerprint (one look-up in some four thousand million)."""
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
    """Look for keys[:m] in levels lo..hi-1 in turn, by fingerprint alone.

    keys uint64 [.., 2] (low word, high word); found int64 [.., FOUND_COLUMNS]. The slots of a level are all
    asked for before the first is used, so that the cache misses overlap. Touches no row.
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
    """Check a row that nobody used since it was mapped, and mark it. False: its bytes are not what was
    written."""
    level, bit = get(found, LEVEL), get(found, BIT)
    if not row_is_sound(get(found, ROW), get(level, STRIDE), get(headers, get(level, ORDER))):
        return False
    # a bit that another thread's write undoes only means another check
    store_u8(bit >> 3, np.uint8(load_u8(bit >> 3) | np.uint8(1 << (bit & 7))))
    return True


@inlined
def confirmed(headers: Any, found: Any, low: Any, high: Any, words: Any) -> Any:
    """Whether `found` is this n-gram (TRUE) or another of its fingerprint (LIES); its row is checked on first
    use.

    A row that is neither is DAMAGED: the index, which was read whole, does not mean it.
    """
    bit = get(found, BIT)
    if not is_checked(bit) and not first_use(headers, found):
        return DAMAGED
    row = get(found, ROW)
    if same_key(row, low, high, words):
        return TRUE
    return LIES if is_meant(get(found, LEVEL), row, hash_of(low, high, words), words) else DAMAGED


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
    """Compare what `seek` found with the keys in the rows and check rows on first use. -1, or which is
    damaged."""
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


@compiled
def misplaced(level: Any, segs: Any, words: Any, found: Any) -> Any:
    """Whether a row under an index has another key than the index means: the first such into `found` int64
    [..]."""
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
