"""numba bodies that build indexes and their filters."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, prefetch
from hmi_kernels.lookup.cpu_index import EMPTY, HALF, LOW32, filter_bits, hash_of, home_of

BATCH = 128  # keys whose slots are prefetched together


@compiled
def build(keys: Any, starts: Any, shift: Any, salt: Any, reach: Any, slots: Any) -> Any:
    """Insert all keys into `slots`, which are all EMPTY; of equal keys the last one stays.

    keys uint64 [n, words]: the segments' keys, one segment after another. starts int64 [segments + 1]:
    where each segment begins. Returns the number of distinct keys, or -1 if one would lie `reach` slots or
    more after its home slot.
    """
    cap, words, distinct = slots.size, keys.shape[1], 0
    base = slots.ctypes.data
    hashes, homes = np.empty(BATCH, np.uint64), np.empty(BATCH, np.int64)
    for s in range(starts.size - 1):
        for begin in range(starts[s], starts[s + 1], BATCH):
            count = min(BATCH, starts[s + 1] - begin)
            for j in range(count):
                hashes[j] = hash_of(keys[begin + j, 0], keys[begin + j, words - 1], words)
                homes[j] = home_of(hashes[j], cap, salt)
                prefetch(base + 8 * homes[j])
            for j in range(count):
                row_id = (np.int64(s) << shift) | (begin + j - starts[s])
                new = insert(
                    slots, homes[j], reach, hashes[j] & LOW32, row_id, keys, starts, shift, begin + j
                )
                if new < 0:
                    return -1
                distinct += new
    return distinct


@compiled
def insert(
    slots: Any, p: Any, left: Any, fingerprint: Any, row_id: Any, keys: Any, starts: Any, shift: Any, i: Any
) -> Any:
    """Insert key i at slot p or after it; it replaces an older row of the same n-gram.

    Returns 1 for a new n-gram, 0 for a replaced one, -1 if it would lie `left` slots or more after p.
    """
    words, new = keys.shape[1], 1
    while slots[p] != EMPTY:
        if (slots[p] >> HALF) == fingerprint:
            old = np.int64(slots[p] & LOW32)
            old = starts[old >> shift] + (old & ((np.int64(1) << shift) - 1))
            if keys[old, 0] == keys[i, 0] and keys[old, words - 1] == keys[i, words - 1]:
                new = 0
                break
        p = p + 1 if p + 1 < slots.size else 0
        left -= 1
        if left == 0:
            return -1
    slots[p] = (fingerprint << HALF) | np.uint64(row_id)
    return new


@compiled
def build_direct(tokens: Any, ids: Any, slots: Any) -> Any:
    """Set slots[tokens[i]] = ids[i] for all i in turn; `slots` are all EMPTY. Returns the
    number of slots used."""
    distinct = 0
    for i in range(tokens.size):
        distinct += slots[tokens[i]] == EMPTY
        slots[tokens[i]] = ids[i]
    return distinct


@compiled
def fill_filter(slots: Any, lane: Any, groups: Any) -> Any:
    """Add the fingerprints of an index to its lane of a filter, uint64 [groups, lanes]."""
    for slot in slots:
        if slot != EMPTY:
            fingerprint = slot >> HALF
            groups[np.int64((fingerprint * np.uint64(groups.shape[0])) >> HALF), lane] |= filter_bits(
                fingerprint
            )
