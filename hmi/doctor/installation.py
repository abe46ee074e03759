"""Checks of the installation: Python, packages, extras, the processor, the path that answers take.

It loads none of the packages but torch, and that only where there is a GPU.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from importlib.metadata import PackageNotFoundError, requires, version
from pathlib import Path
from typing import Final

import hmi
from hmi.config import Settings
from hmi.doctor.finding import Finding, ok, problem, warning
from hmi.execution.machine import fingerprint

DISTRIBUTION: Final = "hmi-server"
STORE: Final = "hmi-plot-store"
FASTEST: Final = "avx512_bf16"
USEFUL: Final = "avx2"


def installation_findings(settings: Settings) -> Iterator[Finding]:
    yield ok("python", f"Python {sys.version.split()[0]}, hmi {hmi.__version__}")
    yield from _packages()
    yield from _processor()
    yield path_of(settings)


def _packages() -> Iterator[Finding]:
    """The packages that HMI needs, and the extras, by the metadata of both distributions."""
    try:
        needed = [text for name in (DISTRIBUTION, STORE) for text in requires(name) or []]
    except PackageNotFoundError:
        yield warning(
            "packages", "hmi runs from its sources: install it with pip to have its packages checked"
        )
        return
    extras: dict[str, list[str]] = {}
    wrong = []
    for text in needed:
        requirement, _, marker = text.partition(";")
        extra = re.search(r"extra == [\"']([\w-]+)[\"']", marker)
        if extra is not None:
            extras.setdefault(extra[1], []).append(requirement)
        elif (why := _unmet(requirement)) is not None:
            wrong.append(why)
    if wrong:
        yield problem("packages", f"{'; '.join(wrong)}: run pip install -U {DISTRIBUTION} {STORE}")
    else:
        told = ", ".join(f"{name} {version(name)}" for name in ("torch", "numba", "aiohttp", "lmdb"))
        yield ok("packages", f"all packages have versions that fit, such as {told}")
    installed = sorted(name for name, of in extras.items() if all(_unmet(one) is None for one in of))
    yield ok("extras", f"installed: {', '.join(installed) or 'none'}; of {', '.join(sorted(extras))}")


def _unmet(requirement: str) -> str | None:
    """Return why a requirement such as `torch>=2.6,<3` is not met, or None if it is.

    It compares bounds of the forms `>=`, `<` and `==` alone.
    """
    found = re.match(r"([\w.-]+)(?:\[[^\]]*\])?\s*(.*)", requirement.strip())
    assert found is not None
    try:
        have = version(found[1])
    except PackageNotFoundError:
        return f"{found[1]} is not installed"
    exactly = re.search(r"==\s*([\d.]+)", found[2])
    if exactly is not None and _numbers(have) != _numbers(exactly[1]):
        return f"{found[1]} {have} is not {exactly[1]}"
    least = re.search(r">=\s*([\d.]+)", found[2])
    if least is not None and _numbers(have) < _numbers(least[1]):
        return f"{found[1]} {have} is older than {least[1]}"
    below = re.search(r"<\s*([\d.]+)", found[2])
    if below is not None and _numbers(have) >= _numbers(below[1]):
        return f"{found[1]} {have} is not older than {below[1]}"
    return None


def _numbers(text: str) -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"\d+", text.partition("+")[0])[:3])


def _processor() -> Iterator[Finding]:
    about = fingerprint()
    flags = about["flags"].split()
    text = f"{about['processor']}, {about['cores']} cores, {about['flags'] or 'no vector instructions known'}"
    if USEFUL not in flags:
        yield warning("processor", f"{text}: without {USEFUL} answers take several times as long")
    else:
        numbers = "bf16" if FASTEST in flags else "int16"
        yield ok("processor", f"{text}: {numbers} by default")


def path_of(settings: Settings, nodes: Path = Path("/dev")) -> Finding:
    """Name the path that answers take on this machine: the processor, or a CUDA device. nodes: of devices."""
    devices = sorted(path.name for path in nodes.glob("nvidia[0-9]*"))
    if not devices and settings.device != "cuda":
        return ok("path", f"no NVIDIA device: the processor answers (torch {_version('torch')})")
    from hmi.execution.cuda.choose import path  # loads torch, which takes seconds

    precision, why = path(settings.device, settings.precision)
    here = f"{', '.join(devices) or 'no NVIDIA device'}, torch {_version('torch')}"
    if precision is None:
        text = f"{here}: the processor answers, since {why}"
        if settings.device == "cpu":
            return ok("path", text)
        cure = "check the driver with nvidia-smi, and install torch built for CUDA"
        return (problem if settings.device == "cuda" else warning)("path", f"{text}: {cure}")
    if _unmet("cupy-cuda13x>=14") is not None:
        cure = f"for faster answers: pip install {DISTRIBUTION}[cuda]"
        return warning(
            "path", f"{why} in {precision}, without the kernels of modules, which need cupy; {cure}"
        )
    streams = "" if settings.streams > 1 else "; set streams = 3, so that it need not wait for the host"
    return ok("path", f"{why} in {precision}, {here}, cupy {_version('cupy-cuda13x')}{streams}")


def _version(name: str) -> str:
    try:
        return version(name)
    except PackageNotFoundError:
        return "missing"
