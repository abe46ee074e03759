"""numba body of the look-up of trigrams with the default back-off.

The meaning is in kernels/reference.py; this file only says it fast. The tokens of all texts stand in one row, with a gap
before and after each text, and pass in chunks through stages: cut and hash, probe trigrams, probe bigrams, probe
unigrams, confirm and collect terms, add up. A stage is a short loop, so that the processor has many of its cache misses
and page walks under way at once; what it reads the stage before has asked for. The sums run `AHEAD` tokens behind,
asking for vectors as they go. A token's state is a record in a ring that stays in the first-level cache.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu_index import (
    DAMAGED,
    DEPTH,
    DTYPE,
    FOUND_COLUMNS,
    LEVEL,
    LIES,
    ROW,
    TRUE,
    ask_level,
    ask_row,
    confirmed,
    level_at,
    mix,
    seek_exactly,
    seek_level,
)
from kernels.cpu_rows import add_vector, store_bfloat
from kernels.jit import (
    carray,
    compiled,
    get,
    inlined,
    load_f32,
    load_i32,
    pointer,
    prefetch,
    put,
    store_f32,
    store_i8,
    store_i16,
    sum_block,
)
from kernels.layout import FIELD_BITS, TAG_SHIFT, header_bytes, scales_at

SHIFT1 = np.uint64(FIELD_BITS)
SHIFT2 = np.uint64(2 * FIELD_BITS)
TAG3 = np.uint64(3 << TAG_SHIFT)
TAG2 = np.uint64(2 << TAG_SHIFT)
TAG1 = np.uint64(1 << TAG_SHIFT)
HEADER, SCALES = header_bytes(3, 3), scales_at(3)  # the same for the three orders
FINE = 0
ONE, HALF = np.float32(1), np.float32(0.5)
CHUNK = 16  # tokens that a stage takes together
# how many tokens a stage is behind the first; one chunk between two of them lets the memory answer
TRIGRAMS, PAIRS, ONES, TERMS = 1 + CHUNK, 1 + 2 * CHUNK, 1 + 3 * CHUNK, 1 + 4 * CHUNK
SUMS = TERMS + 8
RING = 128  # records, more than SUMS + CHUNK
# a token's record, in words: its id (0 in a gap) and index in the batch (or GAP); key and hash of the trigram around
# it; of the bigram that ends with it and of it alone, whether they have been asked for, key and hash; what was found;
# the terms of its window (addresses of vectors, scales, storage types) and whether the centre is a mean of two
TOKEN, INDEX, TRI_KEY, TRI_HASH = 0, 1, 2, 3
PAIR_STATE, PAIR_KEY, PAIR_HASH, ONE_STATE, ONE_KEY, ONE_HASH = 4, 5, 6, 7, 8, 9
TRI_FOUND, PAIR_FOUND, ONE_FOUND = 10, 13, 16
VECTORS, SCALE, KINDS, MEAN, RECORD = 19, 23, 27, 31, 32
LEFT, CENTRE, CENTRE2, RIGHT = 0, 1, 2, 3
GAP = -1
IDLE, ASKED, SOUGHT = 0, 1, 2
ROOM = FOUND_COLUMNS + RECORD * RING + 4


@inlined
def record_at(ring: Any, i: Any) -> Any:
    return ring + (i & (RING - 1)) * (8 * RECORD)


@inlined
def neighbours(ring: Any, i: Any) -> Any:
    return record_at(ring, i - 1), record_at(ring, i), record_at(ring, i + 1)


@inlined
def part(record: Any, field: Any) -> Any:
    return record + 8 * field


@inlined
def forget(token: Any) -> Any:
    put(token, PAIR_STATE, np.int64(IDLE))
    put(token, ONE_STATE, np.int64(IDLE))
    put(token, TRI_FOUND + ROW, np.int64(0))
    put(token, PAIR_FOUND + ROW, np.int64(0))
    put(token, ONE_FOUND + ROW, np.int64(0))


@inlined
def feed(token: Any, cursor: Any, tokens: Any, offsets: Any, texts: Any) -> Any:
    """The next token, or the gap around texts, into a record. cursor: next token, end of its text, next text."""
    here, text = get(cursor, 0), get(cursor, 2)
    if here < get(cursor, 1):
        put(token, TOKEN, np.int64(load_i32(tokens + 4 * here)))
        put(token, INDEX, here)
        put(cursor, 0, here + 1)
    else:
        put(token, TOKEN, np.int64(0))
        put(token, INDEX, np.int64(GAP))
        if text < texts:
            put(cursor, 0, get(offsets, text))
            put(cursor, 1, get(offsets, text + 1))
            put(cursor, 2, text + 1)
    forget(token)


@inlined
def ask(token: Any, at: Any, key: Any, levels: Any, lo: Any, hi: Any) -> Any:
    """Note a key and its hash from word `at` on, and ask for its slots in levels lo..hi-1."""
    hashed = mix(key)
    put(token, at, np.int64(key))
    put(token, at + 1, np.int64(hashed))
    for level in range(lo, hi):
        ask_level(level_at(levels, level), key, hashed)


@inlined
def seek(token: Any, at: Any, found: Any, levels: Any, segs: Any, lo: Any, hi: Any) -> Any:
    """Fill the words from `found` on by the key and hash from `at` on; whether any level has the fingerprint."""
    key, hashed = np.uint64(get(token, at)), np.uint64(get(token, at + 1))
    for level in range(lo, hi):
        if seek_level(level_at(levels, level), segs, key, hashed, part(token, found)):
            return True
    return False


@inlined
def trigram_key(before: Any, token: Any, after: Any) -> Any:
    a, b, c = np.uint64(get(before, TOKEN)), np.uint64(get(token, TOKEN)), np.uint64(get(after, TOKEN))
    return TAG3 | (a << SHIFT2) | (b << SHIFT1) | c


@inlined
def pair_key(before: Any, token: Any) -> Any:
    return TAG2 | (np.uint64(get(before, TOKEN)) << SHIFT1) | np.uint64(get(token, TOKEN))


@inlined
def one_key(token: Any) -> Any:
    return TAG1 | np.uint64(get(token, TOKEN))


@inlined
def ask_pair(before: Any, token: Any, levels: Any, bounds: Any) -> Any:
    """The bigram that ends with this token, once."""
    if get(token, PAIR_STATE) == IDLE:
        put(token, PAIR_STATE, np.int64(ASKED))
        ask(token, PAIR_KEY, pair_key(before, token), levels, get(bounds, 1), get(bounds, 2))


@inlined
def ask_one(token: Any, levels: Any, bounds: Any) -> Any:
    if get(token, ONE_STATE) == IDLE:
        put(token, ONE_STATE, np.int64(ASKED))
        ask(token, ONE_KEY, one_key(token), levels, get(bounds, 2), get(bounds, 3))


@inlined
def seek_pair(token: Any, levels: Any, segs: Any, bounds: Any) -> Any:
    if get(token, PAIR_STATE) == ASKED:
        put(token, PAIR_STATE, np.int64(SOUGHT))
        seek(token, PAIR_KEY, PAIR_FOUND, levels, segs, get(bounds, 1), get(bounds, 2))


@inlined
def seek_one(token: Any, levels: Any, segs: Any, bounds: Any) -> Any:
    if get(token, ONE_STATE) == ASKED:
        put(token, ONE_STATE, np.int64(SOUGHT))
        seek(token, ONE_KEY, ONE_FOUND, levels, segs, get(bounds, 2), get(bounds, 3))


@inlined
def probe_trigram(before: Any, token: Any, after: Any, levels: Any, segs: Any, bounds: Any) -> Any:
    """Where the trigram is, or else the bigrams on either side of the token asked for. Whether there was none."""
    if get(token, INDEX) == GAP or seek(token, TRI_KEY, TRI_FOUND, levels, segs, get(bounds, 0), get(bounds, 1)):
        return False
    if get(before, TOKEN) != 0:
        ask_pair(before, token, levels, bounds)
    if get(after, TOKEN) != 0:
        ask_pair(token, after, levels, bounds)
    return True


@inlined
def done(token: Any) -> Any:
    """Whether a record needs no back-off: its trigram was found, or it is a gap."""
    return get(token, TRI_FOUND + ROW) != 0 or get(token, INDEX) == GAP


@inlined
def probe_pairs(before: Any, token: Any, after: Any, levels: Any, segs: Any, bounds: Any) -> Any:
    """Where the bigrams are, or else the tokens that they leave out asked for."""
    if done(token):
        return
    seek_pair(token, levels, segs, bounds)
    seek_pair(after, levels, segs, bounds)
    left = get(before, TOKEN) != 0 and get(token, PAIR_FOUND + ROW) != 0
    right = get(after, TOKEN) != 0 and get(after, PAIR_FOUND + ROW) != 0
    if get(before, TOKEN) != 0 and not left:
        ask_one(before, levels, bounds)
    if not left and not right:
        ask_one(token, levels, bounds)
    if get(after, TOKEN) != 0 and not right:
        ask_one(after, levels, bounds)


@inlined
def probe_ones(before: Any, token: Any, after: Any, levels: Any, segs: Any, bounds: Any) -> Any:
    if not done(token):
        seek_one(before, levels, segs, bounds)
        seek_one(token, levels, segs, bounds)
        seek_one(after, levels, segs, bounds)


@compiled
def probe_exactly(before: Any, token: Any, after: Any, levels: Any, segs: Any, bounds: Any) -> Any:
    """The slow tail: an n-gram of this window was another one of the same fingerprint. All again, by their keys."""
    zero, ends = np.uint64(0), (get(bounds, 0), get(bounds, 1), get(bounds, 2), get(bounds, 3))
    key = trigram_key(before, token, after)
    seek_exactly(levels, segs, ends[0], ends[1], key, zero, 1, part(token, TRI_FOUND))
    for last, one in ((before, token), (token, after)):
        put(one, PAIR_KEY, np.int64(pair_key(last, one)))
        seek_exactly(levels, segs, ends[1], ends[2], pair_key(last, one), zero, 1, part(one, PAIR_FOUND))
    for one in (before, token, after):
        put(one, ONE_KEY, np.int64(one_key(one)))
        seek_exactly(levels, segs, ends[2], ends[3], one_key(one), zero, 1, part(one, ONE_FOUND))


@inlined
def no_term(token: Any, term: Any, zeros: Any) -> Any:
    put(token, VECTORS + term, zeros)
    store_f32(part(token, SCALE + term), np.float32(0))
    put(token, KINDS + term, np.int64(0))


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
    store_f32(part(token, SCALE + term), load_f32(row + SCALES + 4 * role))
    put(token, KINDS + term, kind)


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
def back_off(before: Any, token: Any, after: Any, headers: Any, dim: Any, zeros: Any, order: Any,
             depth: Any, culprit: Any) -> Any:  # fmt: skip
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
def collect(before: Any, token: Any, after: Any, headers: Any, dim: Any, zeros: Any, order: Any,
            depth: Any, culprit: Any) -> Any:  # fmt: skip
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
def scale_of(token: Any, term: Any) -> Any:
    return load_f32(part(token, SCALE + term))


@inlined
def add_small(before: Any, token: Any, after: Any, ahead: Any, dim: Any, out: Any) -> Any:
    """The sum of a token's vectors, all int8, to address out; meanwhile the vectors of window `ahead` are asked for."""
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
    """The numbers after the last whole block."""
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
    """The same for any mix of storage types."""
    for term in range(4):
        if term != CENTRE2 or get(ahead, MEAN) != 0:
            for b in range(0, dim << get(ahead, KINDS + term), 64):
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
            add_vector(row, dim, get(owner, VECTORS + term), scale_of(owner, term), weight, get(owner, KINDS + term))


