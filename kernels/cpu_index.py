"""numba bodies of the index: build, probe, resolve along a chain. Integers and arrays only.

An index is uint64 [cap] slots: high 32 bits a fingerprint, low 32 bits a row id, `EMPTY_SLOT` when free.
Collisions go to the next slot, wrapping round. A row id is (ordinal of the segment << shift) | row.
Slots come from a file: no value read from one is followed before it has been bounded.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.jit import carray, compiled, inlined, pointer, prefetch
from kernels.layout import EMPTY_SLOT

EMPTY = np.uint64(EMPTY_SLOT)
LOW32 = np.uint64(0xFFFFFFFF)
HALF = np.uint64(32)
ONE = np.uint64(1)
MULTIPLIER = np.uint64(0xD6E8FEB86659FD93)
# columns of the level table (one level = one index) and of the segment table
IDX, CAP, SEG0, NSEG, SHIFT, DTYPE, DEPTH, LEVEL_COLUMNS = 0, 1, 2, 3, 4, 5, 6, 7
BASE, COUNT, STRIDE, SEGMENT_COLUMNS = 0, 1, 2, 3


@inlined
def u64_at(addr: Any) -> Any:
    return carray(pointer(addr), (1,), np.uint64)[0]


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
def home_of(hashed: Any, cap: Any) -> Any:
    return np.int64(((hashed >> HALF) * np.uint64(cap)) >> HALF)


@compiled
def build(keys: Any, starts: Any, shift: Any, slots: Any) -> Any:
    """Fill `slots` (all EMPTY) with every key; of equal keys the last wins. Returns the number of distinct keys.

    keys uint64 [n]: the keys of the segments one after another; starts int64 [segments + 1]: where each begins.
    """
    cap = slots.size
    distinct = 0
    row_mask = (np.int64(1) << shift) - np.int64(1)
    for s in range(starts.size - 1):
        for i in range(starts[s], starts[s + 1]):
            h = mix(keys[i])
            p = home_of(h, cap)
            value = ((h & LOW32) << HALF) | np.uint64((np.int64(s) << shift) | (i - starts[s]))
            while True:
                slot = slots[p]
                if slot == EMPTY:
                    distinct += 1
                    break
                if (slot >> HALF) == (h & LOW32):
                    old = np.int64(slot & LOW32)
                    if keys[starts[old >> shift] + (old & row_mask)] == keys[i]:
                        break
                p += 1
                if p == cap:
                    p = 0
            slots[p] = value
    return distinct


@inlined
def row_address(levels: Any, segs: Any, level: Any, row_id: Any) -> Any:
    """Address of a row, 0 when the id lies outside what the level covers (a damaged index)."""
    shift = levels[level, SHIFT]
    ordinal = row_id >> shift
    if ordinal >= levels[level, NSEG]:
        return np.int64(0)
    seg = levels[level, SEG0] + ordinal
    row = row_id - (ordinal << shift)
    if row >= segs[seg, COUNT]:
        return np.int64(0)
    return segs[seg, BASE] + row * segs[seg, STRIDE]


@inlined
def probe(levels: Any, segs: Any, level: Any, hashed: Any, skip: Any) -> Any:
    """The address of the `skip`-th row whose fingerprint matches, 0 if there is none. Never loops for ever."""
    base, cap = levels[level, IDX], levels[level, CAP]
    mark = hashed & LOW32
    p = home_of(hashed, cap)
    for _ in range(cap):
        slot = u64_at(base + p * 8)
        if slot == EMPTY:
            return np.int64(0)
        if (slot >> HALF) == mark:
            found = row_address(levels, segs, level, np.int64(slot & LOW32))
            if found != 0:
                if skip == 0:
                    return found
                skip -= 1
        p += 1
        if p == cap:
            p = 0
    return np.int64(0)


@compiled
def probe_again(levels: Any, segs: Any, level: Any, key: Any, hashed: Any) -> Any:
    """The slow tail: another key carries this fingerprint (one look-up in some four thousand million)."""
    skip = 1
    while True:
        found = probe(levels, segs, level, hashed, skip)
        if found == 0 or u64_at(found) == key:
            return found
        skip += 1


@compiled
def resolve(levels: Any, segs: Any, lo: Any, hi: Any, keys: Any, m: Any, addr: Any, lev: Any) -> Any:
    """For keys[:m] set addr to the row's address (0 = absent) and lev to the level, trying levels lo..hi in order.

    Three passes a level (slots asked for, rows asked for, keys compared) so that the cache misses overlap.
    Returns how many are absent.
    """
    todo = np.empty(m, np.int64)
    hashes = np.empty(m, np.uint64)
    for i in range(m):
        addr[i] = 0
        lev[i] = -1
        todo[i] = i
        hashes[i] = mix(keys[i])
    left = m
    for level in range(lo, hi):
        base, cap = levels[level, IDX], levels[level, CAP]
        for q in range(left):
            prefetch(base + home_of(hashes[todo[q]], cap) * 8)
        for q in range(left):
            i = todo[q]
            addr[i] = probe(levels, segs, level, hashes[i], 0)
            prefetch(addr[i])
        waiting = 0
        for q in range(left):
            i = todo[q]
            if addr[i] != 0 and u64_at(addr[i]) != keys[i]:
                addr[i] = probe_again(levels, segs, level, keys[i], hashes[i])
            if addr[i] != 0:
                lev[i] = level
            else:
                todo[waiting] = i
                waiting += 1
        left = waiting
        if left == 0:
            break
    return left
