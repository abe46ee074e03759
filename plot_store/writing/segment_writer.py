"""Full buffers on their way to disk: one background thread writes, syncs and registers them in order.

The caller computes and encodes the next rows meanwhile. At most `IN_FLIGHT` buffers wait; with more, the
caller waits for the oldest. After a failure no later buffer is written, so the registered rows are always a
beginning of the build.
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

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord
from plot_store.environment.environment import Environment
from plot_store.segments import format as fmt
from plot_store.segments.segment import Draft, write_segment
from plot_store.writing import builds, promote

IN_FLIGHT: Final = 2
KEYS_BYTES: Final = 1 << 30  # of keys kept for the index; past that they are read back from the segments


class SegmentWriter:
    """The finished segments of one build. `submit`, `drain` and `close` belong to one thread."""

    def __init__(self, environment: Environment, build: str, record: BuildRecord) -> None:
        self._environment = environment
        self._build = build
        self._record = record
        self._thread = ThreadPoolExecutor(1, f"plot-{build}")
        self._waiting: deque[Future[None]] = deque()
        self._spare: dict[int, Bytes] = {}  # one written buffer of each order, to be used again
        self._failure: BaseException | None = None
        self._closed = False
        self.keys: dict[str, Keys] = {}  # of this process's segments by name, while they are few

    @property
    def record(self) -> BuildRecord:
        """The build as registered: its segments are durable."""
        return self._record

    def buffer(self, order: int, segment_bytes: int) -> Bytes:
        """uint8 [rows, stride] of unspecified content, one that has been written if there is any."""
        spare = self._spare.pop(order, None)
        if spare is not None:
            return spare
        schema = self._record.schema
        stride = layout.stride(schema.n, order, schema.dim, schema.code)
        return np.empty((max(1, (segment_bytes - 2 * fmt.PAGE) // stride), stride), np.uint8)

    def submit(self, order: int, rows: Bytes) -> None:
        """Hand over a full buffer. Raises what an earlier one met: StoreFull, StoreIO, Conflict."""
        while len(self._waiting) >= IN_FLIGHT:
            self._waiting.popleft().result()
        self.check()
        self._waiting.append(self._thread.submit(self._send, order, rows))

    def drain(self) -> None:
        """Wait until all is durable and registered. Raises as `submit`."""
        while self._waiting:
            self._waiting.popleft().result()
        self.check()

    def check(self) -> None:
        """Raise what the thread met, if anything."""
        if self._failure is not None:
            raise self._failure

    def write(self, order: int, rows: Bytes) -> Draft:
        """Rows as a synced file that nobody knows yet. Raises StoreFull, StoreIO."""
        base = fmt.rows_layout(self._record.schema, order, rows.shape[0])
        self._environment.check_room(rows.nbytes, "a segment")
        draft = write_segment(self._environment.folder, base, rows.reshape(-1).data, [])
        kept = sum(keys.nbytes for keys in self.keys.values())
        if kept + 8 * rows.shape[0] * layout.words(order) <= KEYS_BYTES:
            self.keys[draft.info.name] = layout.row_keys(rows, order)
        return draft

    def register(self, drafts: Sequence[Draft], record: BuildRecord) -> None:
        """Name finished files and make them the build's, in one transaction. Raises Conflict, StoreFull,
        StoreIO."""

        def body(txn: CatalogueTxn) -> None:
            builds.still_ours(txn, self._build, record)
            promote.promote(self._environment.folder, drafts)
            version_tree.put_build(txn, self._build, record)

        self._environment.catalogue.write(body)
        self._record = record

    def close(self, *, drop: bool = False) -> None:
        """Wait for the thread and end it; `drop` leaves out what it has not begun. Again: nothing."""
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
        try:
            draft = self.write(order, rows)
            try:
                grown = replace(
                    self._record, segments=(*self._record.segments, draft.info), touched=time.time()
                )
                self.register([draft], grown)
            finally:
                promote.discard([draft])
        except BaseException as error:
            self._failure = error  # raised in the caller's thread, at its next step
            return
        if order not in self._spare:
            self._spare[order] = rows
