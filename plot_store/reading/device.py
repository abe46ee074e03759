"""Look-ups on a GPU, in a copy of a reader's rows and indexes, for batches that are already there."""

from __future__ import annotations

import functools
from collections.abc import Callable
from dataclasses import dataclass
from types import TracebackType
from typing import Any

import numpy as np
from hmi_kernels.lookup import cuda, cuda_upload, ops
from hmi_kernels.lookup.layout import Bytes

from plot_store.ground.errors import Closed, Invalid, StoreFull
from plot_store.ground.nouns import Hits, Schema
from plot_store.reading.read_ahead import page_ranges
from plot_store.segments.mapping import will_need


@dataclass(frozen=True)
class DeviceHits:
    """`Hits` in device memory."""

    order: Any  # int8 [total]
    depth: Any  # int16 [total]
    _device: cuda.LookupDevice
    _n: int

    def to_host(self) -> Hits:
        """Copy the arrays to host memory."""
        with self._device.active(None):
            return Hits(self._device.read(self.order), self._device.read(self.depth), self._n)


class DeviceReader:
    """A copy of one version and its ancestors on one device; `Reader.on_device` creates it.

    It occupies `bytes` of device memory until `close`, and works while its reader is open. Thread-safe.
    """

    def __init__(self, table: cuda.DeviceTable, vocab: int, check_open: Callable[[], object]) -> None:
        self.bytes = table.bytes
        self._table: cuda.DeviceTable | None = table
        self._vocab = vocab
        self._check_open = check_open

    def lookup(
        self, tokens: Any, offsets: Any, *, out: Any = None, stream: int | None = None
    ) -> tuple[Any, DeviceHits]:
        """Compute `Reader.lookup` on device arrays (of cupy, torch, …), with bit-equal results. Synchronous.

        tokens int32 [total], offsets int64 [texts + 1] -> (float32 [total, dim], DeviceHits). `out`, if
        given, is filled and returned; a uint16 or int16 array takes the bits of bfloat16 (torch:
        `out.view(torch.int16)`). stream: raw handle of the stream that wrote the arrays; None means cupy's
        current stream. Raises Invalid, Closed.
        """
        table = self._open()
        device = table.device
        total = tokens.shape[0] if getattr(tokens, "shape", None) else 0
        with device.active(stream):
            given = device.empty((total, table.dim), np.float32) if out is None else out
            order, depth = device.empty((total,), np.int8), device.empty((total,), np.int16)
        try:
            cuda.lookup(table, tokens, offsets, self._vocab, given, order, depth, stream=stream)
        except ValueError as error:
            raise Invalid(str(error)) from error
        return given, DeviceHits(order, depth, device, table.n)

    def _open(self) -> cuda.DeviceTable:
        self._check_open()
        if self._table is None:
            raise Closed("the device reader has been closed: make another with reader.on_device()")
        return self._table

    def close(self) -> None:
        """Free the device memory once running look-ups have finished. Idempotent."""
        self._table = None

    def __enter__(self) -> DeviceReader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def put_on_device(
    table: ops.LevelTable, schema: Schema, device: int | cuda.LookupDevice, check_open: Callable[[], object]
) -> DeviceReader:
    """See `Reader.on_device`. check_open: raises Closed once the reader is closed.

    Raises Invalid, StoreFull, DamagedRow.
    """
    try:
        chosen = _cuda(device) if isinstance(device, int) else device
        return DeviceReader(cuda_upload.upload(table, chosen, _read_soon), schema.vocab, check_open)
    except cuda.NoDevice as error:
        raise Invalid(str(error)) from error
    except cuda_upload.DeviceFull as error:
        raise StoreFull(str(error)) from error


@functools.cache
def _cuda(index: int) -> cuda.CudaDevice:
    """Return the device with its compiled kernels, once per process. Errors are not cached."""
    return cuda.CudaDevice(index)


def _read_soon(rows: Bytes) -> None:
    """Start reading mapped rows as one range, since the mapping is marked for random access."""
    if rows.size:
        start = rows.ctypes.data
        will_need(page_ranges(np.array([start]), np.array([start + rows.nbytes])))
