"""lookup.cu compiles for the GPUs that it supports, without fusing a product and a sum."""

from __future__ import annotations

import ctypes
import ctypes.util
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from hmi_kernels.lookup.cuda_device import KERNEL, OPTIONS, SOURCE


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_nvcc(tmp_path: Path, architecture: str) -> None:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        pytest.skip("there is no nvcc")
    command = [nvcc, *OPTIONS, f"-arch=sm_{architecture}", "-Werror=all-warnings", str(SOURCE)]
    subprocess.run([*command, "-cubin", "-o", str(tmp_path / "lookup.cubin")], check=True)
    assert KERNEL.encode() in (tmp_path / "lookup.cubin").read_bytes()
    subprocess.run([*command, "-ptx", "-o", str(tmp_path / "lookup.ptx")], check=True)
    check_ptx((tmp_path / "lookup.ptx").read_text())


@pytest.mark.parametrize("architecture", ["80", "90"])
def test_nvrtc(architecture: str) -> None:
    """Compile as cupy does at the first use; needs no GPU."""
    nvrtc = load_nvrtc()
    program = ctypes.c_void_p()
    assert (
        nvrtc.nvrtcCreateProgram(ctypes.byref(program), SOURCE.read_bytes(), b"lookup.cu", 0, None, None) == 0
    )
    options = [option.encode() for option in (*OPTIONS, f"-arch=compute_{architecture}")]
    state = nvrtc.nvrtcCompileProgram(program, len(options), (ctypes.c_char_p * len(options))(*options))
    assert state == 0, text_of(nvrtc, program, "ProgramLog")
    check_ptx(text_of(nvrtc, program, "PTX"))
    nvrtc.nvrtcDestroyProgram(ctypes.byref(program))


def check_ptx(ptx: str) -> None:
    assert f".entry {KERNEL}(" in ptx
    assert "fma." not in ptx
    assert "ld.v4.f32" in ptx  # four columns at once


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
