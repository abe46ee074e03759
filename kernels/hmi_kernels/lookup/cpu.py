"""numba body of the look-up of trigrams with the default back-off.

reference.py defines the result; this file computes the same bits fast. The tokens of all texts
form one sequence, with a gap before and after each text. They pass through a pipeline in chunks:
pack and hash the trigram, query the filters, probe trigrams, probe bigrams, probe unigrams,
confirm and collect terms, add up.

Each stage is a short loop, so that the processor has many cache misses and page walks in flight at once,
and prefetches what the next stage reads. The sums run a few tokens behind the terms and prefetch their
vectors. Between stages a token's state is a record in a ring that fits the first-level cache (cpu_ring.py).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import (
    carray,
    compiled,
    get,
    inlined,
    load_f32,
    load_u32,
    pointer,
    prefetch,
    put,
    store_i8,
    store_i16,
    sum_block,
)
from hmi_kernels.lookup.cpu_batch import OK, checked
from hmi_kernels.lookup.cpu_index import (
    COLLISION,
    CONFIRMED,
    DAMAGED,
    DEPTH,
    DIM,
    DTYPE,
    FOUND_COLUMNS,
    HEADERS,
    LEVEL,
    LEVELS,
    MIXED,
    ORDERS,
    ROW,
    SEGS,
    ZEROS,
    prefetch_row,
)
from hmi_kernels.lookup.cpu_ring import (
    CENTRE,
    CENTRE2,
    CHUNK,
    FILTERS,
    GAP,
    HALF,
    HASH,
    HEADER,
    INDEX,
    LEFT,
    MEAN,
    ONE,
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
    SUMS,
    TERMS,
    TOKEN,
    TRI_FOUND,
    TRI_KEY,
    TRIGRAMS,
    VECTORS,
    feed,
    field_at,
    neighbours,
    note,
    order_at,
    prefetch_noted,
    probe_exactly,
    probe_ones,
    probe_pairs,
    probe_trigram,
    record_at,
    reset_probes,
    trigram_key,
)
from hmi_kernels.lookup.cpu_rows import add_vector, store_bfloat
from hmi_kernels.lookup.cpu_seek import confirmed


@inlined
def scale_of(token: Any, term: Any) -> Any:
    return load_f32(field_at(token, SCALES + term))


@inlined
def kind_of(token: Any, term: Any) -> Any:
    return get(token, SCALES + term) >> 32


@inlined
def add_int8(before: Any, token: Any, after: Any, ahead: Any, dim: Any, out: Any) -> Any:
    """Write the sum of a token's vectors, all of them int8, to the address `out`.

    Meanwhile, prefetch the vectors of the window `ahead`.
    """
    pc, p2 = get(token, VECTORS + CENTRE), get(token, VECTORS + CENTRE2)
    pr, pl = get(before, VECTORS + RIGHT), get(after, VECTORS + LEFT)
    sc, s2 = scale_of(token, CENTRE), scale_of(token, CENTRE2)
    sr, sl = scale_of(before, RIGHT), scale_of(after, LEFT)
    nl, nc, nr = get(ahead, VECTORS + LEFT), get(ahead, VECTORS + CENTRE), get(ahead, VECTORS + RIGHT)
    mean = get(token, MEAN) != 0
    for b in range(0, dim - 63, 64):
        prefetch(nl + b)
        prefetch(nc + b)
        prefetch(nr + b)
        if mean:
            sum_block(out + 4 * b, (pc + b, p2 + b, pr + b, pl + b), (sc, s2, sr, sl))
        else:
            sum_block(out + 4 * b, (pc + b, pr + b, pl + b), (sc, sr, sl))
    prefetch(nr + dim - 1)
    if dim & 63:
        add_tail(dim, out, (pc, p2, pr, pl), (sc, s2, sr, sl), mean)


@compiled
def add_tail(dim: Any, out: Any, vectors: Any, scales: Any, mean: Any) -> Any:
    """The sum of the columns after the last whole block of 64."""
    row = carray(pointer(out), (dim,), np.float32)
    c, d = carray(pointer(vectors[0]), (dim,), np.int8), carray(pointer(vectors[1]), (dim,), np.int8)
    e, f = carray(pointer(vectors[2]), (dim,), np.int8), carray(pointer(vectors[3]), (dim,), np.int8)
    for j in range(dim & ~63, dim):
        centre = np.float32(c[j]) * scales[0]
        if mean:
            centre = centre * HALF + (np.float32(d[j]) * scales[1]) * HALF
        row[j] = centre + np.float32(e[j]) * scales[2] + np.float32(f[j]) * scales[3]


@compiled
def add_mixed(before: Any, token: Any, after: Any, ahead: Any, dim: Any, out: Any) -> Any:
    """`add_int8` for any mix of storage types."""
    for term in range(4):
        if term != CENTRE2 or get(ahead, MEAN) != 0:
            for b in range(0, dim << kind_of(ahead, term), 64):
                prefetch(get(ahead, VECTORS + term) + b)
    row = carray(pointer(out), (dim,), np.float32)
    row[:] = 0
    mean = get(token, MEAN) != 0
    for owner, term, weight in (
        (token, CENTRE, HALF if mean else ONE),
        (token, CENTRE2, HALF),
        (before, RIGHT, ONE),
        (after, LEFT, ONE),
    ):
        if mean or term != CENTRE2:
            add_vector(
                row, dim, get(owner, VECTORS + term), scale_of(owner, term), weight, kind_of(owner, term)
            )


@inlined
def clear_term(token: Any, term: Any, zeros: Any) -> Any:
    """Set a term to the zero vector."""
    put(token, VECTORS + term, zeros)
    put(token, SCALES + term, np.int64(0))


@inlined
def clear_terms(token: Any, zeros: Any) -> Any:
    for term in range(4):
        clear_term(token, term, zeros)
    put(token, MEAN, np.int64(0))


@inlined
def set_term(token: Any, term: Any, owner: Any, found: Any, role: Any, dim: Any) -> Any:
    """Set a term of a token's window to the vector of a role in the row that `owner` found."""
    row, kind = get(owner, found + ROW), get(get(owner, found + LEVEL), DTYPE)
    put(token, VECTORS + term, row + HEADER + role * (dim << kind))  # int8, fp16, fp32 are 0, 1, 2
    put(token, SCALES + term, np.int64(load_u32(row + SCALES_AT + 4 * role)) | (kind << 32))


