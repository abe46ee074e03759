"""numba body of the look-up of trigrams with the default back-off.

reference.py defines the result; this file computes it fast. The tokens of all texts stand in one row, with a
gap before and after each text, and pass in chunks through stages: cut and hash, ask the filter, probe
trigrams, then bigrams, then unigrams, confirm and collect terms, add up.

Each stage is a short loop, so that the processor has many cache misses and page walks under way at once. A
stage prefetches what the next one reads. The sums run some tokens behind and prefetch their vectors. Between
stages a token's state is a record in a ring that stays in the first-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import compiled, get, inlined, load_u32, put, store_i8, store_i16
from hmi_kernels.lookup.cpu_batch import FINE, checked
from hmi_kernels.lookup.cpu_index import (
    DAMAGED,
    DEPTH,
    DIM,
    DTYPE,
    FOUND_COLUMNS,
    HEADERS,
    LEVEL,
    LEVELS,
    LIES,
    MIXED,
    ORDERS,
    ROW,
    SEGS,
    TRUE,
    ZEROS,
    ask_row,
)
from hmi_kernels.lookup.cpu_ring import (
    CENTRE,
    CENTRE2,
    CHUNK,
    GAP,
    HASH,
    HEADER,
    INDEX,
    LEFT,
    MEAN,
    ONE_FOUND,
    ONE_KEY,
    ONES,
    PAIR_FOUND,
    PAIR_KEY,
    PAIRS,
    RECORD,
    RIGHT,
    RING,
    SCALES,
    SCALES_AT,
    SIFT,
    SUMS,
    TERMS,
    TOKEN,
    TRI_FOUND,
    TRI_KEY,
    TRIGRAMS,
    VECTORS,
    ask,
    feed,
    forget,
    neighbours,
    note,
    order_at,
    part,
    probe_exactly,
    probe_ones,
    probe_pairs,
    probe_trigram,
    record_at,
    trigram_key,
)
from hmi_kernels.lookup.cpu_rows import store_bfloat
from hmi_kernels.lookup.cpu_seek import confirmed
from hmi_kernels.lookup.cpu_sum import add_mixed, add_small


@inlined
def no_term(token: Any, term: Any, zeros: Any) -> Any:
    put(token, VECTORS + term, zeros)
    put(token, SCALES + term, np.int64(0))


@inlined
def no_terms(token: Any, zeros: Any) -> Any:
    for term in range(4):
        no_term(token, term, zeros)
    put(token, MEAN, np.int64(0))


@inlined
def set_term(token: Any, term: Any, owner: Any, found: Any, role: Any, dim: Any) -> Any:
    """A term of a token's window: a role of the row found for `owner`."""
    row, kind = get(owner, found + ROW), get(get(owner, found + LEVEL), DTYPE)
    put(token, VECTORS + term, row + HEADER + role * (dim << kind))  # int8, fp16, fp32 are 0, 1, 2
    put(token, SCALES + term, np.int64(load_u32(row + SCALES_AT + 4 * role)) | (kind << 32))


@inlined
def is_found(owner: Any, found: Any) -> Any:
    return get(owner, found + ROW) != 0


@inlined
def confirmed_at(owner: Any, key: Any, found: Any, headers: Any, culprit: Any) -> Any:
    state = confirmed(headers, part(owner, found), np.uint64(get(owner, key)), np.uint64(0), 1)
    if state == DAMAGED:
        put(culprit, 0, part(owner, found))
    return state


