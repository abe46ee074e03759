"""A `hmi_kernels.lookup.cuda.LookupDevice` on the CPU: lookup.cu, compiled by g++, on arrays between guard
pages.

With it the tests run the device's own source where there is no GPU. The process dies at once of a read or
write past the end of an array (with `front`, before its beginning), of a misaligned access, and of undefined
arithmetic. The threads of a block can run in reverse order.
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
import pytest
from hmi_kernels.lookup import cuda, cuda_upload

FLAGS = """
-std=c++17 -O1 -Wall -Werror -shared -fPIC -ffp-contract=off
-fsanitize=undefined -fsanitize-undefined-trap-on-error
"""
WORDS = ("TABLE_WORDS", "STEP_WORDS", "LEVEL_WORDS", "SEGMENT_WORDS")
CONSTANTS = {name: getattr(cuda_upload, name) for name in WORDS} | {"HOST_TILE": cuda.TILE}
LAUNCH_ARGUMENTS = 15


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> ctypes.CDLL:
    """lookup.cu, compiled for the CPU."""
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile kernels/hmi_kernels/lookup/lookup.cu for the CPU")
    return compile_twin(tmp_path_factory.mktemp("twin"))


@pytest.fixture(scope="session", params=["twin", pytest.param("gpu", marks=pytest.mark.gpu)])
def device(request: pytest.FixtureRequest) -> cuda.LookupDevice:
    """The twin, and the first GPU."""
    if request.param == "twin":
        return Twin(request.getfixturevalue("library"))
    try:
        return cuda.CudaDevice()
    except cuda.NoDevice as error:
        pytest.skip(str(error))


def put(device: cuda.LookupDevice, host: np.ndarray) -> Any:
    """A copy of `host` in the device's memory."""
    array = device.empty(host.shape, host.dtype)
    device.write(host, array)
    return array


def compile_twin(folder: Path) -> ctypes.CDLL:
    library = folder / "twin.so"
    defines = [f"-D{name}={value}" for name, value in CONSTANTS.items()]
    source = Path(__file__).with_name("cuda_twin.cpp")
    subprocess.run(
        ["g++", *FLAGS.split(), *defines, f"-I{cuda.SOURCE.parent}", "-o", str(library), str(source)],
        check=True,
    )
    loaded = ctypes.CDLL(str(library))
    loaded.launch.argtypes = [ctypes.c_int64] * LAUNCH_ARGUMENTS
    loaded.launch.restype = None
    return loaded


class Twin:
    """The device: blocks of `threads` threads, run in reverse order if `backwards`.

    Tests may set `free` (the bytes that it reports as free), `front` (where arrays lie between the guard
    pages) and `blocks` (launch this many, whatever the look-up asks for).
    """

    def __init__(self, library: ctypes.CDLL, threads: int = 128, backwards: bool = False) -> None:
        self.library = library
        self.threads = threads
        self.backwards = backwards
        self.free = 1 << 30
        self.front = False
        self.blocks: int | None = None

    @contextmanager
    def active(self, stream: int | None) -> Iterator[None]:
        yield

    def free_bytes(self) -> int:
        return self.free

    def reserve(self, size: int) -> np.ndarray:
        return self.empty((size,), np.uint8)

    def empty(self, shape: tuple[int, ...], dtype: Any) -> np.ndarray:
        """An array that ends at a guard page, or, with `front`, begins right after one."""
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
