"""Readers: look-ups in one pinned version and its ancestors, by the fused kernel."""

from __future__ import annotations

import weakref
from time import monotonic
from types import TracebackType
from typing import Final, TypeVar, overload

import numpy as np
from hmi_kernels.lookup import layout, ops
from hmi_kernels.lookup.cuda import LookupDevice
from numpy.typing import NDArray

from plot_store.catalogue import version_tree
from plot_store.environment.environment import Environment
from plot_store.ground.errors import Closed, Damaged, Invalid
from plot_store.ground.ngrams import check_ngrams, check_order
from plot_store.ground.nouns import Hits, VersionInfo
from plot_store.reading.backoff import Backoff, steps_of
from plot_store.reading.device import DeviceReader, put_on_device
from plot_store.reading.mapped import MappedChain, damaged, index_run, map_chain
from plot_store.segments.mapping import let_go

__all__ = ["Reader", "index_run", "open_reader"]

Floats = NDArray[np.float32]
Bfloats = NDArray[np.uint16]  # the bits of bfloat16
Out = TypeVar("Out", Floats, Bfloats)
_INT32: Final = np.dtype(np.int32)
_INT64: Final = np.dtype(np.int64)
_WHOLE_S: Final = 1e-3  # a check takes a microsecond for each segment, a short look-up some ten
_OUT_TYPES: Final = (np.dtype(np.float32), np.dtype(np.uint16))


