"""An executor on a CUDA device; `hmi.execution.packed` is the reference."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.execution.cuda.attention import Attention, BucketedAttention, Ragged, ragged_on
from hmi.execution.cuda.changes import NormLoop, NormTable, Way, delta, sites_at
from hmi.execution.cuda.device import Device, Stream, StreamEvent, fault_of
from hmi.execution.cuda.graphs import Captured, Graphs
from hmi.execution.cuda.layout import Packed, lora_size, pack
from hmi.execution.cuda.segmented import Changed, Segmented, TableSizes
from hmi.execution.cuda.slots import Entry, Slots
from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.execution.cuda.ways import Ways
from hmi.execution.layers import LayerRun, run_layers
from hmi.execution.segments import Segment, segments_of
from hmi.model.network.encoder import Delta, EncoderLayer
from hmi.model.network.relative import by_distance
from hmi.model.network.shape import EncoderShape
from hmi.model.tenant.modules import TenantModule

log = logging.getLogger("hmi.execution")


class Replayed:
    """A `LayerRun` by graphs. A layer that has none yet is captured, and runs in any case."""

    def __init__(
        self, executor: CudaExecutor, stream: Stream, captured: Captured, entries: Mapping[int, Entry]
    ) -> None:
        self._of, self._stream, self._captured, self._entries = executor, stream, captured, entries
        self._able = True

    def begin(self, rows: Rows) -> None:
        """See `LayerRun.begin`. The rows are in the shape's memory already."""
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


class Linear(nn.Module):
    """x [..., in] of any float type -> [..., out] in the weights' dtype."""

    def __init__(self, linear: nn.Module, dtype: torch.dtype, device: Device) -> None:
        super().__init__()
        assert isinstance(linear, nn.Linear), "layers are taken before they are packed otherwise"
        bias: Tensor | None = linear.bias
        self.weight = device.put(linear.weight.detach().to(dtype))
        self.bias = None if bias is None else device.put(bias.detach().to(dtype))

    def forward(self, x: Tensor) -> Tensor:
        return F.linear(x.to(self.weight.dtype), self.weight, self.bias)


class DeviceLayer(EncoderLayer):
    """A copy of a root's layer on a device. `relative` is by distance: [heads, 2 · positions - 1].

    Products are in the executor's dtype, residuals and LayerNorms in fp32.
    """

    def __init__(self, layer: nn.Module, shape: EncoderShape, dtype: torch.dtype, device: Device) -> None:
        nn.Module.__init__(self)
        assert isinstance(layer, EncoderLayer)
        self.dim = layer.dim
        self.qkv, self.o = Linear(layer.qkv, dtype, device), Linear(layer.o, dtype, device)
        self.fi, self.fo = Linear(layer.fi, dtype, device), Linear(layer.fo, dtype, device)
        self.ln1, self.ln2 = _norm(layer.ln1, device), _norm(layer.ln2, device)
        self.relative = None
        if layer.relative is not None:
            table = by_distance(layer.relative.detach(), shape.positions).to(dtype).contiguous()
            self.relative = nn.Parameter(device.put(table), requires_grad=False)

    def project(self, x: Tensor, xq: Tensor | None = None) -> tuple[Tensor, Tensor, Tensor]:
        qkv, d = self.qkv, self.dim
        assert isinstance(qkv, Linear)
        if xq is None:
            q, k, v = qkv(x).split(d, dim=-1)
            return q, k, v
        w, b = qkv.weight, qkv.bias
        assert b is not None
        k, v = F.linear(x.to(w.dtype), w[d:], b[d:]).split(d, dim=-1)
        return F.linear(xq.to(w.dtype), w[:d], b[:d]), k, v


def _norm(norm: nn.LayerNorm, device: Device) -> nn.LayerNorm:
    made = nn.LayerNorm(norm.normalized_shape, eps=norm.eps, device="meta")
    made.weight = nn.Parameter(device.put(norm.weight.detach().float()), requires_grad=False)
    made.bias = nn.Parameter(device.put(norm.bias.detach().float()), requires_grad=False)
    return made


DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
SLOT_RANK = 8
"""A slot fits a LoRA of this rank on all sites. Larger modules take several neighbouring slots."""
SLOT_BYTES = 256 << 20
"""The default size of all slots together."""


