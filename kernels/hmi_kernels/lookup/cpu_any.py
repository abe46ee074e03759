"""numba body of the look-up for every window width and back-off: it takes the same steps as reference.py.

A block is a run of whole texts, so no n-gram crosses from one text to another. Token q of a block owns the
window cut around it. A term, which fills a position of a window, is the address of a vector, its scale and
its storage type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import carray, compiled, get, inlined, load_f32, pointer
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
    ROW,
    SEGS,
)
from hmi_kernels.lookup.cpu_rows import add_vector, store_bfloat
from hmi_kernels.lookup.cpu_seek import confirm, seek
from hmi_kernels.lookup.layout import FIELD_BITS, TAG_SHIFT, WORD_IDS

BLOCK = 256  # tokens resolved together: enough misses in flight, and the rows stay in the second-level cache
COVER = 3  # at most so many placements of an order cover one position (n = 5, order 3)
AT, KIND, TERM_COLUMNS = 0, 1, 2
ONE = np.float32(1)


@compiled
def block_end(offsets: Any, first: Any) -> Any:
    """The end of a block of texts that begins with text `first`: up to BLOCK tokens, one text at least."""
    last = first + 1
    while last < offsets.size - 1 and offsets[last + 1] - offsets[first] <= BLOCK:
        last += 1
    return last


@compiled
def windows(tokens: Any, offsets: Any, first: Any, last: Any, n: Any) -> Any:
    """Texts first..last-1 -> the ids of every token's window, uint32 [m, n], 0 outside its text."""
    a, before = offsets[first], (n - 1) // 2
    ids = np.zeros((offsets[last] - a, n), np.uint32)
    for text in range(first, last):
        lo, hi = offsets[text], offsets[text + 1]
        for i in range(lo, hi):
            for p in range(n):
                at = i + p - before
                if lo <= at < hi:
                    ids[i - a, p] = tokens[at]
    return ids


@inlined
def set_key(keys: Any, c: Any, ids: Any) -> Any:
    """keys[c] = the packed key of these ids, as `hmi_kernels.lookup.layout.pack_keys` makes it."""
    low, high, order = np.uint64(0), np.uint64(0), ids.size
    for j in range(order):
        token = np.uint64(ids[order - 1 - j])
        if j < WORD_IDS:
            low |= token << np.uint64(FIELD_BITS * j)
        else:
            high |= token << np.uint64(FIELD_BITS * (j - WORD_IDS))
    if order <= WORD_IDS:
        low |= np.uint64(order) << np.uint64(TAG_SHIFT)
    keys[c, 0] = low
    keys[c, 1] = high


@inlined
def is_wanted(ids: Any, filled: Any, place: Any, order: Any) -> Any:
    """Whether a window wants the n-gram at this placement: inside the text, and over something still
    unfilled."""
    n = ids.size
    open_, inside = False, True
    for p in range(place, place + order):
        open_ |= filled[p] == 0
        inside &= ids[p] != 0 or p == (n - 1) // 2
    return open_ and (inside or order == n)  # the whole window is looked up with its zeros


@compiled
def ask(ids: Any, filled: Any, order: Any, keys: Any, slot: Any) -> Any:
    """The distinct n-grams that a step needs. Sets keys and slot[g], which of them begins at token g (-1:
    none).

    For the whole window g is its token; for shorter n-grams the token they begin with, counted from -before.
    """
    m, n = ids.shape
    slot[:] = -1
    count = 0
    for q in range(m):
        for place in range(n - order + 1):
            if slot[q + place] < 0 and is_wanted(ids[q], filled[q], place, order):
                set_key(keys, count, ids[q, place : place + order])
                slot[q + place] = count
                count += 1
    return count


@compiled
def fill(
    headers: Any,
    dim: Any,
    order: Any,
    ids: Any,
    slot: Any,
    found: Any,
    terms: Any,
    scales: Any,
    filled: Any,
    served: Any,
    depth: Any,
) -> Any:
    """Give every unfilled position a term for each n-gram found that covers it."""
    n, scales_at = ids.shape[1], 8 if order <= WORD_IDS else 16
    was = np.empty(n, np.int8)
    for q in range(ids.shape[0]):
        was[:] = filled[q]
        for place in range(n - order + 1):
            c = slot[q + place]
            if c < 0 or found[c, ROW] == 0 or not is_wanted(ids[q], was, place, order):
                continue
            row, level = found[c, ROW], found[c, LEVEL]
            kind = get(level, DTYPE)
            for j in range(order):
                p, role = place + j, place * order + j
                if was[p] == 0:
                    t = filled[q, p]
                    # Int8, fp16, fp32 are 0, 1, 2.
                    terms[q, p, t, AT] = row + get(headers, order) + role * (dim << kind)
                    terms[q, p, t, KIND] = kind
                    scales[q, p, t] = load_f32(row + scales_at + 4 * role)
                    filled[q, p] = t + 1
            served[q] = max(served[q], order)
            if depth[q] < 0 and order > 1:
                depth[q] = get(level, DEPTH)


