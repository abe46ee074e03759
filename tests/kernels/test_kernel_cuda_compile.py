"""The CUDA sources compile for the GPUs that they support; lookup.cu without fusing a product and a sum."""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
from hmi_kernels.lookup import cuda
from hmi_kernels.modules import device, ops

CUPY_OPTIONS = "-ftz=true", "--device-as-default-execution-space"
"""What cupy 14 adds to the options of a RawModule."""


@dataclass(frozen=True)
class Code:
    """A source, its options and kernels, and what its PTX must and must not have."""

    source: Path
    options: tuple[str, ...]
    kernels: tuple[str, ...]
    has: str
    lacks: str

    def check(self, ptx: str) -> None:
        assert all(f".entry {kernel}(" in ptx for kernel in self.kernels)
        assert self.has in ptx
        assert self.lacks not in ptx


CODES = [
    # Four columns at once.
    Code(cuda.SOURCE, cuda.OPTIONS, (cuda.KERNEL,), "ld.v4.f32", "fma."),
    # Sums in registers: nothing spills to local memory.
    Code(device.SOURCE, device.OPTIONS, tuple(ops.THREADS), "mma.sync", ".local"),
]
CASES = pytest.mark.parametrize(
    ("code", "architecture"),
    [pytest.param(c, a, id=f"{c.source.stem}-sm_{a}") for c in CODES for a in ("80", "90")],
)


@CASES
def test_nvcc(tmp_path: Path, code: Code, architecture: str) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    command = [nvcc, *code.options, f"-arch=sm_{architecture}", "-Werror=all-warnings", str(code.source)]
    subprocess.run([*command, "-cubin", "-o", str(tmp_path / "code.cubin")], check=True)
    binary = (tmp_path / "code.cubin").read_bytes()
    assert all(kernel.encode() in binary for kernel in code.kernels)
    subprocess.run([*command, "-ptx", "-o", str(tmp_path / "code.ptx")], check=True)
    code.check((tmp_path / "code.ptx").read_text())


@CASES
def test_nvrtc(code: Code, architecture: str) -> None:
    """Compile as cupy does at the first use; needs no GPU."""
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    text = code.source.read_bytes()
    assert nvrtc.nvrtcCreateProgram(ctypes.byref(program), text, b"code.cu", 0, None, None) == 0
    options = [option.encode() for option in (*code.options, *CUPY_OPTIONS, f"-arch=compute_{architecture}")]
    state = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    assert state == 0, text_of(nvrtc, program, "ProgramLog")
    code.check(text_of(nvrtc, program, "PTX"))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def load_nvrtc() -> ctypes.CDLL:
    """The NVRTC library of the system, or the one in cupy's packages."""
    packaged = [
        str(path) for folder in sys.path for path in Path(folder).glob("nvidia/*/lib/libnvrtc.so.*[0-9]")
    ]
    name = ctypes.util.find_library("nvrtc") or next(iter(packaged), None)
    if name is None:
        pytest.skip("there is no nvrtc")
    return ctypes.CDLL(name)


def text_of(nvrtc: ctypes.CDLL, program: ctypes.c_void_p, what: str) -> str:
    size = ctypes.c_size_t()
    getattr(nvrtc, f"nvrtcGet{what}Size")(program, ctypes.byref(size))
    buffer = ctypes.create_string_buffer(size.value)
    getattr(nvrtc, f"nvrtcGet{what}")(program, buffer)
    return buffer.value.decode()
