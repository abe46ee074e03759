"""Fallbacks: what a look-up gives for an n-gram that is not stored.

The distance of an entry to its fallback is the gain from storing it.
"""

from __future__ import annotations

import numpy as np
from hmi_kernels.lookup.layout import roles
from numpy.typing import NDArray

from plot_store.ground.ngrams import check_ngrams
from plot_store.reading.reader import Floats, Reader

Ngrams = NDArray[np.uint32]


def fallbacks(reader: Reader, order: int, ngrams: Ngrams) -> tuple[Floats, NDArray[np.int16]]:
    """Return what a look-up in the reader's chain gives for each n-gram, laid out like an entry.

    uint32 [m, order] -> (float32 [m, roles, dim], depth int16 [m]). If a version has the entry, the result
    is that entry and the version's depth. Otherwise it is the fill from shorter n-grams, as in back-off
    "order", with depth -1: for each token the mean over the longest stored n-grams inside this one, or
    zeros. In a causal window that is the longest stored end of the n-gram. Raises Invalid, Closed, Damaged.
    """
    ids = check_ngrams(order, ngrams, reader.version.schema)
    rows, depths = reader.get(order, ids)
    absent = np.flatnonzero(depths < 0)
    if reader.version.schema.window == "causal":
        for shorter in range(order - 1, 0, -1):
            entries, found = reader.get(shorter, ids[absent, -shorter:])
            # Id 0 is no token, and a look-up takes no n-gram that leads across it.
            found[(ids[absent, -shorter:-1] == 0).any(axis=1)] = -1
            rows[absent[found >= 0]] = entries[found >= 0]
            absent = absent[found < 0]
    elif absent.size:
        rows[absent] = _fill(reader, ids[absent]).reshape(absent.size, *rows.shape[1:])
    return rows, depths


def _fill(reader: Reader, ngrams: Ngrams) -> Floats:
    """Fill n-grams uint32 [m, order] from shorter ones: float32 [m, places in the window, order, dim]."""
    schema, (count, order) = reader.version.schema, ngrams.shape
    places = schema.n - order + 1
    fill = np.zeros((count, places, order, schema.dim), np.float32)
    todo = ngrams > 0  # id 0 lies outside the text and stays zero
    for shorter in range(order - 1, 0, -1):
        total, over = np.zeros_like(fill), np.zeros((count, order), np.int32)
        for start in range(order - shorter + 1):
            inside = slice(start, start + shorter)
            asked = np.flatnonzero((ngrams[:, inside] > 0).all(axis=1) & todo[:, inside].any(axis=1))
            entries, depths = reader.get(shorter, ngrams[asked, inside])
            found = asked[depths >= 0]
            # An entry's vectors are ordered by its own place in the window: the n-gram's place plus `start`.
            placed = entries[depths >= 0].reshape(len(found), schema.n - shorter + 1, shorter, schema.dim)
            total[found, :, inside] += placed[:, start : start + places]
            over[found, inside] += 1
        filled = todo & (over > 0)
        at, token = np.nonzero(filled)
        fill[at, :, token] = total[at, :, token] / over[at, token][:, None, None]
        todo &= ~filled
    return fill


def differences(reader: Reader, order: int, ngrams: Ngrams, rows: Floats) -> tuple[Floats, NDArray[np.int16]]:
    """Return the distances of entries to their fallbacks, relative to the entries' lengths.

    ngrams uint32 [m, order], rows float32 [m, roles, dim] -> (float32 [m], depth int16 [m] as in
    `fallbacks`). The distance is the L2 norm over all vectors of an entry, divided by the entry's norm. 0
    means equal; for an entry of zeros it is the fallback's norm. Raises as `fallbacks`.
    """
    given, depths = fallbacks(reader, order, ngrams)
    schema = reader.version.schema
    assert rows.shape == (len(ngrams), roles(schema.n, order, schema.window), schema.dim)
    away = np.sqrt(np.square(rows - given).sum(axis=(1, 2)))
    length = np.sqrt(np.square(rows).sum(axis=(1, 2)))
    return away / np.where(length > 0, length, np.float32(1)), depths
