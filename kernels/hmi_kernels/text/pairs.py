"""The numba body of a pair's alignment figures: how well each of its two texts is found in the other."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import reassociated

EACH = 13  # the figures of one text of a pair; hmi.model.alignment names them
LOWEST = 3  # how many of a text's lowest best cosines are figures


@reassociated
def align(ids: Any, sides: Any, weights: Any, rows: Any, offsets: Any, out: Any) -> None:
    """Fill out float32 [pairs, 2 · EACH] with the figures of pairs. A pair's are the same bits in any batch.

    ids int64 [tokens] and sides int8 [tokens]: a token's id, and 0 in the pair's first text, 1 in its second,
    another number in neither. weights float32 [tokens]: above 0. rows float32 [tokens, dim]. offsets int64
    [pairs + 1]: pair i has the tokens offsets[i]:offsets[i + 1]. All figures of a pair are 0 if one of its
    texts has no token.
    """
    for pair in range(len(offsets) - 1):
        start, end = offsets[pair], offsets[pair + 1]
        out[pair] = 0.0
        places = np.empty((2, end - start), np.int64)
        counts = np.zeros(2, np.int64)
        for i in range(start, end):
            side = sides[i]
            if side == 0 or side == 1:
                places[side, counts[side]] = i
                counts[side] += 1
        if counts[0] == 0 or counts[1] == 0:
            continue
        one, other = places[0, : counts[0]], places[1, : counts[1]]
        cosines = _cosines(rows, one, other)
        _figures(ids, weights, one, other, cosines, out[pair, :EACH])
        _figures(ids, weights, other, one, cosines.T.copy(), out[pair, EACH:])


@reassociated
def _cosines(rows: Any, one: Any, other: Any) -> Any:
    """The cosines float32 [one, other] of these rows; 0 for a row of length 0."""
    lengths = np.empty(len(one) + len(other), np.float32)
    for i in range(len(lengths)):
        row = rows[one[i] if i < len(one) else other[i - len(one)]]
        lengths[i] = max(np.sqrt(_product(row, row)), np.float32(1e-12))
    found = np.empty((len(one), len(other)), np.float32)
    for i in range(len(one)):
        for j in range(len(other)):
            product = _product(rows[one[i]], rows[other[j]])
            found[i, j] = product / (lengths[i] * lengths[len(one) + j])
    return found


@reassociated
def _product(a: Any, b: Any) -> Any:
    total = np.float32(0.0)
    for j in range(len(a)):
        total += a[j] * b[j]
    return total


@reassociated
def _figures(ids: Any, weights: Any, mine: Any, theirs: Any, cosines: Any, out: Any) -> None:
    """Fill out float32 [EACH], all 0, with the figures of the text `mine`, aligned to `theirs`."""
    count = len(mine)
    total = np.float32(0.0)
    for place in mine:
        total += weights[place]
    lowest = np.full(LOWEST, np.float32(np.inf), np.float32)
    before = -1
    for i in range(count):
        weight = weights[mine[i]] / total
        heavy = weight * np.float32(count)
        found = pair = False
        for j in range(len(theirs)):
            if ids[mine[i]] == ids[theirs[j]]:
                found = True
                if i + 1 < count and j + 1 < len(theirs) and ids[mine[i + 1]] == ids[theirs[j + 1]]:
                    pair = True
        best = 0
        for j in range(1, len(theirs)):
            if cosines[i, j] > cosines[i, best]:
                best = j
        cosine = cosines[i, best]
        out[2] += cosine
        out[3] += weight * cosine
        out[8] = max(out[8], heavy * (np.float32(1.0) - cosine))
        if found:
            out[0] += np.float32(1.0)
            out[1] += weight
            out[9] = max(out[9], heavy)
        else:
            out[7] = max(out[7], heavy)
        out[10] += np.float32(pair)
        out[11] += np.float32(i > 0 and best > before)
        before = best
        _insert(lowest, cosine)
    out[0] /= np.float32(count)
    out[2] /= np.float32(count)
    for k in range(LOWEST):
        out[4 + k] = lowest[min(k, count - 1)]
    if count > 1:
        out[10] /= np.float32(count - 1)
        out[11] /= np.float32(count - 1)
    else:
        out[11] = np.float32(1.0)
    out[12] = np.log(np.float32(count))


@reassociated
def _insert(lowest: Any, value: Any) -> None:
    """Keep the lowest numbers, ascending."""
    for k in range(len(lowest)):
        if value < lowest[k]:
            lowest[k], value = value, lowest[k]
