"""A writer: one build of one ref. Buffers rows, cuts them into finished segments, publishes them at once.

Order of a publication: temporary file, write, fsync, rename, fsync of the folder, one synced transaction with the
manifest and the compare-and-swap of the ref. A crash before the last leaves a build to resume, after it a version.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from kernels import layout, ops
from plot_store import builds, indexing, promote, records, version_tree
from plot_store import format as fmt
from plot_store.builds import Opened
from plot_store.catalogue import Txn
from plot_store.environment import Environment
from plot_store.errors import Closed, Conflict, Invalid
from plot_store.ngrams import check_ngrams, check_order, check_rows
from plot_store.nouns import SegmentInfo, VersionInfo
from plot_store.records import RefRecord
from plot_store.segment import Draft, write_segment

SEGMENT_BYTES: Final = 64 << 20


class _Special:
    """A value that is neither a version id nor None."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ANY: Final = _Special("ANY")  # publish over whatever is there
AS_OPENED: Final = _Special("AS_OPENED")  # only over what was current when the writer was opened
Expect = str | None | _Special


@dataclass
class _Buffer:
    """Encoded rows of one order that are not yet in a segment."""

    rows: layout.Bytes  # uint8 [capacity, stride]
    used: int = 0


class Writer:
    """Not thread-safe. Leaving it without `publish` keeps the finished segments for a resume of the same build."""

    def __init__(self, environment: Environment, opened: Opened, meta: dict[str, Any], segment_bytes: int) -> None:
        self._environment = environment
        self._build = opened.build
        self._record = opened.record
        self._current = opened.current
        self._base = opened.base
        self._meta = meta
        self._segment_bytes = segment_bytes
        self._buffers: dict[int, _Buffer] = {}
        self._keys: dict[str, layout.Keys] = {}  # of the segments cut by this process, for the index
        self._open = True

    @property
    def base(self) -> VersionInfo | None:
        """The version that an extending build adds to, fixed when the build began."""
        return self._base

    def resume_point(self, order: int) -> int:
        """How many n-grams of this order, counted as added, are durable in finished segments of this build."""
        check_order(order)
        return sum(s.count for s in self._record.segments if s.order == order)

    def add(self, order: int, ngrams: NDArray[np.uint32], rows: NDArray[np.float32]) -> None:
        """Add entries: uint32 [m, order] and float32 [m, roles, dim]; of equal n-grams the last added wins.

        Raises Invalid (shape, id outside the vocabulary, a number that the storage type cannot hold; nothing of this
        call is added then), StoreFull, StoreIO, Conflict (another writer took over the build).
        """
        self._check_open()
        schema = self._record.schema
        ids = check_ngrams(order, ngrams, schema.vocab)
        vectors = check_rows(order, ids.shape[0], rows, schema.dim)
        try:
            encoded = ops.encode(ids, vectors, schema.code)
        except ValueError as error:
            raise Invalid(f"{error}: look at the model that computed it, or use a wider dtype") from error
        done = 0
        while done < encoded.shape[0]:
            buffer = self._buffer(order)
            take = min(encoded.shape[0] - done, buffer.rows.shape[0] - buffer.used)
            buffer.rows[buffer.used : buffer.used + take] = encoded[done : done + take]
            buffer.used += take
            done += take
            if buffer.used == buffer.rows.shape[0]:
                self._cut(order)

    def publish(self, *, expect: Expect = AS_OPENED, meta: dict[str, Any] | None = None) -> VersionInfo:
        """Make everything added the ref's current version, at once and durably; the build ends and the writer closes.

        expect: the version id that must be current (None: the ref must not exist); by default what was current when
        the writer was opened; ANY overwrites. meta is laid over the writer's. Raises Conflict, StoreFull, StoreIO,
        Invalid; the build can then be resumed or aborted.
        """
        self._check_open()
        for order in layout.ORDERS:
            self._cut(order)
        wanted = self._current if expect is AS_OPENED else expect
        merged = records.check_meta({**self._meta, **(meta or {})})
        folder = self._environment.folder
        plan = indexing.plan(self._environment, self._record, self._base, self._keys)
        created = datetime.now(UTC).isoformat().replace("+00:00", "Z")

        def body(txn: Txn) -> VersionInfo:
            record = builds.still_ours(txn, self._build, self._record)
            previous = self._check_expected(txn, wanted)
            promote.promote(folder, plan.drafts)
            version = records.new_version(
                ref=record.ref, parent=record.parent, previous=previous, created=created, schema=record.schema,
                segments=plan.segments, build=self._build, meta=merged,
            )  # fmt: skip
            old = version_tree.get_ref(txn, record.ref)
            version_tree.put_version(txn, version)
            kept = () if old is None else old.versions
            version_tree.put_ref(txn, record.ref, RefRecord(version.id, (version.id, *kept)))
            txn.delete(version_tree.BUILD + self._build)
            return version

        try:
            version = self._environment.catalogue.write(body)
        finally:
            promote.discard(plan.drafts)
        self._close()
        return version

    def abort(self) -> None:
        """End the build and remove its segments. Again, or after `publish`: nothing."""
        if not self._open:
            return

        def body(txn: Txn) -> None:
            builds.still_ours(txn, self._build, self._record)
            txn.delete(version_tree.BUILD + self._build)

        self._environment.catalogue.write(body)
        promote.sweep(self._environment, [segment.name for segment in self._record.segments])
        self._close()

    def _check_expected(self, txn: Txn, wanted: Expect) -> str | None:
        """The ref's current version id. Raises Conflict unless it is the wanted one."""
        record = version_tree.get_ref(txn, self._record.ref)
        current = None if record is None else record.current
        if self._record.extend and current != self._record.base:
            raise Conflict(f"{self._record.ref} moved to {current} under an extending build: abort it and build again")
        if wanted is not ANY and current != wanted:
            raise Conflict(
                f"{self._record.ref} is at {current}, not at {wanted}: look at what was published, "
                "then publish with expect=that version, or abort"
            )
        return current

    def _buffer(self, order: int) -> _Buffer:
        if order not in self._buffers:
            stride = layout.stride(order, self._record.schema.dim, self._record.schema.code)
            rows = max(1, (self._segment_bytes - 2 * fmt.PAGE) // stride)
            self._buffers[order] = _Buffer(np.empty((rows, stride), np.uint8))
        return self._buffers[order]

    def _cut(self, order: int) -> None:
        """Turn the buffer into a finished segment, durable and registered with the build."""
        buffer = self._buffers.get(order)
        if buffer is None or buffer.used == 0:
            return
        rows = buffer.rows[: buffer.used]
        schema = self._record.schema
        base = fmt.Layout(fmt.ROWS, order, schema.code, schema.dim, schema.vocab, buffer.used)
        draft = write_segment(self._environment.folder, base, rows.data, [])
        try:
            self._register(draft)
        finally:
            promote.discard([draft])
        self._keys[draft.info.name] = layout.row_keys(rows)
        buffer.used = 0

    def _register(self, draft: Draft) -> None:
        segments: tuple[SegmentInfo, ...] = (*self._record.segments, draft.info)
        grown = replace(self._record, segments=segments, touched=time.time())

        def body(txn: Txn) -> None:
            builds.still_ours(txn, self._build, self._record)
            promote.promote(self._environment.folder, [draft])
            version_tree.put_build(txn, self._build, grown)

        self._environment.catalogue.write(body)
        self._record = grown

    def _check_open(self) -> None:
        if not self._open:
            raise Closed("the writer has been closed: open another with store.writer(...)")

    def _close(self) -> None:
        self._open = False
        self._buffers.clear()
        self._keys.clear()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._close()
