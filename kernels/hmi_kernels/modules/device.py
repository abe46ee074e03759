"""modules.cu compiled for a CUDA device, through cupy."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from hmi_kernels.cupy_device import NoDevice, import_cupy
from hmi_kernels.modules.ops import THREADS

SOURCE: Final = Path(__file__).with_name("modules.cu")
OPTIONS: Final = ("--std=c++17",)

__all__ = ["OPTIONS", "SOURCE", "CupyLauncher", "NoDevice"]


class CupyLauncher:
    """An `ops.Launcher` on a GPU. Compiles at once. Raises NoDevice."""

    def __init__(self, index: int = 0) -> None:
        self._cupy = cupy = import_cupy()
        module = cupy.RawModule(code=SOURCE.read_text(), options=OPTIONS)
        with cupy.cuda.Device(index):
            self._kernels: dict[str, Any] = {name: module.get_function(name) for name in THREADS}

    def launch(self, kernel: str, blocks: int, arguments: tuple[int, ...], stream: int | None) -> None:
        """See `ops.Launcher`. This device must be the thread's current one, as it is in work of torch."""
        there = self._cupy.cuda.get_current_stream() if stream is None else _Raw(stream)
        self._kernels[kernel]((blocks,), (THREADS[kernel],), tuple(map(np.int64, arguments)), stream=there)


class _Raw:
    """A stream of another library as cupy's kernels take it, without entering it: launches are many."""

    __slots__ = ("ptr",)

    def __init__(self, handle: int) -> None:
        self.ptr = handle
