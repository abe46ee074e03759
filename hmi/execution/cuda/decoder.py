"""A step executor on a CUDA device; `hmi.execution.decoding.plain` is the reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from torch import Tensor, nn

from hmi.execution.cuda.changes import NormLoop, delta, sites_at
from hmi.execution.cuda.device import Device, Stream, fault_of
from hmi.execution.cuda.executor import DTYPES, SLOT_BYTES, SLOT_RANK, Linear
from hmi.execution.cuda.layout import Packed, lora_size, pack
from hmi.execution.cuda.slots import Entry, Slots
from hmi.execution.cuda.upload import ArrayUpload, Ints
from hmi.execution.cuda.ways import Ways
from hmi.execution.decoding.base import PAGE, Between, Part, check_sites
from hmi.execution.decoding.paged import PagedRows, kept_shape, turns_of
from hmi.execution.decoding.scores import FEW, Best, HostRow, ScoreRow, first_of
from hmi.execution.segments import segments_of
from hmi.model.network.decoder import CausalAttend, DecoderLayer, score
from hmi.model.network.encoder import Delta, Norm
from hmi.model.sources.generative_root import UpperDecoder
from hmi.model.tenant.modules import TenantModule

ROWS, SCORED = 128, 32
"""The rows of each product of the layers, and of the words' product. Fewer rows are filled up, and more are
several products: the libraries choose the order of a sum by the number of rows."""
AT_ONCE = 1 << 17
"""The most keys that are gathered at a time, unless one sequence has more: 100 MB in SmolLM2-135M."""


class BlockLinear(Linear):
    """A linear map that multiplies a fixed number of rows at a time.

    It maps x [1, k · rows, in] to [1, k · rows, out].
    """

    def __init__(self, linear: nn.Module, dtype: torch.dtype, device: Device, rows: int) -> None:
        super().__init__(linear, dtype, device)
        self.rows = rows

    def forward(self, x: Tensor) -> Tensor:
        if x.shape[1] == self.rows:
            return super().forward(x)
        return torch.cat([super(BlockLinear, self).forward(block) for block in x.split(self.rows, 1)], 1)


class DeviceNorm(nn.Module):
    """A copy of an RMSNorm on a device, in fp32."""

    def __init__(self, norm: nn.RMSNorm, device: Device) -> None:
        super().__init__()
        self.weight, self.eps = device.put(norm.weight.detach().float()), norm.eps

    def forward(self, x: Tensor) -> Tensor:
        return F.rms_norm(x.float(), self.weight.shape, self.weight, self.eps)


class DeviceDecoderLayer(DecoderLayer):
    """A copy of a language model's layer on a device.

    Products are in the executor's dtype. Residuals, RMSNorms and rotary positions are in fp32.
    """

    def __init__(self, layer: nn.Module, dtype: torch.dtype, device: Device) -> None:
        nn.Module.__init__(self)
        assert isinstance(layer, DecoderLayer)
        self.head_dim, self.sizes = layer.head_dim, layer.sizes
        for name in ("qkv", "o", "fi", "fo"):
            setattr(self, name, BlockLinear(getattr(layer, name), dtype, device, ROWS))
        for name in ("ln1", "ln2", "q_norm", "k_norm"):
            norm = getattr(layer, name)
            setattr(self, name, None if norm is None else DeviceNorm(norm, device))


class _Changes:
    """The changes of one step's rows. It holds their modules in slots until it lets them go, and takes them
    again if they are needed once more."""

    def __init__(
        self,
        packed: Sequence[Packed | None],
        offsets: Sequence[int],
        slots: Slots,
        ways: Ways,
        device: Device,
        stream: Stream,
    ) -> None:
        """packed: of each part. offsets: the first row of each, and the number of rows."""
        self._packed, self._offsets = packed, offsets
        self._slots, self._ways, self._device, self._stream = slots, ways, device, stream
        self._distinct = {id(module): module for module in packed if module is not None}
        self._entries: dict[int, Entry] = {}

    def at(self, layer: int) -> Delta:
        """The changes of a layer. The layer runs after its modules have arrived."""
        if len(self._entries) < len(self._distinct):
            self._take()
        for event in {id(e): e for entry in self._entries.values() for e in [entry.arrived[layer]]}.values():
            self._stream.wait(event)
        segments = self._segments if self._entries else []
        way = self._way if self._entries else None
        found = delta(sites_at(segments, layer), way, NormLoop(()), layer)

        def apply(site: str, x: Tensor, y: Tensor, norm: Norm | None = None) -> Tensor:
            found(site, x[0], y[0])
            return y

        return apply

    def let_go(self) -> None:
        """Let others have the slots, as soon as what is enqueued has run."""
        if self._entries:
            self._slots.release(self._entries.values(), self._stream.record())
            self._entries = {}

    def _take(self) -> None:
        entries = self._slots.acquire(list(self._distinct.values()))
        self._entries = dict(zip(self._distinct, entries, strict=True))
        by_part = [None if module is None else self._entries[id(module)] for module in self._packed]
        self._segments = [s.rows(self._offsets) for s in segments_of(by_part)]
        upload = ArrayUpload()
        self._way = self._ways.of(self._segments, self._slots, upload)
        upload.send(self._device, self._stream)


class _Scored:
    """The scores of a step's rows on the device, [rows, vocab], and the best of each on the host."""

    def __init__(self, there: Tensor, scales: Sequence[float], device: Device, stream: Stream) -> None:
        self._there, self._scales, self._device, self._stream = there, scales, device, stream
        self._whole: Tensor | None = None

    def rows(self) -> Sequence[ScoreRow]:
        """Each row. Waits until the best words have come."""
        there, device, stream = self._there, self._device, self._stream
        count, few = len(there), min(FEW, there.shape[1])
        scales = device.pinned((count, 1), torch.float32)
        scales.copy_(torch.tensor(self._scales)[:, None])
        scales_there = device.empty((count, 1), torch.float32)
        stream.copy(scales, scales_there, "scales")
        ids, sums = device.empty((count, few), torch.int64), device.empty((count, 2), torch.float32)

        def best() -> Tensor:
            known = torch.nan_to_num(there, -torch.inf, torch.inf, -torch.inf)  # `topk` would take it first
            sums[:, :1] = known.logsumexp(1, keepdim=True)
            sums[:, 1:] = (known * scales_there).logsumexp(1, keepdim=True)
            found, words = known.topk(few)
            ids.copy_(words)
            return found

        scores = stream.work("best words", (count, few), torch.float32, best)
        here = [device.pinned(tuple(tensor.shape), tensor.dtype) for tensor in (ids, scores, sums)]
        for tensor, to in zip((ids, scores, sums), here, strict=True):
            stream.copy(tensor, to, "best words")
        stream.record().wait()
        arrays = [tensor.numpy() for tensor in here]
        return [_Row(self, i, scale, *(a[i] for a in arrays)) for i, scale in enumerate(self._scales)]

    def whole(self) -> Tensor:
        """All scores on the host. Waits for them, once for all rows of the step."""
        if self._whole is None:
            self._whole = self._device.pinned(tuple(self._there.shape), torch.float32)
            self._stream.copy(self._there, self._whole, "scores")
            self._stream.record().wait()
        return self._whole


