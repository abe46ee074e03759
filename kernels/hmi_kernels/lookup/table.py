"""The level table: the addresses of all indexes and rows of a chain, in the order of the look-up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from hmi_kernels.later import Later
from hmi_kernels.lookup.layout import MAX_N, PLAIN_SALT, REACH, Bytes, Keys, Window, header_bytes, stride
from hmi_kernels.lookup.reference import default_steps, positions

if TYPE_CHECKING:
    from hmi_kernels.lookup import cpu_build, cpu_index
else:
    cpu_build = Later("lookup.cpu_build")
    cpu_index = Later("lookup.cpu_index")

Ints = NDArray[np.int64]
MAX_LANES = 60  # the most levels of a filter with lanes: a word has a bit for each, and for the last level
FILTER_BYTES = 1 << 25  # the most of a filter with lanes: with more levels it has fewer groups
FILTER_SLOTS = 1 << 22  # an index with more slots gets no filter: it would not be worth the memory
SLOTS_PER_WORD = 8  # of a filter: six n-grams per word, which gives 1.6% false positives


@dataclass(frozen=True)
class RowsView:
    """The rows of one segment and which of them have been checked since it was mapped."""

    rows: Bytes  # uint8 [count, stride]
    # uint64 [(count + 63) // 64], writable: bit r % 64 of word r // 64 says whether row r has been checked.
    # All ones switch the checks off.
    verified: Keys


@dataclass(frozen=True)
class IndexRun:
    """One index over some segments of one version: the unit that the kernels probe."""

    order: int
    depth: int  # the version's place in the chain, 0 for the nearest
    dtype: int  # the code of the rows' storage type
    slots: Keys  # uint64 [cap]
    shift: int  # a row id is (ordinal << shift) | row
    direct: bool  # slots[token] is a row id or EMPTY_SLOT (order 1 only); else a hash index
    segments: tuple[RowsView, ...]  # by ordinal
    salt: int = PLAIN_SALT  # of a hash index: odd, below 2**64
    reach: int = REACH  # of a hash index: the slots that are searched, from an n-gram's home slot on
    # Returns the run's `index_filter`, for chains that end in the same index to share. None: each builds it.
    filter: Callable[[], Keys] | None = None


@dataclass(frozen=True)
class LevelTable:
    """A chain as the kernels read it. It keeps the arrays whose addresses it has alive.

    For the columns see cpu_index.py.
    """

    n: int
    dim: int
    window: Window
    runs: tuple[IndexRun, ...]  # one per level, in the levels' order
    levels: Ints  # [levels, LEVEL_COLUMNS]
    segs: Ints  # [segments, SEGMENT_COLUMNS]: the runs' segments, one run after the other
    steps: Ints  # [steps, 3]: order, first level, end level of each step of the back-off
    headers: Ints  # [n + 1]: bytes of a row's header by order
    # [n]: the positions of a centred window, in the order in which their vectors are added
    positions: Ints
    bounds: Ints  # [n + 2]: the levels of order k are bounds[n - k] : bounds[n - k + 1]
    orders: Ints  # [n + 1, ORDER_COLUMNS]: by order, its levels and their filters
    probes: Ints  # [steps, ORDER_COLUMNS]: the same by step of the back-off
    filters: tuple[Keys, ...]
    zeros: Bytes  # the vector that the kernels add where nothing was found
    fields: Ints  # [TABLE_FIELDS]: what is passed to the kernels
    plain: bool  # a centred window, n = 3 and the default steps: cpu.py can serve it


class DamagedRow(Exception):
    """A row fails its check. `segment` is the row's index in `LevelTable.segs`."""

    def __init__(self, segment: int, row: int) -> None:
        super().__init__(f"row {row} of segment {segment} fails its check")
        self.segment = segment
        self.row = row


def level_table(
    runs: Sequence[IndexRun],
    n: int,
    dim: int,
    steps: Sequence[tuple[int, int | None]] | None = None,
    window: Window = "centred",
) -> LevelTable:
    """Build the level table of a chain.

    runs: nearest version first, newest run of a version first; any mix of orders 1..n. steps: how a
    window is filled, a sequence of (order, depth), or (order, None) for every version. The default is
    the longest n-grams first.
    """
    assert 1 <= n <= MAX_N
    ordered = sorted(runs, key=lambda run: (-run.order, run.depth))  # stable: newest first inside a version
    levels = np.zeros((len(ordered), cpu_index.LEVEL_COLUMNS), np.int64)
    segs: list[tuple[int, int, int]] = []
    for i, run in enumerate(ordered):
        row_bytes = stride(n, run.order, dim, run.dtype, window)
        _check_run(run, row_bytes)
        levels[i] = _level(run, len(segs), row_bytes)
        for view in run.segments:
            segs.append((view.rows.ctypes.data, view.rows.shape[0], view.verified.ctypes.data))
    asked = default_steps(n) if steps is None else steps
    table = np.array(segs, np.int64).reshape(-1, cpu_index.SEGMENT_COLUMNS)
    bounds = np.searchsorted([-run.order for run in ordered], range(-n, 1)).astype(np.int64)
    orders, filters = _filters(ordered, n, bounds)
    headers = np.array([0, *(header_bytes(n, order, window) for order in range(1, n + 1))], np.int64)
    found = np.array([_step(ordered, *step) for step in asked], np.int64).reshape(-1, 3)
    zeros = np.zeros(64 + 4 * dim, np.uint8)
    parts = (levels, table, orders, headers, zeros)
    return LevelTable(
        n=n,
        dim=dim,
        window=window,
        runs=tuple(ordered),
        levels=levels,
        segs=table,
        steps=found,
        headers=headers,
        positions=np.array(positions(n), np.int64),
        bounds=bounds,
        orders=orders,
        probes=_probes(found, orders),
        filters=filters,
        zeros=zeros,
        fields=np.array(
            [*(part.ctypes.data for part in parts), dim, any(run.dtype for run in runs)], np.int64
        ),
        plain=window == "centred" and n == 3 and list(asked) == default_steps(n),
    )


