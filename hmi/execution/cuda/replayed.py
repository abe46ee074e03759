"""One batch's way through graphs: its numbers go where the graphs read them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from hmi.execution.batch import Rows
from hmi.execution.cuda.attention import Attention, BucketedAttention, Ragged
from hmi.execution.cuda.changes import NormTable, Way, delta
from hmi.execution.cuda.device import Stream
from hmi.execution.cuda.graphs import Captured
from hmi.execution.cuda.segmented import Changed, Segmented, TableSizes
from hmi.execution.cuda.slots import Entry
from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.execution.segments import Segment, segments_of
from hmi.model.network.encoder import Delta

if TYPE_CHECKING:
    from hmi.execution.cuda.executor import CudaExecutor

log = logging.getLogger("hmi.execution")


class Replayed:
    """A `Step` by graphs. A layer that has none yet is captured, and runs in any case."""

    def __init__(
        self, executor: CudaExecutor, stream: Stream, captured: Captured, entries: Mapping[int, Entry]
    ) -> None:
        self._of, self._stream, self._captured, self._entries = executor, stream, captured, entries
        self._able = True

    def begin(self, rows: Rows) -> None:
        """See `Step.begin`. The rows are in the shape's memory already."""
        upload, shape, device = ArrayUpload(), self._captured.shape, self._of.device
        size = shape.texts, shape.longest
        self._attention: Attention = (
            Ragged(rows.offsets, upload, *size)
            if self._of.ragged
            else BucketedAttention.padded(rows.offsets, upload, size, shape.rows)
        )
        texts = segments_of([self._entries.get(t) for t in rows.texts])
        self._used = list({id(s.module): s.module for s in texts}.values())
        in_rows = [s.rows(rows.offsets) for s in texts]
        of_row = np.repeat(np.arange(len(rows.texts)), np.diff(rows.offsets))
        room = TableSizes.of(shape.rows, shape.texts, shape.rank)
        changed = Changed(texts, self._of.slots, upload, room) if shape.rank else None
        self._of_rows = self._changes(in_rows, texts, of_row, shape.rows, changed, upload)
        each = np.arange(len(rows.texts))
        self._of_texts = self._changes(texts, texts, each, shape.texts, changed, upload)
        self._firsts = upload.add(_filled(np.asarray(rows.offsets[:-1]), shape.texts))
        if self._captured.indexes is None:
            with torch.inference_mode(False):
                self._captured.indexes = device.empty((upload.size,), torch.int64)
        upload.send(device, self._stream, self._captured.indexes)

    def layer(self, index: int, rows: Rows, first_only: bool) -> Tensor:
        for event in {id(e): e for entry in self._used for e in [entry.arrived[index]]}.values():
            self._stream.wait(event)
        shape, name = self._captured.shape, f"layer {index + 1}"
        x, out = self._captured.x[index % 2], self._captured.x[1 - index % 2]
        out = out[: shape.texts if first_only else shape.rows]
        make = self._layer(index, x[: shape.rows], out, first_only)
        graph = self._captured.graphs.get(index)
        if graph is None and self._able:
            try:
                graph = self._captured.graphs[index] = self._stream.capture(name, make, self._captured.pool)
            except Exception:
                self._able = False
                self._of.graphs.refuse(shape)
                log.warning("batches of the shape %s are not captured", shape, exc_info=True)
        if graph is None:
            self._stream.work(name, tuple(out.shape), out.dtype, make)
        else:
            self._stream.replay(graph, name)
        return out

    def _layer(self, index: int, x: Tensor, out: Tensor, first_only: bool) -> Callable[[], Tensor]:
        """The work that is recorded: x -> out, both in the shape's memory."""
        layer, heads, attention = self._of.layer(index), self._of.heads, self._attention
        of_rows, of_texts, firsts = self._of_rows(index), self._of_texts(index), self._firsts

        def queries(whole: Tensor) -> Tensor:
            return whole.index_select(0, firsts())

        def make() -> Tensor:
            if not first_only:
                return out.copy_(layer(x, attention.rows(heads), of_rows))
            attend = attention.firsts(heads)
            return out.copy_(layer(x, attend, of_rows, queries=queries, query_delta=of_texts))

        return make

    def _changes(
        self,
        segments: list[Segment[Entry]],
        texts: list[Segment[Entry]],
        of_row: Ints,
        rows: int,
        changed: Changed | None,
        upload: ArrayUpload,
    ) -> Callable[[int], Delta]:
        """The changes of each layer, on the rows of `segments`; row i is of text of_row[i]."""
        shape, slots, ways = self._captured.shape, self._of.slots, self._of.ways
        norms = NormTable(texts, _filled(of_row, rows), shape.texts, slots.memory, upload, shape.sites)
        way: Way | None = None
        if changed is not None:
            assert ways.launcher is not None
            room = TableSizes.of(rows, shape.texts, shape.rank)
            way = Segmented(segments, changed, upload, ways.launcher, room)
        return lambda index: delta(shape.sites, way, norms, index)


def _filled(array: Ints, size: int) -> Ints:
    """The array, and zeros up to a size."""
    out = np.zeros(size, np.int64)
    out[: len(array)] = array
    return out