@inlined
def is_found(owner: Any, found: Any) -> Any:
    """Return whether `owner`'s record has a row in the words from `found` on."""
    return get(owner, found + ROW) != 0


@inlined
def confirmed_at(owner: Any, key: Any, found: Any, headers: Any, damaged: Any) -> Any:
    """`confirmed` for the row that `owner` found. If it is DAMAGED, `damaged` gets the
    address of its record."""
    state = confirmed(headers, field_at(owner, found), np.uint64(get(owner, key)), np.uint64(0), 1)
    if state == DAMAGED:
        put(damaged, 0, field_at(owner, found))
    return state


@compiled
def back_off(
    window: Any, headers: Any, dim: Any, zeros: Any, served_at: Any, depth_at: Any, damaged: Any
) -> Any:
    """`collect` for a window without a trigram: its terms come from bigrams, else from unigrams."""
    before, token, after = window
    clear_terms(token, zeros)
    has_before, has_after = get(before, TOKEN) != 0, get(after, TOKEN) != 0
    left, right = has_before and is_found(token, PAIR_FOUND), has_after and is_found(after, PAIR_FOUND)
    served, state, at = 0, CONFIRMED, get(token, INDEX)
    depth = np.int64(-1)
    if has_before and not left and is_found(before, ONE_FOUND):
        served, state = 1, min(state, confirmed_at(before, ONE_KEY, ONE_FOUND, headers, damaged))
        set_term(token, LEFT, before, ONE_FOUND, 0, dim)
    if not left and not right and is_found(token, ONE_FOUND):
        served, state = 1, min(state, confirmed_at(token, ONE_KEY, ONE_FOUND, headers, damaged))
        set_term(token, CENTRE, token, ONE_FOUND, 1, dim)
    if has_after and not right and is_found(after, ONE_FOUND):
        served, state = 1, min(state, confirmed_at(after, ONE_KEY, ONE_FOUND, headers, damaged))
        set_term(token, RIGHT, after, ONE_FOUND, 2, dim)
    if right:
        served, state = 2, min(state, confirmed_at(after, PAIR_KEY, PAIR_FOUND, headers, damaged))
        set_term(token, CENTRE2 if left else CENTRE, after, PAIR_FOUND, 2, dim)
        set_term(token, RIGHT, after, PAIR_FOUND, 3, dim)
        depth = get(get(after, PAIR_FOUND + LEVEL), DEPTH)
    if left:
        served, state = 2, min(state, confirmed_at(token, PAIR_KEY, PAIR_FOUND, headers, damaged))
        set_term(token, LEFT, token, PAIR_FOUND, 0, dim)
        set_term(token, CENTRE, token, PAIR_FOUND, 1, dim)
        depth = get(get(token, PAIR_FOUND + LEVEL), DEPTH)
    put(token, MEAN, np.int64(left and right))
    store_i8(served_at + at, np.int8(served))
    store_i16(depth_at + 2 * at, np.int16(depth))
    return state