@compiled
def back_off(
    before: Any,
    token: Any,
    after: Any,
    headers: Any,
    dim: Any,
    zeros: Any,
    order: Any,
    depth: Any,
    culprit: Any,
) -> Any:
    """Terms of a window without a trigram. TRUE, LIES or DAMAGED."""
    no_terms(token, zeros)
    has_before, has_after = get(before, TOKEN) != 0, get(after, TOKEN) != 0
    left, right = has_before and is_found(token, PAIR_FOUND), has_after and is_found(after, PAIR_FOUND)
    served, state, at = 0, TRUE, get(token, INDEX)
    found_at = np.int64(-1)
    if has_before and not left and is_found(before, ONE_FOUND):
        served, state = 1, min(state, confirmed_at(before, ONE_KEY, ONE_FOUND, headers, culprit))
        set_term(token, LEFT, before, ONE_FOUND, 0, dim)
    if not left and not right and is_found(token, ONE_FOUND):
        served, state = 1, min(state, confirmed_at(token, ONE_KEY, ONE_FOUND, headers, culprit))
        set_term(token, CENTRE, token, ONE_FOUND, 1, dim)
    if has_after and not right and is_found(after, ONE_FOUND):
        served, state = 1, min(state, confirmed_at(after, ONE_KEY, ONE_FOUND, headers, culprit))
        set_term(token, RIGHT, after, ONE_FOUND, 2, dim)
    if right:
        served, state = 2, min(state, confirmed_at(after, PAIR_KEY, PAIR_FOUND, headers, culprit))
        set_term(token, CENTRE2 if left else CENTRE, after, PAIR_FOUND, 2, dim)
        set_term(token, RIGHT, after, PAIR_FOUND, 3, dim)
        found_at = get(get(after, PAIR_FOUND + LEVEL), DEPTH)
    if left:
        served, state = 2, min(state, confirmed_at(token, PAIR_KEY, PAIR_FOUND, headers, culprit))
        set_term(token, LEFT, token, PAIR_FOUND, 0, dim)
        set_term(token, CENTRE, token, PAIR_FOUND, 1, dim)
        found_at = get(get(token, PAIR_FOUND + LEVEL), DEPTH)
    put(token, MEAN, np.int64(left and right))
    store_i8(order + at, np.int8(served))
    store_i16(depth + 2 * at, np.int16(found_at))
    return state


@inlined
def collect(
    before: Any,
    token: Any,
    after: Any,
    headers: Any,
    dim: Any,
    zeros: Any,
    order: Any,
    depth: Any,
    culprit: Any,
) -> Any:
    """The terms of a token's window, its order and depth. TRUE, LIES (a fingerprint did) or DAMAGED."""
    at = get(token, INDEX)
    if at == GAP:
        no_terms(token, zeros)
        return TRUE
    if not is_found(token, TRI_FOUND):
        return back_off(before, token, after, headers, dim, zeros, order, depth, culprit)
    put(token, MEAN, np.int64(0))
    set_term(token, LEFT, token, TRI_FOUND, 0, dim)
    set_term(token, CENTRE, token, TRI_FOUND, 1, dim)
    set_term(token, RIGHT, token, TRI_FOUND, 2, dim)
    store_i8(order + at, np.int8(3))
    store_i16(depth + 2 * at, np.int16(get(get(token, TRI_FOUND + LEVEL), DEPTH)))
    return confirmed_at(token, TRI_KEY, TRI_FOUND, headers, culprit)


@inlined
def clear(ring: Any, cursor: Any, zeros: Any) -> Any:
    """A ring of gaps, and a cursor before the first text."""
    put(cursor, 0, np.int64(0))
    put(cursor, 1, np.int64(0))
    put(cursor, 2, np.int64(0))
    for i in range(RING):
        put(record_at(ring, i), INDEX, np.int64(GAP))
        put(record_at(ring, i), TOKEN, np.int64(0))
        forget(record_at(ring, i))
        put(record_at(ring, i), TRI_KEY + HASH, np.int64(0))
        no_terms(record_at(ring, i), zeros)