class Reader:
    """A snapshot of one version: publications, rollbacks, deletions and collection do not change it.

    Thread-safe. Its files stay mapped until `close`, even after the store is closed. Every row is checked
    when it is first used: a look-up returns what was written, or raises Damaged.
    """

    def __init__(self, environment: Environment, chain: tuple[VersionInfo, ...], mapped: MappedChain) -> None:
        self.version = chain[0]
        self.chain = chain
        self._mapped: MappedChain | None = mapped
        self._whole_at = -1.0  # the `monotonic()` of the last check of the files' sizes
        self._unpin = weakref.finalize(self, environment.let_go, self.version.id)

    @overload
    def lookup(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> tuple[Floats, Hits]: ...

    @overload
    def lookup(
        self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], *, out: Out
    ) -> tuple[Out, Hits]: ...

    def lookup(
        self, tokens: NDArray[np.int32], offsets: NDArray[np.int64], *, out: Floats | Bfloats | None = None
    ) -> tuple[Floats | Bfloats, Hits]:
        """Look up a ragged batch: text t is tokens[offsets[t]:offsets[t + 1]].

        tokens int32 [total], offsets int64 [texts + 1] -> (float32 [total, dim], Hits). Row i depends only
        on the tokens of its own text that are less than n places away, in a causal window on none after its
        own. `out`, if given, is filled and
        returned; a uint16 array takes the bits of bfloat16. Raises Invalid, Closed, Damaged; the content of
        `out` is then unspecified.
        """
        mapped, schema = self._whole(), self.version.schema
        _check_array(tokens, "tokens", _INT32)
        _check_array(offsets, "offsets", _INT64)
        if out is None:
            out = np.empty((tokens.size, schema.dim), np.float32)
        else:
            _check_out(out, (tokens.size, schema.dim))
        order, depth = np.empty(tokens.size, np.int8), np.empty(tokens.size, np.int16)
        try:
            mapped.read_ahead.lookup(tokens, offsets, schema.vocab, out, order, depth)
        except ValueError as error:
            raise Invalid(str(error)) from error
        except ops.DamagedRow as error:
            raise damaged(mapped, error) from error
        return out, Hits(order, depth, schema.n)

    def prefetch(self, tokens: NDArray[np.int32], offsets: NDArray[np.int64]) -> int:
        """Start reading from disk every row that `lookup` of this batch would touch. Returns their number.

        Does not wait. Meant for the next batch: for its own, `lookup` does the same while the reader is
        cold. Raises Invalid, Closed, Damaged.
        """
        mapped = self._whole()
        _check_array(tokens, "tokens", _INT32)
        _check_array(offsets, "offsets", _INT64)
        try:
            return mapped.read_ahead.ask(tokens, offsets)
        except ValueError as error:
            raise Invalid(str(error)) from error

    def contains(self, order: int, ngrams: NDArray[np.uint32]) -> NDArray[np.bool_]:
        """Return whether any version of the chain stores each n-gram: uint32 [m, order] -> bool [m].

        Raises Invalid, Closed, Damaged.
        """
        table, ids = self._asked(order, ngrams)
        return np.asarray(ops.find(table, order, ids, check=False)[0] != 0)

    def depths(self, order: int, ngrams: NDArray[np.uint32]) -> NDArray[np.int16]:
        """Return the chain position of the nearest version that stores each n-gram, or -1.

        uint32 [m, order] -> int16 [m]. Raises Invalid, Closed, Damaged.
        """
        table, ids = self._asked(order, ngrams)
        of_level = np.array([*(run.depth for run in table.runs), -1], np.int16)  # absent: level -1, the last
        found: NDArray[np.int16] = of_level[ops.find(table, order, ids, check=False)[1]]
        return found

    def ngrams(self, order: int) -> NDArray[np.uint32]:
        """Return the distinct n-grams that this version stores itself: uint32 [m, order], ascending.

        Raises Invalid, Closed, Damaged.
        """
        mapped, order = self._whole(), check_order(order, self.version.schema.n)
        mine = {s.name for s in self.version.segments if s.kind == "rows" and s.order == order}
        keys = [segment.keys for segment in mapped.segments if segment.info.name in mine]
        merged = np.concatenate(keys) if keys else np.empty((0, layout.words(order)), np.uint64)
        merged = merged[np.lexsort(merged.T)]  # the last word is the most significant
        fresh = np.ones(len(merged), np.bool_)
        fresh[1:] = (merged[1:] != merged[:-1]).any(axis=1)
        return layout.unpack_keys(merged[fresh], order)

    def get(self, order: int, ngrams: NDArray[np.uint32]) -> tuple[Floats, NDArray[np.int16]]:
        """Return the stored entries: uint32 [m, order] -> (float32 [m, roles, dim], depth int16 [m]).

        Absent n-grams give zeros and depth -1. This path is simple, and slower than `lookup`.
        Raises Invalid, Closed, Damaged.
        """
        table, ids = self._asked(order, ngrams)
        n, dim, window = table.n, table.dim, table.window
        try:
            addresses, levels = ops.find(table, order, ids)
        except ops.DamagedRow as error:
            raise damaged(self._open(), error) from error
        vectors = np.zeros((len(ids), layout.roles(n, order, window), dim), np.float32)
        depths = np.full(len(ids), -1, np.int16)
        for level, run in enumerate(table.runs):
            for rows in [view.rows for view in run.segments] if run.order == order else ():
                start = rows.ctypes.data
                here = np.flatnonzero(
                    (levels == level) & (addresses >= start) & (addresses < start + rows.nbytes)
                )
                picked = rows[(addresses[here] - start) // rows.shape[1]]
                vectors[here] = layout.decode(picked, n, order, dim, run.dtype, window)
                depths[here] = run.depth
        return vectors, depths

    def on_device(self, device: int | LookupDevice = 0) -> DeviceReader:
        """Copy this view to a CUDA device, checking every row.

        The copy works as long as this reader is open. Raises Closed, Damaged, Invalid (no such device, or no
        cupy), StoreFull (not enough device memory).
        """
        mapped = self._whole()
        try:
            return put_on_device(mapped.table, self.version.schema, device, self._open)
        except ops.DamagedRow as error:
            raise damaged(mapped, error) from error

    def _asked(self, order: int, ngrams: NDArray[np.uint32]) -> tuple[ops.LevelTable, NDArray[np.uint32]]:
        return self._whole().table, check_ngrams(order, ngrams, self.version.schema)

    def _open(self) -> MappedChain:
        mapped = self._mapped
        if mapped is None:
            raise Closed("the reader has been closed: open another with store.reader(ref)")
        return mapped

    def _whole(self) -> MappedChain:
        """As `_open`, before the mapped files are read. Raises Closed, Damaged."""
        mapped, now = self._open(), monotonic()
        if now - self._whole_at > _WHOLE_S:
            mapped.check_sizes()
            self._whole_at = now
        return mapped

    def let_go(self) -> None:
        """Drop the mapped files from this process's memory, for a process that must stay small.

        The system's cache keeps what other work leaves room for, and look-ups go on as before. Raises Closed.
        """
        for segment in self._open().segments:
            let_go(segment.raw)

    def close(self) -> None:
        """Release the pin and the mapped files. Running look-ups finish. Idempotent."""
        self._mapped = None
        self._unpin()

    def __enter__(self) -> Reader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def open_reader(environment: Environment, ref_or_id: str, backoff: Backoff = "order") -> Reader:
    """See `Store.reader`."""
    before: list[VersionInfo] = []
    while True:
        chain = environment.catalogue.read(
            lambda txn: version_tree.chain(txn, version_tree.resolve(txn, ref_or_id))
        )
        steps = steps_of(backoff, chain[0].schema.n, len(chain))
        environment.hold(chain[0].id)
        try:
            mapped, missing = map_chain(environment, chain, steps)
            if mapped is not None:
                environment.hold(chain[0].id)  # the reader's own, given back by its close
                return Reader(environment, tuple(chain), mapped)
        finally:
            environment.let_go(chain[0].id)
        # Another process may have published and collected this version since it was resolved, so resolve
        # again. Records are removed before files: if the version is still current, its file is lost.
        if chain == before:
            raise Damaged(
                f"segment {missing} is missing from the store: restore it with an import, or build it again"
            )
        before = chain


def _check_array(array: NDArray[np.generic], name: str, dtype: np.dtype[np.generic]) -> None:
    if (
        isinstance(array, np.ndarray)
        and array.dtype == dtype
        and array.ndim == 1
        and array.flags.c_contiguous
    ):
        return
    raise Invalid(f"{name} must be a one-dimensional, contiguous numpy array of {dtype.name}: convert it")


def _check_out(out: Floats | Bfloats, shape: tuple[int, int]) -> None:
    good = isinstance(out, np.ndarray) and out.shape == shape and out.dtype in _OUT_TYPES
    if not (good and out.flags.c_contiguous and out.flags.writeable):
        raise Invalid(
            f"out must be a writable, C-contiguous array of shape {shape}, float32 or (bits of bfloat16) "
            "uint16"
        )
