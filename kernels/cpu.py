"""numba bodies of the fused look-up: cut n-grams, resolve along the chain, back off, sum the overlaps.

The meaning is in kernels/reference.py; this file only says it fast. Per token q of a block there are four
terms: 0 left role, 1 centre, 2 second centre (the other bigram's), 3 right role; each an address (0 = nothing),
a scale and a storage type. A block is a run of whole texts, so that nothing crosses from one text to another.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kernels.cpu_index import DEPTH, DTYPE, resolve
from kernels.cpu_rows import add_vector, f32_at, sum3_int8, sum4_int8
from kernels.jit import compiled, inlined, prefetch
from kernels.layout import FIELD_BITS, ROW_HEADER, SCALES_AT, TAG_SHIFT

SHIFT1 = np.uint64(FIELD_BITS)
SHIFT2 = np.uint64(2 * FIELD_BITS)
TAG3 = np.uint64(3 << TAG_SHIFT)
TAG2 = np.uint64(2 << TAG_SHIFT)
TAG1 = np.uint64(1 << TAG_SHIFT)
HALVED = np.float32(0.5)
BLOCK = 256  # tokens resolved together: enough misses in flight, and the rows stay in the second-level cache
BAD_OFFSETS, BAD_TOKEN, FINE = -1, -2, 0
LEFT, CENTRE, CENTRE2, RIGHT = 0, 1, 2, 3


@inlined
def set_term(terms: Any, scales: Any, kinds: Any, q: Any, t: Any, row: Any, role: Any, dim: Any, dtype: Any) -> Any:
    size = 1 << dtype  # int8, fp16, fp32 are 0, 1, 2
    terms[q, t] = row + ROW_HEADER + role * dim * size
    scales[q, t] = f32_at(row + SCALES_AT + 4 * role)
    kinds[q, t] = dtype


@compiled
def neighbours(tokens: Any, offsets: Any, first: Any, last: Any, a: Any, before: Any, after: Any) -> Any:
    """before/after of each token of texts first..last-1 (block origin a); 0 at a text's ends."""
    for text in range(first, last):
        lo, hi = offsets[text], offsets[text + 1]
        for i in range(lo, hi):
            before[i - a] = tokens[i - 1] if i > lo else 0
            after[i - a] = tokens[i + 1] if i + 1 < hi else 0


@compiled
def trigrams(levels: Any, segs: Any, bounds: Any, dim: Any, tok: Any, before: Any, after: Any, terms: Any,
             scales: Any, kinds: Any, order: Any, depth: Any) -> Any:  # fmt: skip
    """Terms of every token whose trigram some version has; order 3 and the depth there. Returns how many lack one."""
    m = tok.size
    keys, addr, lev = np.empty(m, np.uint64), np.empty(m, np.int64), np.empty(m, np.int64)
    for q in range(m):
        keys[q] = TAG3 | (np.uint64(before[q]) << SHIFT2) | (np.uint64(tok[q]) << SHIFT1) | np.uint64(after[q])
    absent = resolve(levels, segs, bounds[0], bounds[1], keys, m, addr, lev)
    for q in range(m):
        terms[q, :] = 0
        scales[q, :] = 0
        kinds[q, :] = 0
        order[q] = 0
        depth[q] = -1
        if addr[q] != 0:
            dtype = levels[lev[q], DTYPE]
            set_term(terms, scales, kinds, q, LEFT, addr[q], 0, dim, dtype)
            set_term(terms, scales, kinds, q, CENTRE, addr[q], 1, dim, dtype)
            set_term(terms, scales, kinds, q, RIGHT, addr[q], 2, dim, dtype)
            order[q] = 3
            depth[q] = levels[lev[q], DEPTH]
    return absent


