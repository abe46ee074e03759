"""The fingerprint of a machine: the processor and code versions on which executors' times depend."""

from __future__ import annotations

import hashlib
import os
import platform
from collections.abc import Iterator
from functools import cache
from importlib.metadata import PackageNotFoundError, version
from importlib.util import find_spec
from pathlib import Path

import hmi

FLAGS = ("avx2", "fma", "avx512f", "avx512_bf16", "avx512_vnni", "avx_vnni", "amx_bf16", "amx_int8")
"""The processor's abilities that executors or their libraries use, as Linux names them."""
COMPILED_FOR = ("NUMBA_CPU_NAME", "NUMBA_CPU_FEATURES")
"""Variables that make numba compile for another processor."""
SOURCES = ("hmi_kernels", "hmi.execution")


@cache
def fingerprint() -> dict[str, str]:
    """The machine and its software, as text by name. Loads neither torch nor numba.

    Times measured on a machine hold while its fingerprint is the same.
    """
    model, flags = _processor()
    return {
        "processor": model,
        "flags": " ".join(flag for flag in FLAGS if flag in flags),
        "cores": str(os.cpu_count()),
        "compiled_for": " ".join(os.environ.get(name, "") for name in COMPILED_FOR).strip(),
        "hmi": f"{hmi.__version__} {_stamp()}",
        **{name: _version(name) for name in ("torch", "numba", "llvmlite", "cupy-cuda13x")},
    }


def _processor() -> tuple[str, set[str]]:
    """The processor's model and its flags; without /proc/cpuinfo only what Python knows of it."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return f"{platform.machine()} {platform.processor()}", set()
    found: dict[str, str] = {}
    for line in text.partition("\n\n")[0].splitlines():
        name, _, value = line.partition(":")
        found[name.strip()] = value.strip()
    model = found.get("model name") or f"{platform.machine()} {platform.processor()}"
    numbers = " ".join(found.get(name, "") for name in ("cpu family", "model", "stepping"))
    return f"{model} {numbers}".strip(), set(found.get("flags", found.get("Features", "")).split())


def _version(package: str) -> str:
    try:
        return version(package)
    except PackageNotFoundError:
        return ""


def _stamp() -> str:
    """A hash of the sources of kernels and executors."""
    digest = hashlib.blake2b(digest_size=8)
    for path in _sources():
        digest.update(path.read_bytes())
    return digest.hexdigest()


def _sources() -> Iterator[Path]:
    for name in SOURCES:
        spec = find_spec(name)
        assert spec is not None
        for folder in spec.submodule_search_locations or ():
            yield from (p for p in sorted(Path(folder).rglob("*")) if p.suffix in (".py", ".cu"))