@compiled
def lookup(levels: Any, segs: Any, bounds: Any, headers: Any, zeros: Any, dim: Any, mixed: Any, tokens_: Any,
           offsets_: Any, out: Any, half: Any, order_: Any, depth_: Any, room: Any) -> Any:  # fmt: skip
    """A whole ragged batch that `cpu_any.checked` has passed; see `kernels.ops.lookup`.

    levels, segs, bounds, headers, zeros, out: addresses. room int64 [ROOM + dim]: scratch memory, of which the first
    words tell the damaged row. The caller's, because numba frees an array of its own after its last mention.
    """
    tokens, offsets, texts = tokens_.ctypes.data, offsets_.ctypes.data, offsets_.size - 1
    order, depth = order_.ctypes.data, depth_.ctypes.data
    ring = room.ctypes.data + 8 * FOUND_COLUMNS
    cursor = part(ring, RECORD * RING)
    culprit, spare_at = part(cursor, 3), part(cursor, 4)
    put(cursor, 0, np.int64(0))
    put(cursor, 1, np.int64(0))
    put(cursor, 2, np.int64(0))
    for i in range(RING):
        put(record_at(ring, i), INDEX, np.int64(GAP))
        put(record_at(ring, i), TOKEN, np.int64(0))
        forget(record_at(ring, i))
        no_terms(record_at(ring, i), zeros)
    missing = np.int64(0)  # bit c: the chunk of trigrams probed c rounds ago was not complete
    for begin in range(0, tokens_.size + texts + SUMS + 1, CHUNK):
        for i in range(begin, begin + CHUNK):
            before, token, after = neighbours(ring, i - 1)
            feed(after, cursor, tokens, offsets, texts)
            ask(token, TRI_KEY, trigram_key(before, token, after), levels, get(bounds, 0), get(bounds, 1))
        missing <<= 1
        for i in range(begin - TRIGRAMS, begin - TRIGRAMS + CHUNK):
            before, token, after = neighbours(ring, i)
            missing |= np.int64(probe_trigram(before, token, after, levels, segs, bounds))
        for i in range(begin - TRIGRAMS, begin - TRIGRAMS + CHUNK):
            ask_row(part(record_at(ring, i), TRI_FOUND))
        if missing & 2:
            for i in range(begin - PAIRS, begin - PAIRS + CHUNK):
                before, token, after = neighbours(ring, i)
                probe_pairs(before, token, after, levels, segs, bounds)
        if missing & 4:
            for i in range(begin - ONES, begin - ONES + CHUNK):
                before, token, after = neighbours(ring, i)
                probe_ones(before, token, after, levels, segs, bounds)
            for i in range(begin - ONES - 1, begin - ONES + CHUNK + 1):
                ask_row(part(record_at(ring, i), PAIR_FOUND))
                ask_row(part(record_at(ring, i), ONE_FOUND))
        for i in range(begin - TERMS, begin - TERMS + CHUNK):
            before, token, after = neighbours(ring, i)
            state = collect(before, token, after, headers, dim, zeros, order, depth, culprit)
            if state == LIES:
                probe_exactly(before, token, after, levels, segs, bounds)
                state = collect(before, token, after, headers, dim, zeros, order, depth, culprit)
            if state == DAMAGED:
                for field in range(FOUND_COLUMNS):
                    room[field] = get(get(culprit, 0), field)
                return DAMAGED
        for i in range(begin - SUMS, begin - SUMS + CHUNK):
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
    return FINE
