"""A `hmi_kernels.lookup.cuda.Device` on the CPU: lookup.cu compiled by g++, in memory between forbidden
pages.

So the tests run the device's own source where there is no GPU. A read or write past the end of an array (or,
on demand, before its beginning), a misaligned one and undefined arithmetic end the process at once; the
direction in which a block's threads run can be turned round.
"""

from __future__ import annotations

import ctypes
import mmap
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
from hmi_kernels.lookup import cuda, cuda_device, cuda_upload

FLAGS = [
    "-std=c++17",
    "-O1",
    "-Wall",
    "-Werror",
    "-shared",
    "-fPIC",
    "-ffp-contract=off",
    "-fsanitize=undefined",
    "-fsanitize-undefined-trap-on-error",
]
WORDS = ("TABLE_WORDS", "STEP_WORDS", "LEVEL_WORDS", "SEGMENT_WORDS")
CONSTANTS = {name: getattr(cuda_upload, name) for name in WORDS} | {"HOST_TILE": cuda.TILE}
LAUNCH_ARGUMENTS = 15


def compiler() -> str | None:
    return shutil.which("g++")


def compile_twin(folder: Path) -> ctypes.CDLL:
    library = folder / "twin.so"
    defines = [f"-D{name}={value}" for name, value in CONSTANTS.items()]
    source = Path(__file__).with_name("cuda_twin.cpp")
    subprocess.run(
        ["g++", *FLAGS, *defines, f"-I{cuda_device.SOURCE.parent}", "-o", str(library), str(source)],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.launch.argtypes = [ctypes.c_int64] * LAUNCH_ARGUMENTS
    loaded.launch.restype = None
    return loaded


class Twin:
    """`free` is what it says of its memory; threads and backwards say how a block runs."""

    def __init__(self, library: ctypes.CDLL, threads: int = 128, backwards: bool = False) -> None:
        self.library = library
        self.threads = threads
        self.backwards = backwards
        self.free = 1 << 30
        self.front = False
        self.blocks: int | None = None  # if set, so many instead of what is asked for

    @contextmanager
    def active(self, stream: int | None) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return self.free

    def reserve(self, size: int) -> np.ndarray:
        return self.empty((size,), np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """Reaches up to the forbidden page behind it, or, if `front`, begins right after the one before
        it."""
        size = int(np.prod(shape)) * np.dtype(dtype).itemsize
        inner = -(-size // mmap.PAGESIZE) * mmap.PAGESIZE
        memory = np.frombuffer(mmap.mmap(-1, inner + 2 * mmap.PAGESIZE), np.uint8)
        for guard in (0, inner + mmap.PAGESIZE):
            where = ctypes.c_void_p(memory.ctypes.data + guard)
            assert ctypes.CDLL(None).mprotect(where, ctypes.c_size_t(mmap.PAGESIZE), 0) == 0
        start = mmap.PAGESIZE + (0 if self.front else inner - -(-size // 16) * 16)
        return memory[start : start + size].view(dtype).reshape(shape)

    def view(self, array: Any) -> np.ndarray:
        if not isinstance(array, np.ndarray):
            raise ValueError(f"a {type(array).__name__} is not in device memory")
        return array

    def address(self, array: np.ndarray) -> int:
        return array.ctypes.data

    def write(self, host: np.ndarray, to: np.ndarray) -> None:
        assert (host.shape, host.dtype) == (to.shape, to.dtype)
        to[:] = host

    def read(self, array: np.ndarray) -> np.ndarray:
        return array.copy()

    def launch(self, blocks: int, arguments: tuple[int, ...]) -> None:
        self.library.launch(self.blocks or blocks, self.threads, self.backwards, *arguments)
