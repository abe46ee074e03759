"""A CUDA device through cupy: memory, streams, and lookup.cu compiled for it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import DTypeLike, NDArray

from hmi_kernels.cupy_device import NoDevice, foreign_stream, import_cupy
from hmi_kernels.lookup.cuda import Array

SOURCE: Final = Path(__file__).with_name("lookup.cu")
KERNEL: Final = "plot_lookup"
OPTIONS: Final = ("--std=c++17", "--fmad=false")  # fused multiply-adds would round unlike the reference
THREADS: Final = 128  # per block; a token of 384 columns takes 96 threads of four columns

__all__ = ["KERNEL", "OPTIONS", "SOURCE", "THREADS", "CudaDevice", "NoDevice"]


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
