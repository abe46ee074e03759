"""The places that backups are kept in: a folder, or anything that fsspec opens by a URL."""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, cast
from urllib.parse import unquote, urlsplit

from hmi.errors import HmiError, InvalidInput, NotFound, Unavailable
from hmi.model.files import full_or, sync_folder, write_bytes

SMALL = 1 << 20
PRIVATE_FOLDER, PRIVATE_FILE = 0o700, 0o600
"""Backups hold hashes of keys and tenants' texts, so a folder of backups is its owner's alone."""
_ADDRESS = re.compile(r"\w+://\S+")


class Target(Protocol):
    """A place for files by name. Names have slashes. Every method raises HmiError for what fails outside."""

    name: str
    """The place, for messages; without credentials."""

    def put(self, name: str, content: bytes | Path) -> None:
        """Store a file as a whole, replacing one of this name. Raises StorageFull, Unavailable."""

    def open(self, name: str) -> Any:
        """A context manager that yields the file for reading. Raises NotFound, Unavailable."""

    def sizes(self, below: str) -> dict[str, int]:
        """The sizes in bytes of all files whose name begins with `below/`, by name."""

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Those that are gone already are ignored."""

    def lies_in(self, folder: Path) -> bool:
        """Return True if the place is `folder`, a folder of this machine, or lies below it."""


def open_target(place: str, *, below: str = "") -> Target:
    """The target at `place`, a folder or a URL such as s3://bucket/hmi; `below` is a folder in it.

    Raises InvalidInput (not a usable place, or the package for its protocol is not installed).
    """
    if not place:
        raise InvalidInput("the place for backups is empty: give a folder or a URL", field="target")
    parts = urlsplit(place)
    if "://" not in place:
        return FolderTarget(Path(place).expanduser().absolute() / below)
    if parts.scheme == "file":
        return FolderTarget(Path(unquote(parts.path)) / below)
    return UrlTarget(f"{place.rstrip('/')}/{below}".rstrip("/"))


class FolderTarget:
    """A folder of this machine. Files are written under another name, synced and renamed."""

    def __init__(self, folder: Path) -> None:
        self.name, self._folder = str(folder), folder

    def put(self, name: str, content: bytes | Path) -> None:
        path = self._folder / name
        with self._errors(name):
            _private_folders(path.parent)
            if isinstance(content, bytes):
                write_bytes(path, content)
                path.chmod(PRIVATE_FILE)
                return
            aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
            try:
                with open(content, "rb") as source, open(aside, "wb") as out:
                    os.chmod(out.fileno(), PRIVATE_FILE)
                    shutil.copyfileobj(source, out, SMALL)
                    out.flush()
                    os.fsync(out.fileno())
                aside.replace(path)
                sync_folder(path.parent)
            finally:
                aside.unlink(missing_ok=True)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with self._errors(name), open(self._folder / name, "rb") as file:
            yield file

    def sizes(self, below: str) -> dict[str, int]:
        found = {}
        with self._errors(below):
            for inner, _, names in os.walk(self._folder / below):
                for name in names:
                    if not name.endswith(".tmp"):
                        path = Path(inner) / name
                        found[path.relative_to(self._folder).as_posix()] = path.stat().st_size
        return found

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._errors(name):
                (self._folder / name).unlink(missing_ok=True)

    def lies_in(self, folder: Path) -> bool:
        return self._folder.resolve().is_relative_to(folder.resolve())

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        try:
            yield
        except FileNotFoundError as error:
            raise NotFound(f"{self.name} has no file {name}") from error
        except OSError as error:
            full = full_or(error, self._folder / name)
            if isinstance(full, HmiError):
                raise full from error
            raise Unavailable(
                f"{self.name}: {error.strerror or error}: check the folder and who may write there"
            ) from error


class UrlTarget:
    """A place that fsspec opens. A file must appear there as a whole, as object storage does it."""

    def __init__(self, url: str) -> None:
        parts = urlsplit(url)
        self.name = f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
        try:
            from fsspec.core import url_to_fs
        except ImportError as error:
            raise InvalidInput(
                "backups to a URL need the package fsspec: pip install 'hmi-server[backup]'", field="target"
            ) from error
        try:
            self._fs, self._base = cast("tuple[Any, str]", url_to_fs(url))
        except (ImportError, ValueError) as error:
            raise InvalidInput(f"{self.name} cannot be opened: {_text_of(error)}", field="target") from error

    def put(self, name: str, content: bytes | Path) -> None:
        with self._errors(name):
            path = self._path(name)
            self._fs.makedirs(path.rpartition("/")[0], exist_ok=True)
            if isinstance(content, bytes):
                self._fs.pipe_file(path, content)
            else:
                self._fs.put_file(str(content), path)

    @contextmanager
    def open(self, name: str) -> Iterator[IO[bytes]]:
        with self._errors(name), self._fs.open(self._path(name), "rb") as file:
            yield file

    def sizes(self, below: str) -> dict[str, int]:
        with self._errors(below):
            self._fs.invalidate_cache()
            try:
                found = self._fs.find(self._path(below), detail=True)
            except FileNotFoundError:
                return {}
            start = len(self._base.rstrip("/")) + 1
            return {path[start:]: int(about["size"]) for path, about in found.items()}

    def remove(self, names: Iterable[str]) -> None:
        for name in names:
            with self._errors(name):
                try:
                    self._fs.rm_file(self._path(name))
                except FileNotFoundError:
                    continue

    def lies_in(self, folder: Path) -> bool:
        return False

    def _path(self, name: str) -> str:
        return f"{self._base.rstrip('/')}/{name}"

    @contextmanager
    def _errors(self, name: str) -> Iterator[None]:
        """Each file system raises errors of its own package."""
        try:
            yield
        except HmiError:
            raise
        except FileNotFoundError as error:
            raise NotFound(f"{self.name} has no file {name}") from error
        except Exception as error:
            raise Unavailable(
                f"{self.name}: {type(error).__name__}: {_text_of(error)}: check the address, its credentials "
                "and the connection, then try again"
            ) from error


def _text_of(error: Exception) -> str:
    """A library's words, without the addresses in them, which may have credentials or a signature."""
    return _ADDRESS.sub("…", str(error))


def read_bytes(target: Target, name: str) -> bytes:
    """The content of a small file. Raises NotFound, Unavailable."""
    with target.open(name) as file:
        content: bytes = file.read()
        return content


def _private_folders(folder: Path) -> None:
    if folder.is_dir():
        return
    _private_folders(folder.parent)
    folder.mkdir(mode=PRIVATE_FOLDER, exist_ok=True)
    sync_folder(folder.parent)
