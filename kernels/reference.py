"""The slow, obvious meaning of every kernel, in plain Python and numpy: the tests' oracle.

A chain here is a list of dictionaries, nearest version first:
{(a, b, c) | (x, y) | (x,): float32 [roles, dim]}.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from kernels.layout import NUMPY_TYPES

Vectors = NDArray[np.float32]
Entries = Mapping[tuple[int, ...], Vectors]


def stored(vectors: Vectors, dtype: int) -> Vectors:
    """What comes back after storing float32 [..., dim] as int8 (one scale per vector), fp16 or fp32."""
    if dtype == 0:
        scale = (np.abs(vectors).max(axis=-1, keepdims=True) / np.float32(127)).astype(np.float32)
        safe = np.where(scale > 0, scale, np.float32(1))
        codes = np.where(scale > 0, np.clip(np.rint(vectors / safe), -127, 127), 0)
        return np.asarray(codes.astype(np.float32) * scale)
    return np.asarray(vectors.astype(NUMPY_TYPES[dtype]), np.float32)


def find(chain: Sequence[Entries], ngram: tuple[int, ...]) -> tuple[Vectors | None, int]:
    """The nearest version's entry and its depth; (None, -1) if no version has it."""
    for depth, entries in enumerate(chain):
        if ngram in entries:
            return entries[ngram], depth
    return None, -1


def entry(chain: Sequence[Entries], a: int, b: int, c: int, dim: int) -> tuple[Vectors, int, int]:
    """(left, centre, right) float32 [3, dim] for centre b between a and c, the order served and its depth."""
    rows, depth = find(chain, (a, b, c))
    if rows is not None:
        return rows, 3, depth
    found = np.zeros((3, dim), np.float32)
    bl, depth_l = find(chain, (a, b)) if a else (None, -1)
    br, depth_r = find(chain, (b, c)) if c else (None, -1)
    ul, uc, ur = (find(chain, (x,))[0] for x in (a, b, c))
    half = np.float32(0.5)
    served = []
    if a:
        served.append((0, bl[0] if bl is not None else (ul[0] if ul is not None else None)))
    if c:
        served.append((2, br[3] if br is not None else (ur[2] if ur is not None else None)))
    if bl is not None and br is not None:
        served.append((1, half * bl[1] + half * br[2]))
    elif bl is not None:
        served.append((1, bl[1]))
    elif br is not None:
        served.append((1, br[2]))
    else:
        served.append((1, uc[1] if uc is not None else None))
    for role, vector in served:
        if vector is not None:
            found[role] = vector
    if bl is not None or br is not None:
        return found, 2, depth_l if bl is not None else depth_r
    return found, int(any(vector is not None for _, vector in served)), -1


def lookup(chain: Sequence[Entries], texts: Sequence[Sequence[int]], dim: int) -> tuple[Vectors, list[int], list[int]]:
    """float32 [sum of lengths, dim], the order served per token and its depth."""
    out: list[Vectors] = []
    orders: list[int] = []
    depths: list[int] = []
    for text in texts:
        padded = [0, *text, 0]
        cut = [entry(chain, padded[i], padded[i + 1], padded[i + 2], dim) for i in range(len(text))]
        for i, (rows, order, depth) in enumerate(cut):
            total = rows[1].copy()
            if i > 0:
                total = total + cut[i - 1][0][2]
            if i + 1 < len(text):
                total = total + cut[i + 1][0][0]
            out.append(total)
            orders.append(order)
            depths.append(depth)
    return (np.stack(out) if out else np.zeros((0, dim), np.float32)), orders, depths
