"""Writers: one build of one ref, which is published atomically.

Rows are encoded into buffers, and full buffers are written to disk. `seal` makes everything durable, indexes
included, and registers it; a later `publish` is then one synced transaction. `publish` without `seal` first
syncs the files, and then registers and publishes them in one transaction.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from types import TracebackType
from typing import Any, Final

import numpy as np
from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import TOO_LARGE, Bytes
from numpy.typing import NDArray

from plot_store.catalogue import records, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord
from plot_store.environment.environment import Environment
from plot_store.ground.errors import Closed, Conflict, Damaged, Forked, Invalid
from plot_store.ground.ngrams import check_ngrams, check_order, check_rows
from plot_store.ground.nouns import SegmentInfo, VersionInfo
from plot_store.reading.mapped import map_chain
from plot_store.reading.reader import Reader
from plot_store.segments.drafts import Draft
from plot_store.writing import builds, indexing, promote, publication
from plot_store.writing.builds import Opened
from plot_store.writing.merging import MAX_RACED, MAX_RUNS, Merge
from plot_store.writing.publication import ANY, AS_OPENED, ON_TOP, Expect, Moved, PublishRequest
from plot_store.writing.segment_writer import SEGMENT_BYTES, SegmentWriter

__all__ = ["ANY", "AS_OPENED", "SEGMENT_BYTES", "Expect", "Writer"]

MAX_TRIES: Final = 16  # to publish on top of a ref that keeps moving


@dataclass
class _Buffer:
    """Encoded rows of one order that are not yet in a segment."""

    rows: Bytes  # uint8 [capacity, stride]
    used: int = 0


@dataclass(frozen=True)
class _Leftover:
    """A finished build. All its files are on disk, but not all are registered."""

    record: BuildRecord  # its segments have all rows of the build but those that share a segment with copies
    segments: tuple[SegmentInfo, ...]  # all segments of the version to publish
    drafts: tuple[Draft, ...]  # the files not yet registered
    onto: Callable[[VersionInfo], tuple[SegmentInfo, ...] | None] | None = None  # see `PublishRequest`


class Writer:
    """Writes and publishes one build. Not thread-safe.

    Closing it without `publish` keeps the finished segments, and the build can be resumed.
    """

    def __init__(
        self,
        environment: Environment,
        opened: Opened,
        meta: dict[str, Any],
        segment_bytes: int,
        merges: Sequence[Merge] = (),
    ) -> None:
        """merges: the merges whose copies this build's caller adds, if any. Others are planned at the end."""
        self._environment = environment
        self._build = opened.build
        self._current = opened.current
        self._base = opened.base
        self._meta = meta
        self._segment_bytes = segment_bytes
        self._merges = {merge.order: merge for merge in merges}
        self._segments = SegmentWriter(environment, opened.build, opened.record)
        self._buffers: dict[int, _Buffer] = {}
        self._open = True

    @property
    def base(self) -> VersionInfo | None:
        """The version that an extending build adds to, fixed when the build began; otherwise None."""
        return self._base

    def resume_point(self, order: int) -> int:
        """Return how many of the n-grams added for this order are durable.

        A resumed build continues after them. Raises Invalid.
        """
        record = self._segments.record
        check_order(order, record.schema.n)
        return sum(s.count for s in record.segments if s.order == order)

    def add(self, order: int, ngrams: NDArray[np.uint32], rows: NDArray[np.float32]) -> None:
        """Add entries. The last of equal n-grams wins.

        ngrams: uint32 [m, order]. rows: float32 [m, roles, dim]. A background thread writes full segments, so
        a later call raises their errors: StoreFull, StoreIO, Conflict (another writer took over the build).
        Raises Closed, Forked, and Invalid (wrong shape, an id outside the vocabulary, a number that the
        storage type cannot hold); nothing of this call is added then.
        """
        self._check_open()
        self._segments.check()
        schema = self._segments.record.schema
        ids = check_ngrams(order, ngrams, schema)
        vectors = check_rows(order, ids.shape[0], rows, schema)
        if ids.shape[0]:
            self._unseal()
        if ids.shape[0] > self._room(order):
            # The call may fill a segment, so it must not fail halfway.
            _check_storable(vectors, schema.code)
        for start, place in self._places(order, ids.shape[0]):
            end = start + len(place)
            try:
                ops.encode(
                    ids[start:end], vectors[start:end], schema.code, schema.n, schema.window, out=place
                )
            except ValueError as error:
                raise Invalid(f"{error}: look at the model that computed it, or use a wider dtype") from error

    def add_encoded(self, order: int, rows: Bytes) -> None:
        """Add rows uint8 [m, stride] in the stored form of this schema, checks included. Raises as `add`."""
        self._check_open()
        self._segments.check()
        if rows.shape[0]:
            self._unseal()
        for start, place in self._places(order, rows.shape[0]):
            place[:] = rows[start : start + len(place)]

    def seal(self) -> None:
        """Make everything added durable, indexes included, so that `publish` is one synced transaction.

        Adding more entries undoes the seal. Raises StoreFull, StoreIO, Conflict, Closed, Forked, Invalid (too
        many rows for one index).
        """
        self._check_open()
        if self._segments.record.sealed is not None:
            return
        left = self._finish(MAX_RUNS, apart=True)
        try:
            self._segments.register(
                left.drafts, replace(left.record, sealed=left.segments, touched=time.time())
            )
        finally:
            promote.discard(left.drafts)
        self._buffers.clear()

    def so_far(self) -> Reader:
        """Seal, and return a reader of the version that `publish` would create now. More can be added later.

        The reader's version has no id. Later changes of the build do not affect the reader. Raises
        as `seal`, and Damaged.
        """
        self.seal()
        record = self._segments.record
        assert record.sealed is not None
        chain = [
            VersionInfo(
                "", record.ref, record.parent, self._current, "", record.schema, record.sealed, self._build
            ),
            *self._environment.catalogue.read(lambda txn: _ancestors(txn, record.parent)),
        ]
        mapped, missing = map_chain(self._environment, chain, None)
        if mapped is None:
            raise Damaged(
                f"segment {missing} is missing from the store: restore it with an import, or build it again"
            )
        # No pin is needed: the build's record keeps its segments and its ancestors from collection.
        return Reader(self._environment, tuple(chain), mapped)

    def publish(
        self, *, expect: Expect = AS_OPENED, meta: dict[str, Any] | None = None, apart: bool = False
    ) -> VersionInfo:
        """Publish everything added, atomically and durably, and close the writer.

        expect: the id of the version that must be current (None: the ref must not exist; ANY: no check); by
        default the one that was current when the writer was opened. meta: JSON, at most 64 levels deep, which
        is merged over the writer's meta. apart: leave the ref where it is, for another store to publish the
        version (`Fetching.publish`); a pin whose owner is the build's id keeps it here.

        Raises Conflict, StoreFull, StoreIO, Invalid, Closed, Forked; after the first four the build can be
        published again, resumed or aborted.
        """
        self._check_open()
        wanted = self._current if expect is AS_OPENED else expect
        merged = records.check_meta({**self._meta, **(meta or {})})
        if wanted is not ON_TOP:
            self._environment.catalogue.read(lambda txn: self._check_first(txn, wanted))
        for tried in range(MAX_TRIES):
            left = self._finish(MAX_RACED if tried else MAX_RUNS)
            request = PublishRequest(
                self._build, left.record, left.segments, wanted, merged, self._base, left.onto, apart
            )
            try:
                version = publication.publish(self._environment, request, left.drafts)
            except Moved:
                self._base = self._segments.move()
                continue
            finally:
                promote.discard(left.drafts)
            self._close()
            return version
        raise Conflict(
            f"{self._segments.record.ref} moved {MAX_TRIES} times while this build made indexes: try again"
        )

    def abort(self) -> None:
        """End the build and remove its segments. No effect on a closed writer. Raises Conflict, StoreIO."""
        if not self._open:
            return
        self._check_open()
        self._open = False  # segments in flight are dropped now, so nothing may be published
        self._segments.close(drop=True)
        record = self._segments.record
        try:
            self._environment.catalogue.write(lambda txn: self._end(txn, record))
            promote.sweep(self._environment, record.names)
        finally:
            self._close()

    def _end(self, txn: CatalogueTxn, record: BuildRecord) -> None:
        builds.still_ours(txn, self._build, record)
        txn.delete(version_tree.BUILD + self._build)

    def _check_first(self, txn: CatalogueTxn, wanted: Expect) -> None:
        """Check early for conflicts, so that a lost race costs no writing. Raises Conflict."""
        builds.still_ours(txn, self._build, self._segments.record)
        publication.check_expected(txn, self._segments.record, wanted)

    def _finish(self, runs: int, apart: bool = False) -> _Leftover:
        """Write the rest of the buffers, and the indexes, unless the build is sealed.

        The buffers are kept until all is registered. runs, apart: see `indexing.plan`.
        """
        record = self._segments.record
        if record.sealed is not None:
            return _Leftover(record, record.sealed, ())
        self._segments.drain()
        record = self._segments.record
        loose = {order: buffer.rows[: buffer.used] for order, buffer in self._buffers.items() if buffer.used}
        plan = indexing.plan(
            self._environment, self._segments, self._base, loose, self._merges, runs=runs, apart=apart
        )
        return _Leftover(replace(record, segments=plan.rows), plan.segments, plan.drafts, plan.onto)

    def _unseal(self) -> None:
        """Undo `seal`: new entries make its indexes outdated."""
        record = self._segments.record
        if record.sealed is None:
            return
        gone = record.names - {segment.name for segment in record.segments}
        self._segments.register([], replace(record, sealed=None, touched=time.time()))
        promote.sweep(self._environment, gone)

    def _room(self, order: int) -> int:
        """Return how many rows still fit in the buffer of an order."""
        buffer = self._buffer(order)
        return len(buffer.rows) - buffer.used

    def _places(self, order: int, count: int) -> Iterator[tuple[int, Bytes]]:
        """Yield (start, uint8 [m, stride] to fill) until there is a place for each of `count` rows.

        The caller must fill each place before it asks for the next. Full buffers are queued for writing.
        """
        start = 0
        while start < count:
            buffer = self._buffer(order)
            place = buffer.rows[buffer.used : buffer.used + count - start]
            yield start, place
            start += len(place)
            buffer.used += len(place)
            if buffer.used == buffer.rows.shape[0]:
                self._segments.submit(order, self._buffers.pop(order).rows)

    def _buffer(self, order: int) -> _Buffer:
        if order not in self._buffers:
            self._buffers[order] = _Buffer(self._segments.buffer(order, self._segment_bytes))
        return self._buffers[order]

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("the writer has been closed: open another with store.writer(...)")
        if os.getpid() != self._environment.pid:
            raise Forked("this writer was opened before a fork: open the store again in the child process")

    def _close(self) -> None:
        self._open = False
        self._buffers.clear()
        if os.getpid() == self._environment.pid:
            self._segments.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()


def _ancestors(txn: CatalogueTxn, parent: str | None) -> list[VersionInfo]:
    return [] if parent is None else version_tree.chain(txn, version_tree.get_version(txn, parent))


def _check_storable(vectors: NDArray[np.float32], code: int) -> None:
    """Raises Invalid if a number is infinite, NaN or too large for its storage type."""
    limit = TOO_LARGE[code]  # NaN fails too, since it becomes minimum and maximum
    if not -limit < vectors.min() <= vectors.max() < limit:
        raise Invalid(
            "a representation is infinite, NaN or too large for its storage type: look at the model that "
            "computed it, or use a wider dtype"
        )
