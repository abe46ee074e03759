"""What caches hold after a long time, so that a simulation need not begin with empty ones."""

from __future__ import annotations

import math
from typing import Final

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
PAGE: Final = 4096
"""Bytes that the system reads and keeps together."""
CLASSES: Final = 200
"""Pages of a PLOT are counted in this many classes of about equal rates."""
_STEPS: Final = 200


def zipf(count: int, exponent: float) -> Floats:
    """Return shares by rank, shape (count,): in proportion to the rank to the power of minus `exponent`."""
    shares = np.arange(1, count + 1, dtype=np.float64) ** -exponent
    return np.asarray(shares / shares.sum())


def last_uses(rates: Floats, draw: np.random.Generator) -> Floats:
    """Draw how many seconds ago each thing was used last. rates: uses a second, at random times."""
    return draw.standard_exponential(len(rates)) / rates


def lru(ages: Floats, room: int) -> NDArray[np.intp]:
    """Return the indices of what an LRU cache with room for `room` things holds, oldest use first.

    An LRU cache holds those used last. So this is exact, if `ages` are.
    """
    if room < len(ages):
        held = np.argpartition(ages, room)[:room]
        return held[np.argsort(-ages[held])]
    return np.argsort(-ages)


def kept_s(rates: Floats, sizes: Floats, room: float) -> float:
    """Return for how many seconds an LRU cache keeps what is not used again; inf if everything fits.

    Che, Tung and Wang 2002: this time is nearly the same for all things, so it is the one at which what was
    used within it fills the cache.
    """
    if sizes.sum() <= room:
        return math.inf
    low, high = 0.0, room / float(rates @ sizes) + 1e-9
    while float(sizes @ -np.expm1(-rates * high)) < room:
        low, high = high, 2 * high
    for _ in range(_STEPS):
        middle = (low + high) / 2
        if float(sizes @ -np.expm1(-rates * middle)) < room:
            low = middle
        else:
            high = middle
        if high - low < 1e-6 * high:
            break
    return high


def rows_in_memory(look_ups: Floats, rows: float, row_bytes: int, exponent: float, room: float) -> Floats:
    """Return the share of each domain's look-ups whose row is in memory, shape (domains,).

    look_ups: a second, by domain. rows: of each domain. exponent: of the rows' popularity (`zipf`). room:
    bytes that the system has for the PLOTs. The system keeps whole pages. Rows lie in them in no order of
    popularity, so the most popular rows have a page each, and all pages share the other rows.
    """
    if rows * row_bytes * len(look_ups) <= room:
        return np.ones(len(look_ups))
    pages = max(1.0, min(rows, rows * row_bytes / PAGE))
    edges = np.unique(np.geomspace(1.0, pages + 1.0, CLASSES + 1))
    counts = np.diff(edges)
    top, everything = _mass(edges, exponent), float(_mass(np.array([1.0, rows + 1.0]), exponent)[-1])
    shares = np.diff(top) / everything + (1 - top[-1] / everything) * counts / pages
    rates = np.outer(look_ups, shares / counts)
    sizes = np.broadcast_to(counts * PAGE, rates.shape)
    kept = kept_s(rates.ravel(), sizes.ravel(), room)
    return np.asarray(-np.expm1(-rates * kept) @ shares)


def _mass(edges: Floats, exponent: float) -> Floats:
    """The integral of x to the power of minus `exponent` from 1 to each edge."""
    if abs(exponent - 1) < 1e-9:
        return np.log(edges)
    return np.asarray((edges ** (1 - exponent) - 1) / (1 - exponent))
