"""A reader: one version and its ancestors, mapped, pinned, looked up by the fused kernel."""

from __future__ import annotations

import weakref
from types import TracebackType

import numpy as np
from numpy.typing import NDArray

from kernels import layout, ops
from plot_store import version_tree
from plot_store.environment import Environment
from plot_store.errors import Closed, Damaged, Invalid
from plot_store.ngrams import check_ngrams
from plot_store.nouns import Hits, SegmentInfo, VersionInfo
from plot_store.segment import Segment

Floats = NDArray[np.float32]
_TRIES = 5


class Reader:
    """A point-in-time view of one version: publications, rollbacks, deletions and collection do not change it.

    Thread-safe. Holds its files mapped until `close`; works on after the store is closed.
    """

    def __init__(self, environment: Environment, chain: tuple[VersionInfo, ...], table: ops.LevelTable) -> None:
        self.version = chain[0]
        self.chain = chain
        self._table: ops.LevelTable | None = table
        self._unpin = weakref.finalize(self, environment.unpin, self.version.id)

    def lookup(
        self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], *, out: Floats | None = None
    ) -> tuple[Floats, Hits]:
        """Aggregated representations of a ragged batch: text t is tokens[offsets[t]:offsets[t + 1]].

        tokens int32 [total], offsets int64 [texts + 1] -> (float32 [total, dim], Hits). Row i depends on tokens
        i-2..i+2 of its own text only. `out`, if given, is filled and returned. Raises Invalid, Closed.
        """
        table = self._open_table()
        _check_array(tokens, "tokens", np.int32)
        _check_array(offsets, "offsets", np.int64)
        shape = (tokens.size, table.dim)
        if out is None:
            out = np.empty(shape, np.float32)
        elif out.shape != shape or out.dtype != np.float32 or not (out.flags.c_contiguous and out.flags.writeable):
            raise Invalid(f"out must be a writable, C-contiguous float32 array of shape {shape}")
        hits = Hits(np.empty(tokens.size, np.int8), np.empty(tokens.size, np.int16))
        try:
            ops.lookup(table, tokens, offsets, self.version.schema.vocab, out, hits.order, hits.depth)
        except ValueError as error:
            raise Invalid(str(error)) from error
        return out, hits

    def contains(self, order: int, ngrams: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Whether any version of the chain has each n-gram, uint32 [m, order] -> bool [m]. Raises Invalid, Closed."""
        table = self._open_table()
        keys = layout.pack_keys(check_ngrams(order, ngrams, self.version.schema.vocab))
        return np.asarray(ops.find(table, order, keys)[0] != 0)

    def depths(self, order: int, ngrams: NDArray[np.uint32]) -> NDArray[np.int16]:
        """Which version of the chain a look-up takes each n-gram from, uint32 [m, order] -> int16 [m]; -1: none has it.

        Raises Invalid, Closed.
        """
        table = self._open_table()
        keys = layout.pack_keys(check_ngrams(order, ngrams, self.version.schema.vocab))
        of_level = np.array([*(run.depth for run in table.runs), -1], np.int16)  # absent: level -1, the last
        found: NDArray[np.int16] = of_level[ops.find(table, order, keys)[1]]
        return found

    def own(self, order: int) -> NDArray[np.uint32]:
        """The n-grams that this version stores, ancestors left out: uint32 [m, order], ascending. Raises Closed."""
        table = self._open_table()
        runs = [run for run in table.runs if run.order == order and run.depth == 0]
        keys = [layout.row_keys(rows) for run in runs for rows in run.segments]
        return layout.unpack_keys(np.unique(np.concatenate(keys)) if keys else np.empty(0, np.uint64), order)

    def get(self, order: int, ngrams: NDArray[np.uint32]) -> tuple[Floats, NDArray[np.int16]]:
        """The stored entries, uint32 [m, order] -> (float32 [m, roles, dim], depth int16 [m]).

        Absent n-grams give zeros and depth -1. The slow, obvious path. Raises Invalid, Closed.
        """
        table = self._open_table()
        keys = layout.pack_keys(check_ngrams(order, ngrams, self.version.schema.vocab))
        addresses, levels = ops.find(table, order, keys)
        vectors = np.zeros((keys.size, layout.ROLES[order], table.dim), np.float32)
        depths = np.full(keys.size, -1, np.int16)
        for level, run in enumerate(table.runs):
            for rows in run.segments if run.order == order else ():
                start = rows.ctypes.data
                here = np.flatnonzero((levels == level) & (addresses >= start) & (addresses < start + rows.nbytes))
                picked = rows[(addresses[here] - start) // rows.shape[1]]
                vectors[here] = layout.decode(picked, order, table.dim, run.dtype)
                depths[here] = run.depth
        return vectors, depths

    def _open_table(self) -> ops.LevelTable:
        table = self._table
        if table is None:
            raise Closed("the reader has been closed: open another with store.reader(ref)")
        return table

    def close(self) -> None:
        """Give the pin and the mapped files back; look-ups already running finish. Again: nothing."""
        self._table = None
        self._unpin()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_reader(environment: Environment, ref_or_id: str) -> Reader:
    """Resolve, pin, map. Raises NotFound, Collected, Damaged, FormatTooNew, StoreIO."""
    missing = ""
    for _ in range(_TRIES):  # a collector in another process may unlink between resolving and mapping: look again
        chain = environment.catalogue.read(lambda txn: version_tree.chain(txn, version_tree.resolve(txn, ref_or_id)))
        environment.pin(chain[0].id)
        try:
            table, missing = _map_chain(environment, chain)
            if table is not None:
                environment.pin(chain[0].id)  # the reader's own, given back by its close
                return Reader(environment, tuple(chain), table)
        finally:
            environment.unpin(chain[0].id)
    raise Damaged(f"segment {missing} is missing from the store: restore it with an import, or build it again")


def _check_array(array: NDArray[np.generic], name: str, dtype: type[np.generic]) -> None:
    good = isinstance(array, np.ndarray) and array.dtype == dtype and array.ndim == 1 and array.flags.c_contiguous
    if not good:
        raise Invalid(f"{name} must be a one-dimensional, contiguous numpy array of {np.dtype(dtype).name}: convert it")


def _map_chain(environment: Environment, chain: list[VersionInfo]) -> tuple[ops.LevelTable | None, str]:
    """(the chain's kernel table, "") or (None, the name of a segment whose file is not there)."""
    runs: list[ops.IndexRun] = []
    for depth, version in enumerate(chain):
        opened: dict[str, Segment] = {}
        for info in version.segments:
            segment = environment.segments.get(info, version.schema)
            if segment is None:
                return None, info.name
            opened[info.name] = segment
        newest_first = [s for s in reversed(version.segments) if s.kind == "index"]
        runs.extend(index_run(opened, info, version, depth) for info in newest_first)
    return ops.level_table(runs, chain[0].schema.dim), ""


def index_run(opened: dict[str, Segment], info: SegmentInfo, version: VersionInfo, depth: int) -> ops.IndexRun:
    """The kernel's view of one index and the rows it covers. Raises Damaged when they do not fit together."""
    index = opened[info.name]
    shift = index.layout.shift
    rows = []
    for digest, count in index.covers:
        segment = opened.get(f"{digest}.rows")
        if segment is None or segment.info.order != info.order or segment.info.count != count or count > 1 << shift:
            raise Damaged(f"index {info.name} does not fit its rows: restore it from an export or build it again")
        rows.append(segment.rows)
    return ops.IndexRun(info.order, depth, version.schema.code, index.slots, shift, tuple(rows))
