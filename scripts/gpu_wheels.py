"""Fetches the wheels that scripts/gpu_trial.py needs on a machine with a GPU: python scripts/gpu_wheels.py

That machine has Python 3.12 for Linux, torch for CUDA, cupy, numba and what these need, and no network. The
wheels are of the versions that are installed here, for that Python, in the folder .gpu-wheels, which git
ignores.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

FOLDER = Path(__file__).resolve().parents[1] / ".gpu-wheels"
MOST_BYTES = 40 << 20
NEEDED = (
    "lmdb",
    "zstandard",
    "pydantic",
    "pydantic-core",
    "annotated-types",
    "typing-inspection",
    "pytest-asyncio",
)
"""What HMI and its tests import and that machine lacks."""
PLATFORMS = (
    "manylinux_2_28_x86_64",
    "manylinux_2_17_x86_64",
    "manylinux2014_x86_64",
    "manylinux_2_12_x86_64",
)


def main() -> int:
    FOLDER.mkdir(exist_ok=True)
    for old in FOLDER.glob("*.whl"):
        old.unlink()
    wanted = [f"{name}=={version(name)}" for name in NEEDED]
    pip = [sys.executable, "-m", "pip", "download", "--disable-pip-version-check", "--quiet", "--no-deps"]
    where = [part for platform in PLATFORMS for part in ("--platform", platform)]
    of = ["--only-binary=:all:", "--python-version", "3.12", "--implementation", "cp", *where]
    subprocess.run([*pip, *of, "--dest", str(FOLDER), *wanted], check=True)
    wheels = sorted(FOLDER.glob("*.whl"))
    size = sum(path.stat().st_size for path in wheels)
    print("\n".join(f"{path.stat().st_size:>10,}  {path.name}" for path in wheels))
    print(f"{size:>10,}  bytes in {FOLDER.name}, of {MOST_BYTES:,} at most")
    return int(size > MOST_BYTES)


if __name__ == "__main__":
    sys.exit(main())