@inlined
def collect(
    window: Any, headers: Any, dim: Any, zeros: Any, served_at: Any, depth_at: Any, damaged: Any
) -> Any:
    """Set the terms of a token's window, and its order and depth in the output.

    window: the records of the token before, the token and the token after. served_at, depth_at: the
    addresses of the outputs. Returns the worst state of the rows used: CONFIRMED, COLLISION or DAMAGED.
    """
    token = window[1]
    at = get(token, INDEX)
    if at == GAP:
        clear_terms(token, zeros)
        return CONFIRMED
    if not is_found(token, TRI_FOUND):
        return back_off(window, headers, dim, zeros, served_at, depth_at, damaged)
    put(token, MEAN, np.int64(0))
    set_term(token, LEFT, token, TRI_FOUND, 0, dim)
    set_term(token, CENTRE, token, TRI_FOUND, 1, dim)
    set_term(token, RIGHT, token, TRI_FOUND, 2, dim)
    store_i8(served_at + at, np.int8(3))
    store_i16(depth_at + 2 * at, np.int16(get(get(token, TRI_FOUND + LEVEL), DEPTH)))
    return confirmed_at(token, TRI_KEY, TRI_FOUND, headers, damaged)


@inlined
def clear_ring(ring: Any, cursor: Any, zeros: Any) -> Any:
    """Fill the ring with gaps, and put the cursor before the first text."""
    put(cursor, 0, np.int64(0))
    put(cursor, 1, np.int64(0))
    put(cursor, 2, np.int64(0))
    for i in range(RING):
        put(record_at(ring, i), INDEX, np.int64(GAP))
        put(record_at(ring, i), TOKEN, np.int64(0))
        reset_probes(record_at(ring, i))
        put(record_at(ring, i), TRI_KEY + HASH, np.int64(0))
        clear_terms(record_at(ring, i), zeros)


@inlined
def add_up(begin: Any, ring: Any, dim: Any, mixed: Any, half: Any, out: Any, spare_at: Any) -> Any:
    """Write the sums of a chunk of tokens to the output. spare_at: scratch memory for a float32 row."""
    for i in range(begin, begin + CHUNK):
        before, token, after = neighbours(ring, i)
        at = get(token, INDEX)
        if at == GAP:
            continue
        row = spare_at if half else out + at * dim * 4
        ahead = record_at(ring, i + SUMS - TERMS)
        if mixed:
            add_mixed(before, token, after, ahead, dim, row)
        else:
            add_int8(before, token, after, ahead, dim, row)
        if half:
            store_bfloat(spare_at, dim, out + at * dim * 2)


