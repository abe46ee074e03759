"""The queue of full buffers: one background thread writes, syncs and registers them in order.

Meanwhile the caller computes and encodes the next rows. The queue holds at most `IN_FLIGHT` buffers; if it is
full, the caller waits for the oldest. After a failure no later buffer is written, so the registered rows are
always a prefix of those added.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import replace
from typing import Final

import numpy as np
from hmi_kernels.lookup import layout
from hmi_kernels.lookup.layout import Bytes, Keys

from plot_store.catalogue import erased, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord
from plot_store.environment.environment import Environment
from plot_store.ground.nouns import Schema, SegmentInfo, VersionInfo
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Draft, Drafts
from plot_store.writing import builds, promote, publication

SEGMENT_BYTES: Final = 64 << 20
IN_FLIGHT: Final = 2
KEYS_BYTES: Final = 1 << 30  # keys kept in memory for the index; the others are read back from the segments


class SegmentWriter:
    """Writes the segments of one build. Call `submit`, `drain` and `close` from one thread only."""

    def __init__(self, environment: Environment, build: str, record: BuildRecord) -> None:
        self._environment = environment
        self._build = build
        self._record = record
        self._thread = ThreadPoolExecutor(1, f"plot-{build}")
        self._waiting: deque[Future[None]] = deque()
        self._spare: dict[int, Bytes] = {}  # one written buffer of each order, for reuse
        self._failure: BaseException | None = None
        self._closed = False
        self.keys: dict[str, Keys] = {}  # keys of segments by name, up to KEYS_BYTES

    @property
    def record(self) -> BuildRecord:
        """The registered build. All its segments are durable."""
        return self._record

    def buffer(self, order: int, segment_bytes: int) -> Bytes:
        """Return a buffer uint8 [rows, stride] of unspecified content, reusing one if possible."""
        spare = self._spare.pop(order, None)
        if spare is not None:
            return spare
        return empty_rows(self._record.schema, order, segment_bytes)

    def submit(self, order: int, rows: Bytes) -> None:
        """Queue a full buffer. Raises the error of an earlier one: StoreFull, StoreIO, Conflict."""
        while len(self._waiting) >= IN_FLIGHT:
            self._waiting.popleft().result()
        self.check()
        self._waiting.append(self._thread.submit(self._send, order, rows))

    def drain(self) -> None:
        """Wait until all queued buffers are durable and registered. Raises as `submit`."""
        while self._waiting:
            self._waiting.popleft().result()
        self.check()

    def check(self) -> None:
        """Raise the background thread's error, if there was one."""
        if self._failure is not None:
            raise self._failure

    def write(self, drafts: Drafts, order: int, rows: Bytes) -> SegmentInfo:
        """Write rows as a segment. Raises StoreFull, StoreIO."""
        edition = self._environment.catalogue.read(erased.edition)
        base = fmt.rows_layout(self._record.schema, order, rows.shape[0], edition)
        self._environment.check_room(rows.nbytes, "a segment")
        return drafts.add(base, rows.reshape(-1).data, [])

    def register(self, drafts: Sequence[Draft], record: BuildRecord) -> None:
        """Rename finished files and write the build's new record, in one transaction.

        Raises Conflict, StoreFull, StoreIO.
        """

        def body(txn: CatalogueTxn) -> None:
            builds.still_ours(txn, self._build, record)
            promote.promote(self._environment, txn, drafts)
            version_tree.put_build(txn, self._build, record)

        self._environment.catalogue.write(body)
        self._record = record

    def move(self) -> VersionInfo:
        """Make the ref's current version the build's base, which keeps it from collection, and return it.

        Raises Conflict, StoreFull, StoreIO.
        """
        record = replace(self._record, sealed=None)

        def body(txn: CatalogueTxn) -> VersionInfo:
            builds.still_ours(txn, self._build, record)
            base = publication.successor(txn, record)
            version_tree.put_build(txn, self._build, replace(record, base=base.id, touched=time.time()))
            return base

        base = self._environment.catalogue.write(body)
        self._record = replace(record, base=base.id)
        return base

    def close(self, *, drop: bool = False) -> None:
        """Stop the thread once its queue is empty; `drop` discards buffers not yet begun. Idempotent."""
        if self._closed:
            return
        self._closed = True
        self._thread.shutdown(wait=True, cancel_futures=drop)
        self._waiting.clear()
        self._spare.clear()
        self.keys.clear()

    def _send(self, order: int, rows: Bytes) -> None:
        if self._failure is not None:
            return
        drafts = Drafts(self._environment.folder)
        try:
            info = self.write(drafts, order, rows)
            grown = replace(self._record, segments=(*self._record.segments, info), touched=time.time())
            self.register(drafts.finish(), grown)
            kept = sum(keys.nbytes for keys in self.keys.values())
            if kept + 8 * rows.shape[0] * layout.words(order) <= KEYS_BYTES:
                self.keys[info.name] = layout.row_keys(rows, order)
        except BaseException as error:
            self._failure = error  # `check` raises it in the caller's thread
            return
        finally:
            drafts.discard()
        if order not in self._spare:
            self._spare[order] = rows


def empty_rows(schema: Schema, order: int, segment_bytes: int) -> Bytes:
    """Return uint8 [rows, stride] of unspecified content: as many rows as a segment of this size has."""
    stride = layout.stride(schema.n, order, schema.dim, schema.code, schema.window)
    return np.empty((max(1, (segment_bytes - 2 * fmt.PAGE) // stride), stride), np.uint8)
