"""Prefetches modules into the cache, while the products before their use are computed.

A text's module is read once a layer, and a batch of many tenants reads more of them than a cache holds. The
processor's own prefetcher finds a module's beginning too late, since no two modules lie side by side. So each
tile of a product asks for a few lines of the modules whose rows it begins. A module lies in the order of its
use, so one mark for each run of texts tells how far it has been fetched.
"""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder.room import FETCH_BEGIN, FETCH_COUNT, FETCH_RUNS
from hmi_kernels.jit import get, prefetch, put, whole

FIRST, LAST, MODULE, FETCHED = range(4)
RUN_FIELDS = 4
"""A run of texts with one module: first row, end, the module's record (0: none), how far it is fetched."""
REST, END, REST_RATE, BEGIN_RATE = range(4)
AHEAD_FIELDS = 4
"""The first fields of a module's record: the end of the beginning, which the first product needs at once; the
end of the layer's part of the module; how many bytes of the rest, and of the beginning, to fetch for each
panel of a product."""


@whole
def fetch(room: Any, runs: Any, count: Any, begin: Any) -> None:
    """Let the next products fetch these runs' modules: the beginnings alone, or the rest."""
    put(room, FETCH_RUNS, runs)
    put(room, FETCH_COUNT, count)
    put(room, FETCH_BEGIN, begin)


@whole
def fetched(room: Any, s: Any, row: Any) -> Any:
    """Fetch more of the modules of the runs from s on that begin before a row.

    Returns the first run that does not.
    """
    count, begin = get(room, FETCH_COUNT), get(room, FETCH_BEGIN)
    while s < count:
        run = get(room, FETCH_RUNS) + 8 * RUN_FIELDS * s
        if get(run, FIRST) >= row:
            break
        module, at = get(run, MODULE), get(run, FETCHED)
        if module != 0:
            if begin:
                end = min(at + get(module, BEGIN_RATE), get(module, REST))
            else:
                at = max(at, get(module, REST))
                end = min(at + get(module, REST_RATE), get(module, END))
            while at < end:
                prefetch(at)
                at += 64
            put(run, FETCHED, at)
        s += 1
    return s