@compiled
def lookup(
    table: Any, tokens: Any, offsets: Any, vocab: Any, rows: Any, half: Any, order: Any, depth: Any, work: Any
) -> Any:
    """Look up a whole ragged batch; see `ops.lookup`. Returns OK, BAD_OFFSETS, BAD_TOKEN or DAMAGED.

    table: `LevelTable.fields`. rows: the output's bytes. half: write bfloat16. work int64 [SCRATCH_WORDS +
    dim]: scratch memory, which the caller owns because numba frees an array of its own after its last
    mention; on DAMAGED its first words are the record of the damaged row.
    """
    state = checked(tokens, offsets, vocab)
    if state != OK:
        return state
    levels, segs, orders = table[LEVELS], table[SEGS], table[ORDERS]
    headers, zeros, dim, mixed, out = table[HEADERS], table[ZEROS], table[DIM], table[MIXED], rows.ctypes.data
    tokens_at, offsets_at, texts = tokens.ctypes.data, offsets.ctypes.data, offsets.size - 1
    served_at, depth_at = order.ctypes.data, depth.ctypes.data
    ring = work.ctypes.data + 8 * FOUND_COLUMNS
    cursor = field_at(ring, RECORD * RING)
    damaged, spare_at = field_at(cursor, 3), field_at(cursor, 4)
    clear_ring(ring, cursor, zeros)
    missing = np.int64(0)  # bit c: the chunk probed c rounds ago lacks a trigram
    for begin in range(0, tokens.size + texts + SUMS + 1, CHUNK):
        for i in range(begin, begin + CHUNK):
            before, token, after = neighbours(ring, i - 1)
            feed(after, cursor, tokens_at, offsets_at, texts)
            note(token, TRI_KEY, trigram_key(before, token, after), order_at(orders, 3))
        for i in range(begin - FILTERS, begin - FILTERS + CHUNK):
            prefetch_noted(record_at(ring, i), TRI_KEY, levels, order_at(orders, 3))
        missing <<= 1
        for i in range(begin - TRIGRAMS, begin - TRIGRAMS + CHUNK):
            before, token, after = neighbours(ring, i)
            missing |= np.int64(probe_trigram(before, token, after, levels, segs, orders))
        for i in range(begin - TRIGRAMS, begin - TRIGRAMS + CHUNK):
            prefetch_row(field_at(record_at(ring, i), TRI_FOUND))
        if missing & 2:
            for i in range(begin - PAIRS, begin - PAIRS + CHUNK):
                before, token, after = neighbours(ring, i)
                probe_pairs(before, token, after, levels, segs, orders)
        if missing & 4:
            for i in range(begin - ONES, begin - ONES + CHUNK):
                before, token, after = neighbours(ring, i)
                probe_ones(before, token, after, levels, segs, orders)
            for i in range(begin - ONES - 1, begin - ONES + CHUNK + 1):
                prefetch_row(field_at(record_at(ring, i), PAIR_FOUND))
                prefetch_row(field_at(record_at(ring, i), ONE_FOUND))
        for i in range(begin - TERMS, begin - TERMS + CHUNK):
            window = neighbours(ring, i)
            state = collect(window, headers, dim, zeros, served_at, depth_at, damaged)
            if state == COLLISION:
                probe_exactly(window, levels, segs, orders)
                state = collect(window, headers, dim, zeros, served_at, depth_at, damaged)
            if state == DAMAGED:
                for field in range(FOUND_COLUMNS):
                    work[field] = get(get(damaged, 0), field)
                return DAMAGED
        add_up(begin - SUMS, ring, dim, mixed, half, out, spare_at)
    return OK