@compiled
def bigrams(levels: Any, segs: Any, bounds: Any, dim: Any, tok: Any, before: Any, after: Any, terms: Any,
            scales: Any, kinds: Any, order: Any, depth: Any) -> Any:  # fmt: skip
    """Terms from the bigrams on either side of each token without a trigram."""
    m = tok.size
    keys, addr, lev = np.empty(m + 1, np.uint64), np.empty(m + 1, np.int64), np.empty(m + 1, np.int64)
    pair = np.full(m + 1, -1, np.int64)  # pair[q]: where (token q-1, token q) stands among the keys, -1 unasked
    n = 0
    for q in range(m):
        if order[q] == 3:
            continue
        if before[q] != 0 and pair[q] < 0:
            keys[n] = TAG2 | (np.uint64(before[q]) << SHIFT1) | np.uint64(tok[q])
            pair[q] = n
            n += 1
        if after[q] != 0:
            keys[n] = TAG2 | (np.uint64(tok[q]) << SHIFT1) | np.uint64(after[q])
            pair[q + 1] = n
            n += 1
    resolve(levels, segs, bounds[1], bounds[2], keys, n, addr, lev)
    for q in range(m):
        if order[q] == 3:
            continue
        bl, br = np.int64(0), np.int64(0)
        if before[q] != 0 and addr[pair[q]] != 0:
            bl = addr[pair[q]]
            dtype = levels[lev[pair[q]], DTYPE]
            set_term(terms, scales, kinds, q, LEFT, bl, 0, dim, dtype)
            set_term(terms, scales, kinds, q, CENTRE, bl, 1, dim, dtype)
            depth[q] = levels[lev[pair[q]], DEPTH]
        if after[q] != 0 and addr[pair[q + 1]] != 0:
            br = addr[pair[q + 1]]
            dtype = levels[lev[pair[q + 1]], DTYPE]
            set_term(terms, scales, kinds, q, RIGHT, br, 3, dim, dtype)
            set_term(terms, scales, kinds, q, CENTRE2 if bl != 0 else CENTRE, br, 2, dim, dtype)
            if bl == 0:
                depth[q] = levels[lev[pair[q + 1]], DEPTH]
        if bl != 0 and br != 0:  # the centre is the mean of the two
            scales[q, CENTRE] *= HALVED
            scales[q, CENTRE2] *= HALVED
        if bl != 0 or br != 0:
            order[q] = 2


@compiled
def unigrams(levels: Any, segs: Any, bounds: Any, dim: Any, tok: Any, before: Any, after: Any, terms: Any,
             scales: Any, kinds: Any, order: Any) -> Any:  # fmt: skip
    """Whatever is still missing, from the single tokens."""
    m = tok.size
    keys, addr, lev = np.empty(3 * m, np.uint64), np.empty(3 * m, np.int64), np.empty(3 * m, np.int64)
    wanted = np.empty((3 * m, 3), np.int64)  # token, term, role
    n = 0
    for q in range(m):
        if order[q] == 3:
            continue
        for role in range(3):
            term = (LEFT, CENTRE, RIGHT)[role]
            token = (before[q], tok[q], after[q])[role]
            if terms[q, term] == 0 and (role == 1 or token != 0):
                keys[n] = TAG1 | np.uint64(token)
                wanted[n, 0] = q
                wanted[n, 1] = term
                wanted[n, 2] = role
                n += 1
    resolve(levels, segs, bounds[2], bounds[3], keys, n, addr, lev)
    for k in range(n):
        if addr[k] != 0:
            q = wanted[k, 0]
            set_term(terms, scales, kinds, q, wanted[k, 1], addr[k], wanted[k, 2], dim, levels[lev[k], DTYPE])
            order[q] = max(order[q], 1)


@compiled
def fetch(terms: Any, kinds: Any, q: Any, dim: Any) -> Any:
    """Ask for the vectors of one token ahead of their use."""
    for t in range(4):
        if terms[q, t] != 0:
            for at in range(0, dim << kinds[q, t], 64):
                prefetch(terms[q, t] + at)


