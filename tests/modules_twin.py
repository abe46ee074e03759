"""The kernels of tenants' modules on the CPU: modules.cu, compiled by g++."""

from __future__ import annotations

import ctypes
import shutil
import subprocess
from functools import cache
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hmi_kernels.modules import device, ops

FLAGS = """
-std=c++17 -O1 -Wall -Werror -shared -fPIC -fsanitize=undefined -fsanitize-undefined-trap-on-error
"""
DEFINES = {
    "CHANGE_WORDS": ops.CHANGE_WORDS,
    "PIECE_WORDS": ops.PIECE_WORDS,
    "COPY_WORDS": ops.COPY_WORDS,
    "HOST_RELU": ops.RELU,
    "HOST_SILU": ops.SILU,
    "HOST_BFLOAT": ops.BFLOAT,
    "HOST_FLOAT": ops.FLOAT,
    "HOST_ROWS": ops.ROWS,
    "HOST_RANKS": ops.RANKS,
    "HOST_COLS": ops.COLS,
    "HOST_DOWN_THREADS": ops.THREADS["module_down"],
    "HOST_UP_THREADS": ops.THREADS["module_up"],
    "HOST_COPY_THREADS": ops.THREADS["module_copy"],
}
SOURCE = Path(__file__).with_name("kernels") / "modules_twin.cpp"


class CpuLauncher:
    """An `ops.Launcher` on the CPU: the threads of a block run in reverse order if `backwards`."""

    def __init__(self, backwards: bool = False) -> None:
        self.backwards, self.library = backwards, _compiled()

    def launch(self, kernel: str, blocks: int, arguments: tuple[int, ...], stream: int | None) -> None:
        given = (blocks, self.backwards, *arguments)
        getattr(self.library, kernel)(*map(ctypes.c_int64, given))


@cache
def _compiled() -> ctypes.CDLL:
    if shutil.which("g++") is None:
        pytest.skip("there is no g++ to compile kernels/hmi_kernels/modules/modules.cu for the CPU")
    defines = [f"-D{name}={value}" for name, value in DEFINES.items()]
    with TemporaryDirectory() as folder:
        library = Path(folder) / "twin.so"
        include = f"-I{device.SOURCE.parent}"
        subprocess.run(["g++", *FLAGS.split(), *defines, include, "-o", library, SOURCE], check=True)
        return ctypes.CDLL(str(library))
