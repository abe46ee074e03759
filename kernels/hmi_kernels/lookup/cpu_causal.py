"""numba body of the look-up in causal windows, for any n and back-off. reference.py defines the result.

A token's row is one vector: that of the first n-gram found that ends with the token. Tokens are processed in
blocks, whatever their texts. In a block each step of the back-off seeks the n-grams of the tokens that no
step before has found, in stages: hash and prefetch the filters, query them and prefetch slots, probe,
confirm.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import carray, compiled, get, inlined, load_f32, pointer, prefetch, sum_block
from hmi_kernels.lookup.cpu_any import ONE, set_key
from hmi_kernels.lookup.cpu_batch import OK, checked
from hmi_kernels.lookup.cpu_index import (
    DAMAGED,
    DEPTH,
    DIM,
    DTYPE,
    FOUND_BYTES,
    FOUND_COLUMNS,
    HEADERS,
    LEVEL,
    LEVELS,
    ORDER,
    ORDER_COLUMNS,
    ROW,
    SEGS,
    hash_of,
    prefetch_filters,
    prefetch_slots,
    query_filters,
    seek_levels,
)
from hmi_kernels.lookup.cpu_rows import add_vector, store_bfloat
from hmi_kernels.lookup.cpu_seek import confirm
from hmi_kernels.lookup.layout import WORD_IDS

BLOCK = 256  # tokens: enough cache misses in flight, and the rows still fit the second-level cache
AHEAD = 10  # tokens whose vectors are prefetched ahead of the one that is written


@compiled
def longest(tokens: Any, offsets: Any, n: Any) -> Any:
    """The longest order that may end with each token, int8 [total]: inside the text, not across an id 0."""
    orders = np.empty(tokens.size, np.int8)
    for text in range(offsets.size - 1):
        run = 0
        for i in range(offsets[text], offsets[text + 1]):
            run = min(run + 1, n)
            orders[i] = run
            if tokens[i] == 0:
                run = 0
    return orders


@compiled
def seek(levels: Any, segs: Any, probe: Any, keys: Any, m: Any, words: Any, hashes: Any, found: Any) -> Any:
    """Seek keys[:m], uint64 [≥ m, 2], by fingerprint in the levels of a step. Reads no row.

    probe: the address of the step's row of `LevelTable.probes`. hashes: scratch memory, uint64 [≥ m, 2].
    Fills found int64 [≥ m, FOUND_COLUMNS].
    """
    for i in range(m):
        hashes[i, 0] = hash_of(keys[i, 0], keys[i, 1], words)
        prefetch_filters(probe, hashes[i, 0])
    for i in range(m):
        hashes[i, 1] = query_filters(probe, hashes[i, 0])
        prefetch_slots(levels, probe, keys[i, 0], hashes[i, 0], hashes[i, 1])
    first = found.ctypes.data
    for i in range(m):
        at = first + FOUND_BYTES * i
        if not seek_levels(levels, segs, probe, keys[i, 0], hashes[i, 0], hashes[i, 1], at):
            found[i, ROW] = 0


@compiled
def search(
    table: Any, steps: Any, probes: Any, tokens: Any, orders: Any, begin: Any, sure: Any, room: Any, best: Any
) -> Any:
    """Fill best int64 [m, FOUND_COLUMNS] with the rows of the tokens from `begin` on; ROW is 0 for none.

    orders: of `longest`. room: scratch memory. sure: confirm rows by their keys, and check them on first use.
    Returns -1, or the number of a damaged row in room's records.
    """
    levels, segs, headers = table[LEVELS], table[SEGS], table[HEADERS]
    keys, hashes, found, owners = room
    best[:, ROW] = 0
    for s in range(steps.shape[0]):
        order, lo, hi = steps[s]
        words, m = 1 if order <= WORD_IDS else 2, 0
        for q in range(best.shape[0]):
            end = begin + q + 1
            if best[q, ROW] == 0 and orders[end - 1] >= order:
                set_key(keys, m, tokens[end - order : end])
                owners[m] = q
                m += 1
        seek(levels, segs, probes.ctypes.data + 8 * ORDER_COLUMNS * s, keys, m, words, hashes, found)
        if sure:
            bad = confirm(levels, segs, headers, lo, hi, keys, m, words, found, True)
            if bad >= 0:
                return bad
        for c in range(m):
            for field in range(FOUND_COLUMNS):
                best[owners[c], field] = found[c, field]
    return -1


@inlined
def vector_of(found: Any, headers: Any) -> Any:
    """The address of the one vector of a found row."""
    return get(found, ROW) + get(headers, get(get(found, LEVEL), ORDER))


@inlined
def prefetch_vector(found: Any, headers: Any, dim: Any) -> Any:
    """Prefetch the vector of a found row; nothing if there is none."""
    if get(found, ROW) != 0:
        at = vector_of(found, headers)
        for b in range(0, dim << get(get(found, LEVEL), DTYPE), 64):
            prefetch(at + b)


@compiled
def write_vector(found: Any, headers: Any, dim: Any, out: Any) -> Any:
    """Write the vector of a found row, or zeros, as float32 to the address `out`."""
    row = carray(pointer(out), (dim,), np.float32)
    if get(found, ROW) == 0:
        row[:] = 0
        return
    level = get(found, LEVEL)
    at, kind = vector_of(found, headers), get(level, DTYPE)
    scale = load_f32(get(found, ROW) + (8 if get(level, ORDER) <= WORD_IDS else 16))
    whole = dim & ~63 if kind == 0 else 0
    for b in range(0, whole, 64):
        sum_block(out + 4 * b, (at + b,), (scale,))
    if whole < dim:
        row[whole:] = 0
        add_vector(row[whole:], dim - whole, at + whole, scale, ONE, kind)


@compiled
def rooms(total: Any) -> Any:
    """The records of a block, int64 [m, FOUND_COLUMNS], and the scratch memory of `search`."""
    m = min(BLOCK, total)
    keys, hashes = np.empty((m, 2), np.uint64), np.empty((m, 2), np.uint64)
    found, best = np.empty((m, FOUND_COLUMNS), np.int64), np.empty((m, FOUND_COLUMNS), np.int64)
    return best, (keys, hashes, found, np.empty(m, np.int64))


@compiled
def lookup(
    table: Any,
    steps: Any,
    probes: Any,
    n: Any,
    tokens: Any,
    offsets: Any,
    vocab: Any,
    rows: Any,
    half: Any,
    served: Any,
    depth: Any,
    scratch: Any,
) -> Any:
    """Look up a whole ragged batch; see `ops.lookup`. Returns OK, BAD_OFFSETS, BAD_TOKEN or DAMAGED.

    table, steps, probes: `LevelTable.fields`, `.steps`, `.probes`. rows: the output's bytes. half: write
    bfloat16. served: the output `order`. scratch int64 [≥ FOUND_COLUMNS + dim]: on DAMAGED its first words
    are the record of the damaged row.
    """
    state = checked(tokens, offsets, vocab)
    if state != OK:
        return state
    headers, dim, out = table[HEADERS], table[DIM], rows.ctypes.data
    spare, size = scratch.ctypes.data + FOUND_BYTES, dim * (2 if half else 4)
    orders = longest(tokens, offsets, n)
    records, room = rooms(tokens.size)
    for begin in range(0, tokens.size, BLOCK):
        best = records[: min(BLOCK, tokens.size - begin)]
        bad = search(table, steps, probes, tokens, orders, begin, True, room, best)
        if bad >= 0:
            scratch[:FOUND_COLUMNS] = room[2][bad]
            return DAMAGED
        first = best.ctypes.data
        for q in range(best.shape[0]):
            found, i = first + FOUND_BYTES * q, begin + q
            if q + AHEAD < best.shape[0]:
                prefetch_vector(found + FOUND_BYTES * AHEAD, headers, dim)
            write_vector(found, headers, dim, spare if half else out + i * size)
            if half:
                store_bfloat(spare, dim, out + i * size)
            served[i], depth[i] = 0, -1
            if get(found, ROW) != 0:
                level = get(found, LEVEL)
                served[i] = get(level, ORDER)
                if served[i] > 1:
                    depth[i] = get(level, DEPTH)
    return OK


@compiled
def candidates(table: Any, steps: Any, probes: Any, n: Any, tokens: Any, offsets: Any) -> Any:
    """The addresses of the rows that `lookup` would read, found by fingerprint without reading a row."""
    orders, used = longest(tokens, offsets, n), 0
    rows = np.empty(tokens.size, np.int64)
    records, room = rooms(tokens.size)
    for begin in range(0, tokens.size, BLOCK):
        best = records[: min(BLOCK, tokens.size - begin)]
        search(table, steps, probes, tokens, orders, begin, False, room, best)
        for q in range(best.shape[0]):
            if best[q, ROW] != 0:
                rows[used] = best[q, ROW]
                used += 1
    return rows[:used].copy()