@inlined
def add_up(begin: Any, ring: Any, dim: Any, mixed: Any, half: Any, out: Any, spare_at: Any) -> Any:
    """The vectors of a chunk of tokens, into the output."""
    for i in range(begin, begin + CHUNK):
        before, token, after = neighbours(ring, i)
        at = get(token, INDEX)
        if at == GAP:
            continue
        row = spare_at if half else out + at * dim * 4
        if mixed:
            add_mixed(before, token, after, record_at(ring, i + SUMS - TERMS), dim, row)
        else:
            add_small(before, token, after, record_at(ring, i + SUMS - TERMS), dim, row)
        if half:
            store_bfloat(spare_at, dim, out + at * dim * 2)


@compiled
def lookup(
    table: Any, ids: Any, bounds: Any, vocab: Any, rows: Any, half: Any, order_: Any, depth_: Any, room: Any
) -> Any:
    """A whole ragged batch; see `ops.lookup`. rows: the output's bytes; table: `LevelTable.fields`.

    room int64 [ROOM + dim]: scratch memory, of which the first words tell the damaged row. The caller's,
    because numba frees an array of its own after its last mention.
    """
    state = checked(ids, bounds, vocab)
    if state != FINE:
        return state
    levels, segs, orders = table[LEVELS], table[SEGS], table[ORDERS]
    headers, zeros, dim, mixed, out = table[HEADERS], table[ZEROS], table[DIM], table[MIXED], rows.ctypes.data
    tokens, offsets, texts = ids.ctypes.data, bounds.ctypes.data, bounds.size - 1
    order, depth = order_.ctypes.data, depth_.ctypes.data
    ring = room.ctypes.data + 8 * FOUND_COLUMNS
    cursor = part(ring, RECORD * RING)
    culprit, spare_at = part(cursor, 3), part(cursor, 4)
    clear(ring, cursor, zeros)
    missing = np.int64(0)  # bit c: the chunk of trigrams probed c rounds ago was not complete
    for begin in range(0, ids.size + texts + SUMS + 1, CHUNK):
        for i in range(begin, begin + CHUNK):
            before, token, after = neighbours(ring, i - 1)
            feed(after, cursor, tokens, offsets, texts)
            note(token, TRI_KEY, trigram_key(before, token, after), order_at(orders, 3))
        for i in range(begin - SIFT, begin - SIFT + CHUNK):
            ask(record_at(ring, i), TRI_KEY, levels, order_at(orders, 3))
        missing <<= 1
        for i in range(begin - TRIGRAMS, begin - TRIGRAMS + CHUNK):
            before, token, after = neighbours(ring, i)
            missing |= np.int64(probe_trigram(before, token, after, levels, segs, orders))
        for i in range(begin - TRIGRAMS, begin - TRIGRAMS + CHUNK):
            ask_row(part(record_at(ring, i), TRI_FOUND))
        if missing & 2:
            for i in range(begin - PAIRS, begin - PAIRS + CHUNK):
                before, token, after = neighbours(ring, i)
                probe_pairs(before, token, after, levels, segs, orders)
        if missing & 4:
            for i in range(begin - ONES, begin - ONES + CHUNK):
                before, token, after = neighbours(ring, i)
                probe_ones(before, token, after, levels, segs, orders)
            for i in range(begin - ONES - 1, begin - ONES + CHUNK + 1):
                ask_row(part(record_at(ring, i), PAIR_FOUND))
                ask_row(part(record_at(ring, i), ONE_FOUND))
        for i in range(begin - TERMS, begin - TERMS + CHUNK):
            before, token, after = neighbours(ring, i)
            state = collect(before, token, after, headers, dim, zeros, order, depth, culprit)
            if state == LIES:
                probe_exactly(before, token, after, levels, segs, orders)
                state = collect(before, token, after, headers, dim, zeros, order, depth, culprit)
            if state == DAMAGED:
                for field in range(FOUND_COLUMNS):
                    room[field] = get(get(culprit, 0), field)
                return DAMAGED
        add_up(begin - SUMS, ring, dim, mixed, half, out, spare_at)
    return FINE
