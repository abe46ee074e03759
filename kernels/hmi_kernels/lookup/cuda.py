"""The look-up on a CUDA device.

The level table is uploaded once (cuda_upload.py); batches and answers stay on the device. The kernel,
lookup.cu, runs on a `LookupDevice`: on `CudaDevice` through cupy or, in the tests, on one that runs the same
source on the CPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hmi_kernels.cupy_device import NoDevice as NoDevice
from hmi_kernels.cupy_device import foreign_stream, import_cupy

SOURCE: Final = Path(__file__).with_name("lookup.cu")
KERNEL: Final = "plot_lookup"
OPTIONS: Final = ("--std=c++17", "--fmad=false")  # fused multiply-adds would round unlike the reference
THREADS: Final = 128  # per block; a token of 384 columns takes 96 threads of four columns


class CudaDevice:
    """A `cuda.Device` on a GPU. Thread-safe; calls work on their thread's current stream. Raises NoDevice."""

    def __init__(self, index: int = 0) -> None:
        self._cupy = cupy = import_cupy()
        try:
            count = int(cupy.cuda.runtime.getDeviceCount())
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise NoDevice(f"CUDA does not start ({error}): check the driver with nvidia-smi") from error
        if not 0 <= index < count:
            raise NoDevice(
                f"there is no CUDA device {index}, this machine has {count}: choose 0..{count - 1}"
            )
        self.index = index
        module = cupy.RawModule(code=SOURCE.read_text(), options=OPTIONS)
        with cupy.cuda.Device(index):
            self._kernel: Any = module.get_function(KERNEL)

    @contextmanager
    def active(self, stream: int | None) -> Iterator[None]:
        cuda = self._cupy.cuda
        with cuda.Device(self.index):
            with cuda.get_current_stream() if stream is None else foreign_stream(cuda, stream):
                yield

    def free_bytes(self) -> int:
        free, _ = self._cupy.cuda.runtime.memGetInfo()
        return int(free) + int(self._cupy.get_default_memory_pool().free_bytes())  # reserve frees the pool

    def reserve(self, size: int) -> Array:
        cupy = self._cupy
        cupy.get_default_memory_pool().free_all_blocks()
        try:
            with cupy.cuda.using_allocator(None):  # not from the pool, which would keep it for cupy alone
                return cupy.empty((size,), np.uint8)
        except cupy.cuda.runtime.CUDARuntimeError as error:
            raise MemoryError(str(error)) from error

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        return self._cupy.empty(shape, dtype)  # cupy's OutOfMemoryError is a MemoryError

    def view(self, array: Array) -> Array:
        if not hasattr(array, "__cuda_array_interface__"):
            raise ValueError(
                f"a {type(array).__name__} is not in device memory: copy it there, or use Reader.lookup"
            )
        found = self._cupy.asarray(array)
        if found.size and found.device.id != self.index:
            raise ValueError(
                f"it is on device {found.device.id}, the table on device {self.index}: copy it there"
            )
        return found

    def address(self, array: Array) -> int:
        return int(array.data.ptr)

    def write(self, host: NDArray[Any], to: Array) -> None:
        to.set(host)

    def read(self, array: Array) -> NDArray[Any]:
        return np.asarray(array.get())

    def launch(self, blocks: int, arguments: tuple[int, ...]) -> None:
        self._kernel((blocks,), (THREADS,), tuple(np.int64(value) for value in arguments))


TILE: Final = 8  # tokens per block, as in lookup.cu; the answer does not depend on the number of blocks

Array = Any  # an array in device memory, for which numpy has no type


