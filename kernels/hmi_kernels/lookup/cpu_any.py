"""numba body of the look-up for any window width and back-off. It takes the same steps as reference.py.

Texts are processed in blocks of whole texts. Window q of a block is the one around its token q. Each
position of a window is filled by the mean of up to COVER terms. A term is the address of a vector, its
scale and its storage type.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import carray, compiled, get, inlined, load_f32, pointer
from hmi_kernels.lookup.cpu_batch import OK, checked
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

# The tokens of a block: enough cache misses in flight, and the rows still fit the second-level cache.
BLOCK = 256
COVER = 3  # the most n-grams of one order that cover a position (n = 5, order 3)
AT, KIND, TERM_COLUMNS = range(3)  # the columns of a term: address of the vector, storage type
ONE = np.float32(1)


@compiled
def block_end(offsets: Any, first: Any) -> Any:
    """The end of the block that begins with text `first`: at least one text, else at most BLOCK tokens."""
    last = first + 1
    while last < offsets.size - 1 and offsets[last + 1] - offsets[first] <= BLOCK:
        last += 1
    return last


@compiled
def windows(tokens: Any, offsets: Any, first: Any, last: Any, n: Any) -> Any:
    """The ids of the windows of texts first..last-1, uint32 [m, n], 0 outside a token's text."""
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
    """Write the packed key of `ids` to keys[c]; the same key as `layout.pack_keys` makes."""
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
    """Return whether a window needs the n-gram of `order` at `place`: it lies inside the text and covers
    an unfilled position."""
    n = ids.size
    unfilled, inside = False, True
    for p in range(place, place + order):
        unfilled |= filled[p] == 0
        inside &= ids[p] != 0 or p == (n - 1) // 2
    return unfilled and (inside or order == n)  # a whole window may contain zeros


@compiled
def wanted_ngrams(ids: Any, filled: Any, order: Any, keys: Any, key_of: Any) -> Any:
    """Collect the n-grams of `order` that a block's windows need, each once. Returns their number.

    Fills `keys`, and `key_of` so that the n-gram at `place` of window q is keys[key_of[q + place]],
    -1 if no window needs it.
    """
    m, n = ids.shape
    key_of[:] = -1
    count = 0
    for q in range(m):
        for place in range(n - order + 1):
            if key_of[q + place] < 0 and is_wanted(ids[q], filled[q], place, order):
                set_key(keys, count, ids[q, place : place + order])
                key_of[q + place] = count
                count += 1
    return count


@compiled
def fill(
    headers: Any,
    dim: Any,
    order: Any,
    ids: Any,
    key_of: Any,
    found: Any,
    terms: Any,
    scales: Any,
    filled: Any,
    served: Any,
    depth: Any,
) -> Any:
    """Give each unfilled position of a block's windows a term for each n-gram found that covers it.

    ids [m, n] and key_of as in `wanted_ngrams`; found: a record for each key. Updates terms [m, n, COVER,
    TERM_COLUMNS], scales [m, n, COVER], filled [m, n]: the number of terms, served [m] and depth [m].
    """
    n, scales_at = ids.shape[1], 8 if order <= WORD_IDS else 16
    already = np.empty(n, np.int8)
    for q in range(ids.shape[0]):
        already[:] = filled[q]
        for place in range(n - order + 1):
            c = key_of[q + place]
            if c < 0 or found[c, ROW] == 0 or not is_wanted(ids[q], already, place, order):
                continue
            row, level = found[c, ROW], found[c, LEVEL]
            kind = get(level, DTYPE)
            for j in range(order):
                p, role = place + j, place * order + j
                if already[p] == 0:
                    t = filled[q, p]
                    # A number has 1 << kind bytes.
                    terms[q, p, t, AT] = row + get(headers, order) + role * (dim << kind)
                    terms[q, p, t, KIND] = kind
                    scales[q, p, t] = load_f32(row + scales_at + 4 * role)
                    filled[q, p] = t + 1
            served[q] = max(served[q], order)
            if depth[q] < 0 and order > 1:
                depth[q] = get(level, DEPTH)


@compiled
def mark_filled(order: Any, ids: Any, key_of: Any, found: Any, filled: Any) -> Any:
    """Mark the positions that `fill` would fill."""
    n = ids.shape[1]
    already = np.empty(n, np.int8)
    for q in range(ids.shape[0]):
        already[:] = filled[q]
        for place in range(n - order + 1):
            c = key_of[q + place]
            if c >= 0 and found[c, ROW] != 0 and is_wanted(ids[q], already, place, order):
                filled[q, place : place + order] = 1