class _Row:
    """A `ScoreRow` of which the host has the best words. Among words that are equal to the last of these, any
    may be missing."""

    def __init__(
        self,
        of: _Scored,
        index: int,
        scale: float,
        ids: Ints,
        scores: NDArray[np.float32],
        sums: NDArray[np.float32],
    ) -> None:
        self._of, self._index = of, index
        real = np.flatnonzero(scores > -np.inf)
        order = real[np.lexsort((ids[real], -scores[real]))]
        self._ids, self._scores = ids[order], scores[order]
        self._sums = {scale: float(sums[1]), 1.0: float(sums[0])}

    def best(self, count: int, scale: float = 1.0) -> Best:
        """See `ScoreRow.best`."""
        if count > FEW or scale not in self._sums:
            return HostRow(self.whole()).best(count, scale)
        return self._ids[:count], self._scores[:count], self._sums[scale]

    def first(self) -> tuple[int, float]:
        """See `ScoreRow.first`."""
        return first_of(self.best(1))

    def of(self, word: int) -> float:
        """See `ScoreRow.of`."""
        found = np.flatnonzero(self._ids == word)
        return float(self._scores[found[0]] if len(found) else self.whole()[word])

    def whole(self) -> NDArray[np.float32]:
        """See `ScoreRow.whole`."""
        found: NDArray[np.float32] = self._of.whole()[self._index].numpy()
        return found