def _level(run: IndexRun, first: int, row_bytes: int) -> tuple[int, ...]:
    """A row of `LevelTable.levels`. first: the number of segments before those of the run."""
    return (
        run.slots.ctypes.data,
        run.slots.size,
        first,
        len(run.segments),
        run.shift,
        run.dtype,
        run.depth,
        run.direct,
        run.order,
        row_bytes,
        salt_word(run),
        min(run.reach, run.slots.size),
    )


def salt_word(run: IndexRun) -> int:
    """The salt as an int64 with the same bits."""
    return run.salt - (run.salt >> 63 << 64)


def _filters(runs: Sequence[IndexRun], n: int, bounds: Ints) -> tuple[Ints, tuple[Keys, ...]]:
    """`LevelTable.orders` and `.filters`: for each order a filter of its last level and one of
    the levels before it."""
    orders, filters = np.zeros((n + 1, cpu_index.ORDER_COLUMNS), np.int64), []
    # Kernels prefetch a filter even if there is none, so its address must be cheap to prefetch.
    orders[:, [cpu_index.FILTER, cpu_index.LAST_FILTER]] = orders.ctypes.data
    for order in range(1, n + 1):
        first, end = bounds[n - order : n - order + 2].tolist()
        orders[order, [cpu_index.FIRST, cpu_index.END]] = first, end
        near = [run if _is_filtered(run) else None for run in runs[first : end - 1][:MAX_LANES]]
        if any(near):
            groups = _filter([run.slots if run else None for run in near], -(-len(near) // 4) * 4)
            unknown = ~sum(1 << lane for lane, run in enumerate(near) if run)
            orders[order, cpu_index.FILTER : cpu_index.LAST_FILTER] = (
                groups.ctypes.data,
                *groups.shape,
                unknown,
            )
            filters.append(groups)
        if 0 < end - first < 63 and _is_filtered(runs[end - 1]):
            words = (runs[end - 1].filter or partial(index_filter, runs[end - 1].slots))()
            orders[order, cpu_index.LAST_FILTER :] = words.ctypes.data, words.size, 1 << (end - 1 - first)
            filters.append(words)
    return orders, tuple(filters)


def _probes(steps: Ints, orders: Ints) -> Ints:
    """`LevelTable.probes`: a step that has not all levels of its order does without filters."""
    probes = orders[steps[:, 0]]
    bounds = [cpu_index.FIRST, cpu_index.END]
    some = (probes[:, bounds] != steps[:, 1:]).any(axis=1)
    probes[:, bounds] = steps[:, 1:]
    probes[np.ix_(some, [cpu_index.GROUPS, cpu_index.LAST_WORDS])] = 0
    return probes


def _is_filtered(run: IndexRun) -> bool:
    return not run.direct and run.slots.size <= FILTER_SLOTS


def index_filter(slots: Keys) -> Keys:
    """The filter of one index, uint64 [words, 1]."""
    return _filter([slots], 1)


def _filter(indexes: Sequence[Keys | None], lanes: int) -> Keys:
    """A filter with a lane for the slots of each index, uint64 [groups, lanes]; a lane without an index
    stays 0."""
    most = max(slots.size for slots in indexes if slots is not None)
    groups = _aligned(min(-(-most // SLOTS_PER_WORD), FILTER_BYTES // (8 * lanes)), lanes)
    for lane, slots in enumerate(indexes):
        if slots is not None:
            cpu_build.fill_filter(slots, lane, groups)
    return groups


def _aligned(groups: int, lanes: int) -> Keys:
    """Zeros, uint64 [groups, lanes], aligned so that no group of up to 8 lanes crosses a cache line."""
    room = np.zeros(groups * lanes + 8, np.uint64)
    skip = -room.ctypes.data % 64 // 8
    return room[skip : skip + groups * lanes].reshape(groups, lanes)


def _check_run(run: IndexRun, row_bytes: int) -> None:
    assert run.order == 1 or not run.direct
    assert run.slots.dtype == np.uint64
    assert run.slots.flags.c_contiguous
    assert run.slots.size > 0
    assert run.salt & 1
    for view in run.segments:
        assert view.rows.dtype == np.uint8
        assert view.rows.flags.c_contiguous
        assert view.rows.shape[1] == row_bytes
        assert view.verified.dtype == np.uint64
        assert view.verified.flags.c_contiguous
        assert view.verified.flags.writeable
        assert view.verified.size * 64 >= view.rows.shape[0]


def _step(runs: Sequence[IndexRun], order: int, depth: int | None) -> tuple[int, int, int]:
    """(order, first level, end level) of a step. Its levels are contiguous because the runs are sorted."""
    chosen = [i for i, run in enumerate(runs) if run.order == order and depth in (None, run.depth)]
    return (order, chosen[0], chosen[-1] + 1) if chosen else (order, 0, 0)