@inlined
def add_position(row: Any, spare: Any, dim: Any, terms: Any, scales: Any, count: Any) -> Any:
    """Add the mean of a position's terms to `row`. spare: scratch memory, float32 [dim]."""
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
    terms: Any, scales: Any, filled: Any, lo: Any, hi: Any, positions: Any, scratch: Any, out: Any, half: Any
) -> Any:
    """Write the sums of one text, the tokens lo..hi-1 of a block.

    positions [n]: the order in which a token's vectors are added. scratch: float32 [2, dim]. out: the
    address of the row of token 0 of the block. half: write bfloat16 instead of float32.
    """
    total, spare, dim = scratch[0], scratch[1], scratch.shape[1]
    before = (positions.size - 1) // 2
    for q in range(lo, hi):
        row = total if half else carray(pointer(out + q * dim * 4), (dim,), np.float32)
        row[:] = 0
        for p in positions:
            t = q + before - p
            if lo <= t < hi:
                add_position(row, spare, dim, terms[t, p], scales[t, p], filled[t, p])
        if half:
            store_bfloat(total.ctypes.data, dim, out + q * dim * 2)


@compiled
def lookup(
    table: Any,
    steps: Any,
    positions: Any,
    tokens: Any,
    offsets: Any,
    vocab: Any,
    rows: Any,
    half: Any,
    served: Any,
    depth: Any,
    damage: Any,
) -> Any:
    """Look up a whole ragged batch; see `ops.lookup`. Returns OK, BAD_OFFSETS, BAD_TOKEN or DAMAGED.

    table, steps, positions: `LevelTable.fields`, `.steps`, `.positions`. rows: the output's bytes.
    half: write bfloat16. served: the output `order`. damage int64 [≥ FOUND_COLUMNS]: on DAMAGED,
    the damaged row's record.
    """
    state = checked(tokens, offsets, vocab)
    if state != OK:
        return state
    levels, segs, headers, dim, out = table[LEVELS], table[SEGS], table[HEADERS], table[DIM], rows.ctypes.data
    n, first = positions.size, 0
    scratch = np.empty((2, dim), np.float32)
    while first < offsets.size - 1:
        last = block_end(offsets, first)
        a, m = offsets[first], offsets[last] - offsets[first]
        ids = windows(tokens, offsets, first, last, n)
        terms = np.empty((m, n, COVER, TERM_COLUMNS), np.int64)
        scales, filled = np.empty((m, n, COVER), np.float32), np.zeros((m, n), np.int8)
        keys, key_of = np.empty((m + n, 2), np.uint64), np.empty(m + n, np.int64)
        found = np.empty((m + n, FOUND_COLUMNS), np.int64)
        served[a : a + m] = 0
        depth[a : a + m] = -1
        for s in range(steps.shape[0]):
            order, lo, hi = steps[s]
            words = 1 if order <= WORD_IDS else 2
            count = wanted_ngrams(ids, filled, order, keys, key_of)
            seek(levels, segs, lo, hi, keys, count, words, found)
            bad = confirm(levels, segs, headers, lo, hi, keys, count, words, found, True)
            if bad >= 0:
                damage[:FOUND_COLUMNS] = found[bad]
                return DAMAGED
            block_served, block_depth = served[a : a + m], depth[a : a + m]
            fill(headers, dim, order, ids, key_of, found, terms, scales, filled, block_served, block_depth)
        size = dim * (2 if half else 4)
        for text in range(first, last):
            begin, end = offsets[text] - a, offsets[text + 1] - a
            add_up(terms, scales, filled, begin, end, positions, scratch, out + a * size, half)
        first = last
    return OK


@compiled
def candidates(table: Any, steps: Any, positions: Any, tokens: Any, offsets: Any) -> Any:
    """The addresses of the rows that `lookup` would read, found by fingerprint without reading a row."""
    levels, segs = table[LEVELS], table[SEGS]
    n, first, used = positions.size, 0, 0
    rows = np.empty(1024, np.int64)
    while first < offsets.size - 1:
        last = block_end(offsets, first)
        m = offsets[last] - offsets[first]
        ids, filled = windows(tokens, offsets, first, last, n), np.zeros((m, n), np.int8)
        keys, key_of = np.empty((m + n, 2), np.uint64), np.empty(m + n, np.int64)
        found = np.empty((m + n, FOUND_COLUMNS), np.int64)
        for s in range(steps.shape[0]):
            order, lo, hi = steps[s]
            count = wanted_ngrams(ids, filled, order, keys, key_of)
            seek(levels, segs, lo, hi, keys, count, 1 if order <= WORD_IDS else 2, found)
            if used + count > rows.size:
                rows = np.concatenate((rows, np.empty(max(rows.size, count), np.int64)))
            for c in range(count):
                if found[c, ROW] != 0:
                    rows[used] = found[c, ROW]
                    used += 1
            mark_filled(order, ids, key_of, found, filled)
        first = last
    return rows[:used].copy()