@compiled
def cover(order: Any, ids: Any, slot: Any, found: Any, filled: Any) -> Any:
    """Mark what `fill` would fill."""
    n = ids.shape[1]
    was = np.empty(n, np.int8)
    for q in range(ids.shape[0]):
        was[:] = filled[q]
        for place in range(n - order + 1):
            c = slot[q + place]
            if c >= 0 and found[c, ROW] != 0 and is_wanted(ids[q], was, place, order):
                filled[q, place : place + order] = 1


@inlined
def add_position(row: Any, spare: Any, dim: Any, terms: Any, scales: Any, count: Any) -> Any:
    """row += the mean of a position's terms; spare float32 [dim]."""
    if count == 1:
        add_vector(row, dim, terms[0, AT], scales[0], ONE, terms[0, KIND])
    elif count > 1:
        spare[:] = 0
        for t in range(count):
            add_vector(spare, dim, terms[t, AT], scales[t], ONE / np.float32(count), terms[t, KIND])
        for j in range(dim):
            row[j] += spare[j]


@compiled
def add_up(
    terms: Any, scales: Any, filled: Any, lo: Any, hi: Any, turns: Any, room: Any, out: Any, half: Any
) -> Any:
    """The sums of the tokens lo..hi-1 of one text.

    room float32 [2, dim]: scratch. out: address of token 0's row; half: bfloat16 instead of float32.
    """
    total, spare, dim = room[0], room[1], room.shape[1]
    before = (turns.size - 1) // 2
    for q in range(lo, hi):
        row = total if half else carray(pointer(out + q * dim * 4), (dim,), np.float32)
        row[:] = 0
        for p in turns:
            t = q + before - p
            if lo <= t < hi:
                add_position(row, spare, dim, terms[t, p], scales[t, p], filled[t, p])
        if half:
            store_bfloat(total.ctypes.data, dim, out + q * dim * 2)


@compiled
def lookup(
    table: Any,
    steps: Any,
    turns: Any,
    tokens: Any,
    offsets: Any,
    vocab: Any,
    rows: Any,
    half: Any,
    served: Any,
    depth: Any,
    damage: Any,
) -> Any:
    """A whole ragged batch; see `ops.lookup`. rows: the output's bytes; table: `LevelTable.fields`."""
    state = checked(tokens, offsets, vocab)
    if state != FINE:
        return state
    levels, segs, headers, dim, out = table[LEVELS], table[SEGS], table[HEADERS], table[DIM], rows.ctypes.data
    n, first = turns.size, 0
    room = np.empty((2, dim), np.float32)
    while first < offsets.size - 1:
        last = block_end(offsets, first)
        a, m = offsets[first], offsets[last] - offsets[first]
        ids = windows(tokens, offsets, first, last, n)
        terms = np.empty((m, n, COVER, TERM_COLUMNS), np.int64)
        scales, filled = np.empty((m, n, COVER), np.float32), np.zeros((m, n), np.int8)
        keys, slot = np.empty((m + n, 2), np.uint64), np.empty(m + n, np.int64)
        found = np.empty((m + n, FOUND_COLUMNS), np.int64)
        served[a : a + m] = 0
        depth[a : a + m] = -1
        for s in range(steps.shape[0]):
            order, lo, hi = steps[s]
            words = 1 if order <= WORD_IDS else 2
            count = ask(ids, filled, order, keys, slot)
            seek(levels, segs, lo, hi, keys, count, words, found)
            bad = confirm(levels, segs, headers, lo, hi, keys, count, words, found, True)
            if bad >= 0:
                damage[:FOUND_COLUMNS] = found[bad]
                return DAMAGED
            order_of, depth_of = served[a : a + m], depth[a : a + m]
            fill(headers, dim, order, ids, slot, found, terms, scales, filled, order_of, depth_of)
        size = dim * (2 if half else 4)
        for text in range(first, last):
            begin, end = offsets[text] - a, offsets[text + 1] - a
            add_up(terms, scales, filled, begin, end, turns, room, out + a * size, half)
        first = last
    return FINE


@compiled
def candidates(table: Any, steps: Any, turns: Any, tokens: Any, offsets: Any) -> Any:
    """The addresses of the rows that `lookup` would read, by fingerprint alone."""
    levels, segs = table[LEVELS], table[SEGS]
    n, first, used = turns.size, 0, 0
    rows = np.empty(1024, np.int64)
    while first < offsets.size - 1:
        last = block_end(offsets, first)
        m = offsets[last] - offsets[first]
        ids, filled = windows(tokens, offsets, first, last, n), np.zeros((m, n), np.int8)
        keys, slot = np.empty((m + n, 2), np.uint64), np.empty(m + n, np.int64)
        found = np.empty((m + n, FOUND_COLUMNS), np.int64)
        for s in range(steps.shape[0]):
            order, lo, hi = steps[s]
            count = ask(ids, filled, order, keys, slot)
            seek(levels, segs, lo, hi, keys, count, 1 if order <= WORD_IDS else 2, found)
            if used + count > rows.size:
                rows = np.concatenate((rows, np.empty(max(rows.size, count), np.int64)))
            for c in range(count):
                if found[c, ROW] != 0:
                    rows[used] = found[c, ROW]
                    used += 1
            cover(order, ids, slot, found, filled)
        first = last
    return rows[:used].copy()