@compiled
def add_up(terms: Any, scales: Any, kinds: Any, lo: Any, hi: Any, dim: Any, zeros: Any, out: Any) -> Any:
    """out[i] = ((C_i + C2_i) + R_{i-1}) + L_{i+1} for the tokens lo..hi-1 of one text; always in this order."""
    for q in range(lo, hi):
        if q + 3 < hi:
            fetch(terms, kinds, q + 3, dim)
        row = out[q]
        pc, p2 = terms[q, CENTRE], terms[q, CENTRE2]
        pr, pl = np.int64(0), np.int64(0)
        sr, sl = np.float32(0), np.float32(0)
        kr, kl = np.int64(0), np.int64(0)
        if q > lo:
            pr, sr, kr = terms[q - 1, RIGHT], scales[q - 1, RIGHT], np.int64(kinds[q - 1, RIGHT])
        if q + 1 < hi:
            pl, sl, kl = terms[q + 1, LEFT], scales[q + 1, LEFT], np.int64(kinds[q + 1, LEFT])
        if kinds[q, CENTRE] == 0 and kinds[q, CENTRE2] == 0 and kr == 0 and kl == 0:
            pc = pc if pc != 0 else zeros
            pr = pr if pr != 0 else zeros
            pl = pl if pl != 0 else zeros
            if p2 == 0:
                sum3_int8(row, dim, pc, scales[q, CENTRE], pr, sr, pl, sl)
            else:
                sum4_int8(row, dim, pc, scales[q, CENTRE], p2, scales[q, CENTRE2], pr, sr, pl, sl)
            continue
        row[:] = 0
        if pc != 0:
            add_vector(row, dim, pc, scales[q, CENTRE], np.int64(kinds[q, CENTRE]))
        if p2 != 0:
            add_vector(row, dim, p2, scales[q, CENTRE2], np.int64(kinds[q, CENTRE2]))
        if pr != 0:
            add_vector(row, dim, pr, sr, kr)
        if pl != 0:
            add_vector(row, dim, pl, sl, kl)


@compiled
def checked(tokens: Any, offsets: Any, vocab: Any) -> Any:
    """FINE, or what is wrong with a ragged batch: nothing after this looks outside an array."""
    if offsets.size < 1 or offsets[0] != 0 or offsets[offsets.size - 1] != tokens.size:
        return BAD_OFFSETS
    for t in range(offsets.size - 1):
        if offsets[t + 1] < offsets[t]:
            return BAD_OFFSETS
    for i in range(tokens.size):
        if tokens[i] < 0 or tokens[i] >= vocab:
            return BAD_TOKEN
    return FINE


@compiled
def lookup(levels: Any, segs: Any, bounds: Any, dim: Any, vocab: Any, tokens: Any, offsets: Any, zeros: Any,
           out: Any, order: Any, depth: Any) -> Any:  # fmt: skip
    """A whole ragged batch; see `kernels.ops.lookup`. zeros: address of `dim` int8 zeros."""
    state = checked(tokens, offsets, vocab)
    if state != FINE:
        return state
    texts = offsets.size - 1
    first = 0
    while first < texts:
        last = first + 1
        while last < texts and offsets[last + 1] - offsets[first] <= BLOCK:
            last += 1
        a, m = offsets[first], offsets[last] - offsets[first]
        b = a + m
        before, after, tok = np.empty(m, np.int32), np.empty(m, np.int32), tokens[a:b]
        terms, scales = np.empty((m, 4), np.int64), np.empty((m, 4), np.float32)
        kinds = np.empty((m, 4), np.int8)
        neighbours(tokens, offsets, first, last, a, before, after)
        absent = trigrams(levels, segs, bounds, dim, tok, before, after, terms, scales, kinds, order[a:b], depth[a:b])
        if absent > 0:
            bigrams(levels, segs, bounds, dim, tok, before, after, terms, scales, kinds, order[a:b], depth[a:b])
            unigrams(levels, segs, bounds, dim, tok, before, after, terms, scales, kinds, order[a:b])
        for text in range(first, last):
            add_up(terms, scales, kinds, offsets[text] - a, offsets[text + 1] - a, dim, zeros, out[a:b])
        first = last
    return FINE