class CudaExecutor:
    """Packed rows of all tenants on one device; see `Executor`.

    The executor copies a root's layers as they were trained. Each compute thread has a stream of its own, so
    the device computes one thread's batch while another thread retrieves the next. Modules lie in slots
    (`Slots`), which `prefetch` fills on the copies' stream, layer by layer. `run` waits on the host only for
    its own results. All of a batch's layers are enqueued at once, so what leaves early is returned after the
    last has been enqueued.
    """

    def __init__(
        self,
        upper: nn.ModuleList,
        shape: EncoderShape,
        precision: str,
        device: Device,
        *,
        slot_bytes: int = SLOT_BYTES,
        ways: Ways | None = None,
    ) -> None:
        dtype = DTYPES[precision]
        self.precision, self.dtype, self.shape, self.device = precision, dtype, shape, device
        with torch.inference_mode():
            self._layers = [DeviceLayer(layer, shape, dtype, device) for layer in upper]
        size = lora_size(SLOT_RANK, len(upper), shape)
        count = max(1, slot_bytes // (size * dtype.itemsize))
        self.slots = Slots(device, count, size, dtype)
        self.ways = Ways("loop") if ways is None else ways
        self.ragged = ragged_on(self.slots.memory, shape)
        """Attention needs no padding."""
        self.graphs = Graphs(device, shape.dim, shape.positions, padded=not self.ragged)

    @property
    def layers(self) -> int:
        return len(self._layers)

    @property
    def heads(self) -> int:
        return self.shape.heads

    def layer(self, index: int) -> DeviceLayer:
        return self._layers[index]

    def fits(self, key: BatchKey) -> bool:
        return key.phase == "encode"

    def space(self, tokens: int) -> Tensor:
        return self.device.pinned((tokens, self.shape.dim), torch.float32)

    def prepare(self, module: TenantModule) -> int:
        """Copy a module into pinned memory, laid out as on the device; returns its bytes there."""
        return self.packed(module).data.nbytes

    def prefetch(self, modules: Sequence[TenantModule | None]) -> None:
        """Start copying a coming batch's modules to the device. Does not wait."""
        self.slots.prefetch([self.packed(m) for m in modules if m is not None])

    def run(
        self, key: BatchKey, rows: Rows, modules: Sequence[TenantModule | None], hooks: Sequence[Hook] = ()
    ) -> Iterator[Left]:
        """See `Executor.run`. The results are in host memory.

        Raises ValueError if a module's sizes are not the root's, Unavailable if it takes more than all slots.
        """
        packed = [None if m is None else self.packed(m) for m in modules]
        for part in self._parts(rows, packed):
            for left, there in self.start(key, part, packed, hooks):
                begun = time.monotonic()
                there.wait()
                yield replace(left, waited_s=time.monotonic() - begun)

    def _parts(self, rows: Rows, packed: Sequence[Packed | None]) -> Iterator[Rows]:
        """Cut a batch whose modules need more than all slots into several."""
        starts = self.slots.cuts(packed)
        if len(starts) == 1:
            yield rows
            return
        for a, b in zip(starts, [*starts[1:], len(packed)], strict=True):
            begin, end = rows.offsets[a], rows.offsets[b]
            offsets = [o - begin for o in rows.offsets[a : b + 1]]
            yield Rows(rows.x[begin:end], offsets, rows.texts[a:b])

    def start(
        self, key: BatchKey, rows: Rows, packed: Sequence[Packed | None], hooks: Sequence[Hook] = ()
    ) -> list[tuple[Left, StreamEvent]]:
        """Enqueue a batch; returns what leaves, and when it will be in host memory.

        Waits only for slots that other batches hold while they are being enqueued.
        """
        longest = max((b - a for a, b in rows.spans()), default=0)
        if longest > self.shape.positions:
            raise ValueError(f"a text has {longest} rows, the root reads {self.shape.positions}")
        stream = self.device.compute()
        modules = {id(m): m for t in rows.texts if (m := packed[t]) is not None}
        entries = dict(zip(modules, self.slots.acquire(list(modules.values())), strict=True))
        by_text = {t: entries[id(m)] for t in rows.texts if (m := packed[t]) is not None}
        try:
            captured = None if hooks or rows.size is not None else self._captured(key, rows, entries.values())
            if captured is None:
                x = self.device.empty(tuple(rows.x.shape), torch.float32)
            else:
                x = captured.x[0][: len(rows.x)]
            stream.copy(rows.x, x, "rows")
            if hooks:
                stream.settle()
            step: LayerRun = _Step(self, stream, by_text, settled=bool(hooks))
            if captured is not None:
                step = Replayed(self, stream, captured, by_text)
            whole = run_layers(len(self._layers), key, replace(rows, x=x), hooks, step)
            return [self._to_host(left, stream) for left in whole]
        finally:
            self.slots.release(entries.values(), stream.record())

    def _captured(self, key: BatchKey, rows: Rows, entries: Collection[Entry]) -> Captured | None:
        """The graphs of the batch's shape; None: it runs operation by operation."""
        layouts, kernels = [entry.layout for entry in entries], self.ways.launcher is not None
        shape = self.graphs.shape_of(key.reads, rows.offsets, layouts, kernels) if self.graphs.on else None
        return None if shape is None else self.graphs.of(shape)

    def fault(self) -> str | None:
        """See `OnDevice.fault`."""
        return fault_of(self.device)

    def _to_host(self, left: Left, stream: Stream) -> tuple[Left, StreamEvent]:
        last, before = (self.device.pinned(tuple(z.shape), z.dtype) for z in (left.last, left.before))
        stream.copy(left.last, last, "results")
        stream.copy(left.before, before, "results")
        return replace(left, last=last, before=before), stream.record()

    def packed(self, module: TenantModule) -> Packed:
        """The module in pinned memory, which lives as long as the module does."""

        def make() -> tuple[Packed, int]:
            made = pack(module, len(self._layers), self.shape, self.dtype, self.device)
            self.slots.watch(made)
            return made, made.data.nbytes

        return module.forms.of(self, make)


class _Step:
    """One batch's `LayerRun`."""

    def __init__(
        self, executor: CudaExecutor, stream: Stream, entries: dict[int, Entry], *, settled: bool
    ) -> None:
        self._of, self._stream, self._entries, self._settled = executor, stream, entries, settled

    def begin(self, rows: Rows) -> None:
        upload = ArrayUpload()
        alike = self._of.ragged and rows.size is None
        self._attention: Attention = (Ragged if alike else BucketedAttention.of)(rows.offsets, upload)
        texts = segments_of([self._entries.get(t) for t in rows.texts])
        self._texts, self._rows = texts, [s.rows(rows.offsets) for s in texts]
        self._used = list({id(s.module): s.module for s in texts}.values())
        self._by_row = self._of.ways.of(self._rows, self._of.slots, upload)
        self._by_text = self._of.ways.of(texts, self._of.slots, upload)
        self._firsts = upload.add(np.asarray(rows.offsets[:-1], np.int64))
        upload.send(self._of.device, self._stream)

    def layer(self, index: int, rows: Rows, first_only: bool) -> Tensor:
        for event in {id(e): e for entry in self._used for e in [entry.arrived[index]]}.values():
            self._stream.wait(event)
        make = self._first(index, rows) if first_only else self._whole(index, rows)
        count = len(rows.texts) if first_only else rows.offsets[-1]
        shape = count, rows.x.shape[1]
        out = self._stream.work(f"layer {index + 1}", shape, torch.float32, make)
        if self._settled:
            self._stream.settle()
        return out

    def _changes(self, segments: Sequence[Segment[Entry]], way: Way, index: int) -> Delta:
        return delta(sites_at(segments, index), way, NormLoop(segments), index)

    def _whole(self, index: int, rows: Rows) -> Callable[[], Tensor]:
        layer, x = self._of.layer(index), rows.x
        attend = self._attention.rows(self._of.heads, rows.size)
        changes = self._changes(self._rows, self._by_row, index)
        return lambda: layer(x, attend, changes)

    def _first(self, index: int, rows: Rows) -> Callable[[], Tensor]:
        """Exact: keys and values of all rows are computed, and one query for each text."""
        layer, x, firsts = self._of.layer(index), rows.x, self._firsts
        attend = self._attention.firsts(self._of.heads, rows.size)
        changes = self._changes(self._rows, self._by_row, index)
        of_texts = self._changes(self._texts, self._by_text, index)

        def queries(whole: Tensor) -> Tensor:
            return whole.index_select(0, firsts())

        return lambda: layer(x, attend, changes, queries=queries, query_delta=of_texts)