class LookupDevice(Protocol):
    """Device memory and the compiled kernel. Arrays have shape, dtype and
    flags.c_contiguous, like numpy's."""

    def active(self, stream: int | None) -> AbstractContextManager[object]:
        """A context for work on this device and `stream`, a raw handle; None: the current stream."""

    def free_bytes(self) -> int:
        """The bytes that `reserve` can allocate."""

    def reserve(self, size: int) -> Array:
        """Allocate uint8 [size] at a multiple of 256, freed when dropped. Raises MemoryError."""

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> Array:
        """Allocate a short-lived array. Raises MemoryError."""

    def view(self, array: Array) -> Array:
        """View any library's array on this device as one of ours. Raises ValueError for other arrays."""

    def address(self, array: Array) -> int:
        """The device address of the array's first element."""

    def write(self, host: NDArray[Any], to: Array) -> None:
        """Copy `host` to an array of the same shape and dtype. `host` may change once this returns."""

    def read(self, array: Array) -> NDArray[Any]:
        """Wait for all earlier work, and copy an array to the host."""

    def launch(self, blocks: int, arguments: tuple[int, ...]) -> None:
        """Start the kernel without waiting for it."""


@dataclass(frozen=True)
class DeviceTable:
    """A level table in device memory. It does not need the files that it was read from."""

    device: LookupDevice
    n: int
    dim: int
    bytes: int  # of device memory, freed with this object
    memory: Array  # uint8 [bytes]: the structs of lookup.cu, then slots and rows
    address: int  # the device address of the Table struct


def lookup(
    table: DeviceTable,
    tokens: Array,
    offsets: Array,
    vocab: int,
    out: Array,
    order: Array,
    depth: Array,
    *,
    stream: int | None = None,
) -> None:
    """`ops.lookup` with arrays on the table's device, with the same bits. Waits for the answer.

    The arrays may come from any library with `__cuda_array_interface__`: tokens int32 [total], offsets
    int64 [texts + 1], out float32 or uint16 (bfloat16 bits) [total, dim], order int8 [total], depth int16
    [total], all C-contiguous. stream: the raw handle of the stream that they were computed on (in torch
    `torch.cuda.current_stream().cuda_stream`). Raises ValueError for arrays, offsets or token ids that do
    not fit; the outputs are then unspecified.
    """
    device = table.device
    with device.active(stream):
        tokens = _array(device, tokens, "tokens", (None,), np.int32)
        offsets = _array(device, offsets, "offsets", (None,), np.int64)
        total, texts = tokens.shape[0], offsets.shape[0] - 1
        out = _array(device, out, "out", (total, table.dim), np.float32, np.uint16, np.int16)
        order = _array(device, order, "order", (total,), np.int8)
        depth = _array(device, depth, "depth", (total,), np.int16)
        if texts < 0:
            raise ValueError(_bad_offsets(total))
        wrong = device.empty((2,), np.int32)
        device.write(np.zeros(2, np.int32), wrong)
        at = device.address
        size = out.dtype.itemsize
        wide = table.dim % 4 == 0 and at(out) % (4 * size) == 0
        device.launch(
            max(1, -(-total // TILE)),
            (
                table.address,
                at(tokens),
                total,
                at(offsets),
                texts,
                vocab,
                at(out),
                int(size == 2),
                int(wide),
                at(order),
                at(depth),
                at(wrong),
            ),
        )
        bad_offsets, bad_token = device.read(wrong)
    if bad_offsets:
        raise ValueError(_bad_offsets(total))
    if bad_token:
        raise ValueError(
            f"every token id must be in 0..{vocab - 1}; the batch was cut with another vocabulary"
        )


def _bad_offsets(total: int) -> str:
    return f"offsets must rise from 0 to the number of tokens ({total})"


def _array(
    device: LookupDevice, array: Array, name: str, shape: tuple[int | None, ...], *dtypes: DTypeLike
) -> Array:
    """The device's view of a caller's array. Raises ValueError unless it is C-contiguous with this shape
    (None: any length) and one of these types."""
    try:
        found = device.view(array)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from error
    fits = len(found.shape) == len(shape) and all(
        want in (None, have) for want, have in zip(shape, found.shape, strict=True)
    )
    if not fits or found.dtype not in [np.dtype(d) for d in dtypes] or not found.flags.c_contiguous:
        kinds = " or ".join(np.dtype(d).name for d in dtypes)
        wanted = "one-dimensional" if shape == (None,) else f"of shape {shape}"
        raise ValueError(f"{name} must be a C-contiguous {kinds} array {wanted} on the device: convert it")
    return found