class CudaDecoder:
    """See `StepExecutor`. Keys and values are in the precision of the products. One thread at a time.

    A step's layers are enqueued without waiting, and the thread then sleeps until the best words have come.
    `between` is called after each layer is enqueued, so the device runs its step at that place. Modules lie
    in slots (`Slots`), in device memory of a fixed size. A step whose modules need more than all slots runs
    in several.

    A row's result is the same alone and in any company up to rounding, not to the bit as with the compiled
    executor. What could change its rounding is kept equal as far as torch allows: every product has `ROWS`
    rows (words: `SCORED`), the padding of a row's keys depends on its own sequence alone, and words are
    multiplied in fp32. What is left: a library's product may add in another order for rows at another place,
    attention for another number of rows at once, and each way but `kernel` for another number of rows of
    the same module.
    """

    def __init__(
        self,
        upper: UpperDecoder,
        pages: int,
        precision: str,
        device: Device,
        *,
        slot_bytes: int = SLOT_BYTES,
        ways: Ways | None = None,
    ) -> None:
        """Raises torch.OutOfMemoryError if the device has too little memory."""
        dtype, shape = DTYPES[precision], upper.shape
        self.pages, self.precision, self.dtype, self.shape, self.device = (
            pages,
            precision,
            dtype,
            shape,
            device,
        )
        with torch.inference_mode():
            self._layers = [DeviceDecoderLayer(layer, dtype, device) for layer in upper.layers]
            self._norm = DeviceNorm(upper.norm, device)
            self._words = device.put(upper.scores.weight.detach().float())
        size = lora_size(SLOT_RANK, len(upper.layers), shape)
        self.slots = Slots(device, max(1, slot_bytes // (size * dtype.itemsize)), size, dtype)
        self.ways = Ways("loop") if ways is None else ways
        with torch.inference_mode(False):
            self._kept = device.empty(kept_shape(shape, len(upper.layers), pages), dtype)
        self._clear_last_page()
        self._running: list[_Changes] = []
        """The steps that are being enqueued. A second one runs between two layers of the first."""

    def prepare(self, module: TenantModule) -> int:
        """Copy a module into pinned memory, laid out as on the device; returns its bytes there.

        Raises ValueError if it is no LoRA of these layers.
        """
        return self._packed(module).data.nbytes

    @torch.inference_mode()
    def step(self, x: Tensor, parts: Sequence[Part], between: Between | None = None) -> Sequence[ScoreRow]:
        """See `StepExecutor.step`. The scores stay on the device until a choice asks for all of them.

        Raises Unavailable if a module takes more than all slots.
        """
        packed = [None if part.module is None else self._packed(part.module) for part in parts]
        starts, found, row = [*self.slots.cuts(packed), len(parts)], list[ScoreRow](), 0
        for begin, end in pairwise(starts):
            rows = sum(part.count for part in parts[begin:end])
            found += self._step(x[row : row + rows], parts[begin:end], packed[begin:end], between)
            row += rows
        return found

    def fault(self) -> str | None:
        """See `OnDevice.fault`."""
        return fault_of(self.device)

    def _step(
        self, x: Tensor, parts: Sequence[Part], packed: Sequence[Packed | None], between: Between | None
    ) -> Sequence[ScoreRow]:
        stream = self.device.compute()
        for changes in self._running:
            changes.let_go()  # this thread could not, while this step waits for slots
        upload, size = ArrayUpload(), -(-len(x) // ROWS) * ROWS
        paged = PagedRows(parts, self.shape, self._kept, upload.add, rows=size, at_once=AT_ONCE)
        wanted = upload.add(_filled(paged.scored))
        upload.send(self.device, stream)
        rows = self._sent(F.pad(x, (0, 0, 0, size - len(x))), stream, "rows")
        turns = self._sent(turns_of(self.shape, paged.positions), stream, "positions")
        changes = _Changes(packed, paged.offsets, self.slots, self.ways, self.device, stream)
        self._running.append(changes)
        try:
            for index, layer in enumerate(self._layers):
                make = partial(_layer, layer, rows, turns, partial(paged.attend, index), changes.at(index))
                rows = stream.work(f"layer {index + 1}", tuple(rows.shape), torch.float32, make)
                if between is not None and between.flag is None:  # the device leaves the cores to others
                    between.call()
        finally:
            self._running.remove(changes)
            changes.let_go()
        scales = [part.scale for part in parts for _ in range(part.scored)]
        return self._scores(rows, wanted, scales, stream)

    def _scores(
        self, rows: Tensor, wanted: Callable[[], Tensor], scales: Sequence[float], stream: Stream
    ) -> Sequence[ScoreRow]:
        """The scores after the first rows of `wanted`, one for each scale. Waits for the best of them."""

        def make() -> Tensor:
            blocks = self._norm(rows.index_select(0, wanted())).split(SCORED)
            return torch.cat([score(block, self._words) for block in blocks])[:count]

        count = len(scales)
        if not count:
            stream.record().wait()
            return []
        there = stream.work("scores", (count, self.shape.vocab), torch.float32, make)
        return _Scored(there, scales, self.device, stream).rows()

    def _sent(self, host: Tensor, stream: Stream, name: str) -> Tensor:
        """The tensor in device memory."""
        pinned = self.device.pinned(tuple(host.shape), host.dtype)
        pinned.copy_(host)
        there = self.device.empty(tuple(host.shape), host.dtype)
        stream.copy(pinned, there, name)
        return there

    def _clear_last_page(self) -> None:
        """See `kept_shape`."""
        stream, last = self.device.compute(), self._kept[:, :, self._kept.shape[2] - PAGE :]
        stream.work("page", tuple(last.shape), self.dtype, last.zero_)
        stream.record().wait()

    def _packed(self, module: TenantModule) -> Packed:
        """The module in pinned memory, which lives as long as the module does."""

        def make() -> tuple[Packed, int]:
            check_sites(module, len(self._layers))
            made = pack(module, len(self._layers), self.shape, self.dtype, self.device)
            self.slots.watch(made)
            return made, made.data.nbytes

        return module.forms.of(self, make)


def _layer(
    layer: DeviceDecoderLayer, rows: Tensor, turns: Tensor, attend: CausalAttend, delta: Delta
) -> Tensor:
    """rows [rows, dim] -> the same after the layer."""
    found: Tensor = layer(rows[None], turns, attend, delta)[0]
    return found


def _filled(last: Ints) -> Ints:
    """The numbers of rows, and 0 up to a multiple of `SCORED`."""
    return np.pad(last, (0, -len(last) % SCORED))
