"""The slow, obvious reference of the look-up in plain Python and numpy, with which the tests compare kernels.

Here a chain is a list of dictionaries, nearest version first: {(id, ...): float32 [roles, dim]}, with
n-grams of any order. Steps say how a window is filled: a list of (order, depth), where depth None means
every version, nearest first.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.lookup.layout import NUMPY_TYPES, Window, before

Vectors = NDArray[np.float32]
Entries = Mapping[tuple[int, ...], Vectors]
Steps = Sequence[tuple[int, int | None]]


def default_steps(n: int) -> list[tuple[int, int | None]]:
    """The longest n-grams first, each from the nearest version: a grandparent's trigram precedes
    the domain's own bigram."""
    return [(order, None) for order in range(n, 0, -1)]


def stored(vectors: Vectors, dtype: int) -> Vectors:
    """float32 [..., dim] after a round trip through int8 (with a scale for each vector), fp16 or fp32.

    In int8, a vector whose numbers are all below 2**-119 becomes zero.
    """
    if dtype == 0:
        scale = (np.abs(vectors).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float32)
        scale = np.where(
            scale >= np.float32(2.0**-126), scale, np.float32(0)
        )  # smaller ones have too few bits
        safe = np.where(scale > 0, scale, np.float32(1))
        codes = np.where(scale > 0, np.clip(np.rint(vectors / safe), -127, 127), 0)
        return np.asarray(codes.astype(np.float32) * scale)
    return np.asarray(vectors.astype(NUMPY_TYPES[dtype]), np.float32)


def bfloat16(values: Vectors) -> NDArray[np.uint16]:
    """The bfloat16 bits of finite float32 numbers, rounded to nearest, ties to even."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    return np.asarray((bits + 0x7FFF + ((bits >> 16) & 1)) >> 16, np.uint16)


def find(
    chain: Sequence[Entries], ngram: tuple[int, ...], depth: int | None = None
) -> tuple[Vectors | None, int]:
    """The entry of the nearest version, or of the version `depth`, and its depth. (None, -1) if absent."""
    for at, entries in enumerate(chain):
        if depth in (None, at) and ngram in entries:
            return entries[ngram], at
    return None, -1


def window(
    chain: Sequence[Entries], ids: tuple[int, ...], dim: int, steps: Steps | None = None
) -> tuple[Vectors, int, int]:
    """Fill one window.

    Returns its vectors float32 [n, dim], the highest order that filled a position (0 for none), and the
    depth of the first n-gram of order 2 or more that did (-1 for none).
    """
    n = len(ids)
    vectors, filled = np.zeros((n, dim), np.float32), [False] * n
    served, first = 0, -1
    for order, depth in default_steps(n) if steps is None else steps:
        if all(filled):
            break
        found: dict[int, Vectors] = {}  # by placement
        for place in _placements(ids, order, filled):
            rows, at = find(chain, ids[place : place + order], depth)
            if rows is not None:
                found[place] = rows
                served = max(served, order)
                first = at if first < 0 and order > 1 else first
        for position in [p for p in range(n) if not filled[p]]:
            over = [rows[s * order + position - s] for s, rows in found.items() if s <= position < s + order]
            if over:
                vectors[position] = mean(over)
                filled[position] = True
    return vectors, served, first


def _placements(ids: tuple[int, ...], order: int, filled: list[bool]) -> list[int]:
    """The places where n-grams of this order are looked up: inside the text, over an unfilled position."""
    n = len(ids)
    if order == n:
        return [0]  # the window itself, its zeros included
    inside = [i != 0 or p == before(n) for p, i in enumerate(ids)]
    every = range(n - order + 1)
    return [s for s in every if all(inside[s : s + order]) and not all(filled[s : s + order])]


def mean(vectors: Sequence[Vectors]) -> Vectors:
    """The mean. Each vector is multiplied by its weight before it is added, in the order given."""
    weight = np.float32(1) / np.float32(len(vectors))
    total = vectors[0] * weight
    for vector in vectors[1:]:
        total = total + vector * weight
    return total


def lookup(
    chain: Sequence[Entries],
    texts: Sequence[Sequence[int]],
    dim: int,
    n: int = 3,
    steps: Steps | None = None,
    window: Window = "centred",
) -> tuple[Vectors, list[int], list[int]]:
    """Look up texts: vectors float32 [sum of lengths, dim], and each token's order and
    depth, as `ops.lookup`."""
    plan = default_steps(n) if steps is None else steps
    rows = _causal if window == "causal" else _centred
    tokens = [token for text in texts for token in rows(chain, text, dim, n, plan)]
    out = [vector for vector, _, _ in tokens]
    stacked = np.stack(out) if out else np.zeros((0, dim), np.float32)
    return stacked, [order for _, order, _ in tokens], [depth for _, _, depth in tokens]


Token = tuple[Vectors, int, int]  # float32 [dim], order, depth


def _centred(chain: Sequence[Entries], text: Sequence[int], dim: int, n: int, steps: Steps) -> list[Token]:
    """The tokens of a text, from the centred windows that contain them."""
    padded = [0] * before(n) + list(text) + [0] * (n - 1 - before(n))
    cut = [window(chain, tuple(padded[i : i + n]), dim, steps) for i in range(len(text))]
    found: list[Token] = []
    for i in range(len(text)):
        total = np.zeros(dim, np.float32)
        for p in positions(n):
            t = i + before(n) - p  # the window whose position p is token i
            if 0 <= t < len(text):
                total = total + cut[t][0][p]
        found.append((total, *cut[i][1:]))
    return found


def _causal(chain: Sequence[Entries], text: Sequence[int], dim: int, n: int, steps: Steps) -> list[Token]:
    """The tokens of a text, each from the first n-gram found that ends with it."""
    return [_last(chain, tuple(text[max(0, end - n) : end]), dim, steps) for end in range(1, len(text) + 1)]


def _last(chain: Sequence[Entries], ids: tuple[int, ...], dim: int, steps: Steps) -> Token:
    """The last of these ids, which are one causal window without what lies outside the text."""
    for order, depth in steps:
        ngram = ids[-order:]
        if len(ngram) == order and 0 not in ngram[:-1]:  # id 0 is no token, and nothing leads across it
            rows, at = find(chain, ngram, depth)
            if rows is not None:
                return rows[0] + np.float32(0), order, at if order > 1 else -1
    return np.zeros(dim, np.float32), 0, -1


def positions(n: int) -> list[int]:
    """The positions in a window, in the order in which a token's n vectors are added.

    The centre comes first, then right and left if n = 3, else the others from left to right.
    """
    centre = before(n)
    others = [p for p in range(n) if p != centre]
    return [centre, *(reversed(others) if n == 3 else others)]
