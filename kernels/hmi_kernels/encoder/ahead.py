"""Prefetches modules into the cache, while the products before their use are computed.

A text's module is read once a layer, and a batch of many tenants reads more of them than a cache holds. The
processor's own prefetcher finds a module's beginning too late, since no two modules lie side by side. So each
tile of a product asks for some lines of one run's module, between its own instructions, and the next tile for
the next run's. A module lies in the order of its use, so one mark for each run tells how far it is fetched.
"""

from __future__ import annotations

from typing import Any

from hmi_kernels.encoder.room import FETCH_COUNT, FETCH_LEFT, FETCH_NEXT, FETCH_RATE, FETCH_RUNS, FETCHES
from hmi_kernels.encoder.tile import VECTORS, passes_of
from hmi_kernels.jit import get, put, whole

FIRST, LAST, MODULE, FETCHED, UNTIL = range(5)
RUN_FIELDS = 5
"""A run of texts with one module: first row, end, the module's record (0: none), how far it is fetched, and
how far it is to be fetched now."""
REST, END = range(2)
AHEAD_FIELDS = 2
"""The first fields of a module's record: the end of the beginning, which the first product needs at once; the
end of the layer's part of the module."""
LINE = 64
"""Bytes of a cache line."""


@whole
def fetch(room: Any, runs: Any, count: Any, begin: Any, panels: Any) -> None:
    """Let the next products, of so many panels, fetch these runs' modules: the beginnings alone, or the
    rest."""
    left = 0
    for s in range(count):
        run = runs + 8 * RUN_FIELDS * s
        module, at, end = get(run, MODULE), get(run, FETCHED), 0
        if module != 0:
            end = get(module, REST)
            if not begin:
                at, end = max(at, end), get(module, END)
            left += max(0, end - at)
        put(run, FETCHED, at)
        put(run, UNTIL, end)
    put(room, FETCH_RUNS, runs)
    put(room, FETCH_COUNT, count)
    put(room, FETCH_NEXT, 0)
    put(room, FETCH_LEFT, left)
    put(room, FETCH_RATE, left // panels + 1)


@whole
def fetched(room: Any, words: Any, t: Any) -> Any:
    """Return the address from which tile t of a panel fetches a line at each of its words; 0: nothing."""
    left, size = get(room, FETCH_LEFT), LINE * words
    if left <= 0 or t * size >= get(room, FETCH_RATE):
        return 0
    count, s = get(room, FETCH_COUNT), get(room, FETCH_NEXT)
    for _ in range(count):
        run = get(room, FETCH_RUNS) + 8 * RUN_FIELDS * s
        s = s + 1 if s + 1 < count else 0
        at, end = get(run, FETCHED), get(run, UNTIL)
        if at < end:
            to = min(at + size, end)
            put(run, FETCHED, to)
            put(room, FETCH_NEXT, s)
            put(room, FETCH_LEFT, left - (to - at))
            return at
    put(room, FETCH_LEFT, 0)
    return 0


@whole
def set_fetches(room: Any, panel: Any, words: Any, n: Any, t: Any, tiles: Any) -> None:
    """Set what tile t of a panel, of n rows, fetches: some of the panel behind this one, and of modules.

    A panel is fetched in parts, by all of its tiles: in a burst the requests would wait for each other.
    """
    # A part is a line for each word of each of the tile's passes, and a panel has four lines for each word.
    passes = passes_of(n)
    part, behind = passes * LINE * words, panel + VECTORS * LINE * words
    first, second = behind + t * part, fetched(room, passes * words, t)
    if tiles * n == 1 or t * passes >= VECTORS:  # a row alone waits for memory, and requests only delay it
        first = 0
    elif second == 0 and (tiles + t) * passes < VECTORS:
        second = behind + (tiles + t) * part
    # Without a line to fetch, one that is there is.
    put(room, FETCHES, first if first != 0 else room)
    put(room, FETCHES + 1, LINE if first != 0 else 0)
    put(room, FETCHES + 2, second if second != 0 else room)
    put(room, FETCHES + 3, LINE if second != 0 else 0)
