"""The numba bodies of a pair's alignment (how well each text is found in the other) and of its scores."""

from __future__ import annotations

from typing import Any

import numpy as np

from hmi_kernels.jit import reassociated

EACH = 13  # the figures of one text of a pair; hmi.model.tenant.alignment names them
VECTORS = 3  # the vectors of one text of a pair, likewise
LOWEST = 3  # how many of a text's lowest best cosines are figures
MOST = np.float32(4.0)  # standardised figures are cut at this, so that unusual pairs get no wild scores


@reassociated
def align(ids: Any, sides: Any, weights: Any, rows: Any, offsets: Any, out: Any) -> None:
    """Fill out float32 [pairs, 2 · EACH + 2 · VECTORS · dim] with the alignments of pairs.

    A pair has the figures of both its texts, then their vectors. They are the same bits in any batch.

    ids int64 [tokens] and sides int8 [tokens]: a token's id, and 0 in the pair's first text, 1 in its second,
    another number in neither. weights float32 [tokens]: above 0. rows float32 [tokens, dim]. offsets int64
    [pairs + 1]: pair i has the tokens offsets[i]:offsets[i + 1]. All numbers of a pair are 0 if one of its
    texts has no token.
    """
    dim = rows.shape[1]
    for pair in range(len(offsets) - 1):
        start, end = offsets[pair], offsets[pair + 1]
        mine = out[pair]
        mine[:] = 0.0
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
        middle = 2 * EACH + VECTORS * dim
        _one_text(ids, weights, rows, one, other, cosines, mine[:EACH], mine[2 * EACH : middle])
        _one_text(ids, weights, rows, other, one, cosines.T.copy(), mine[EACH : 2 * EACH], mine[middle:])


@reassociated
def score(aligned: Any, mean: Any, scale: Any, weight: Any, vectors: Any, bias: Any, out: Any) -> None:
    """Fill out float32 [pairs, outputs] with alignments' scores. A pair's are the same bits in any batch.

    aligned float32 [pairs, figures + size]; mean and scale float32 [figures]; weight float32 [outputs,
    2 · figures] for the standardised figures and their squares less 1; vectors float32 [outputs, size]; bias
    float32 [outputs].
    """
    figures = len(mean)
    for pair in range(len(aligned)):
        told, differs = aligned[pair, :figures], aligned[pair, figures:]
        for o in range(len(bias)):
            total, of_figures, of_vectors = bias[o], weight[o], vectors[o]
            for i in range(figures):
                x = min(max((told[i] - mean[i]) / scale[i], -MOST), MOST)
                total += of_figures[i] * x + of_figures[figures + i] * (x * x - np.float32(1.0))
            for k in range(len(differs)):
                total += of_vectors[k] * differs[k]
            out[pair, o] = total


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
def _one_text(
    ids: Any, weights: Any, rows: Any, mine: Any, theirs: Any, cosines: Any, out: Any, vectors: Any
) -> None:
    """Fill in the alignment of the text `mine` to `theirs`.

    out float32 [EACH] and vectors float32 [VECTORS · dim] are all 0 before.
    """
    count, dim = len(mine), rows.shape[1]
    apart, largest, missing = vectors[:dim], vectors[dim : 2 * dim], vectors[2 * dim :]
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
        row, twin, far = rows[mine[i]], rows[theirs[best]], weight * (np.float32(1.0) - cosine)
        for k in range(dim):
            distance = abs(row[k] - twin[k])
            apart[k] += weight * distance
            largest[k] = max(largest[k], distance)
            missing[k] += far * row[k]
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
