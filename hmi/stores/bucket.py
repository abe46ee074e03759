"""The place in object storage that nodes share: the registry's journal, PLOTs, and files of the data folder.

registry/    the journal (`hmi.stores.journal`)
plots/       refs and segments, as docs/plot-format.md specifies them
files/       files that never change, under their paths in the data folder
"""

from __future__ import annotations

import hashlib
import mmap
import os
import uuid
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import chain
from pathlib import Path
from typing import Final

from hmi.config import Settings
from hmi.errors import Damaged
from hmi.model.files import full_or, sync_folder
from hmi.stores.journal.journal import Journal
from hmi.stores.plot.plots import plot_errors
from plot_store.remote.objects import Objects, open_objects, threaded

_PIECE: Final = 8 << 20
_AHEAD: Final = 8
"""Pieces that are read before they are written. Large files do not fit into memory."""


class Bucket:
    """The contents of one place. Thread-safe. Methods raise Unavailable if the place does not answer."""

    def __init__(self, url: str) -> None:
        """url: a folder, or a URL such as s3://bucket/hmi. Nothing is contacted yet. Raises InvalidInput."""
        self.plots = _below(url, "plots")
        """The place of `Store.push` and `Store.pull`."""
        self.journal = Journal(_below(url, "registry"))
        with plot_errors():
            self._files: Objects = open_objects(_below(url, "files"))

    def put(self, name: str, path: Path) -> None:
        """Store a file under a name, in place of an earlier one.

        Its age begins anew, so that no collection removes it before the registry names it.
        """
        with plot_errors(), _bytes(path) as data:
            self._files.put(name, data)

    def fetch(self, name: str, path: Path, sha256: str) -> bool:
        """Bring a file to `path`, whose folder exists. Returns False if there is none of this name.

        Raises Damaged (other content than `sha256`, in hexadecimal digits), StorageFull.
        """
        with plot_errors():
            size = self._files.size(name)
            if size is None:
                return False
            starts = range(0, size, _PIECE)
            pieces = chain.from_iterable(
                threaded(
                    lambda at: self._files.read(name, at, min(_PIECE, size - at)), starts[i : i + _AHEAD]
                )
                for i in range(0, len(starts), _AHEAD)
            )
            aside = path.with_name(f".{path.name}.{uuid.uuid4().hex[:8]}.tmp")
            try:
                found = _write(aside, pieces)
                if found != sha256:
                    raise Damaged(
                        f"the file {name} in the bucket fails its checksum: restore it from the bucket's "
                        "older versions"
                    )
                aside.replace(path)
                sync_folder(path.parent)
            except OSError as error:
                raise full_or(error, path) from error
            finally:
                aside.unlink(missing_ok=True)
        return True

    def read(self, name: str) -> bytes | None:
        """Return a small file; None if there is none."""
        with plot_errors():
            found = self._files.get(name)
        return None if found is None else found[0]

    def write(self, name: str, data: bytes) -> None:
        """Store a small file in place of an earlier one."""
        with plot_errors():
            self._files.put(name, memoryview(data))

    def has(self, name: str) -> bool:
        with plot_errors():
            return self._files.size(name) is not None

    def names(self, below: str, older_than_s: float = 0.0) -> list[str]:
        """Return the names of the files below a folder. An age counts from the newest of them, by the clock
        of the place."""
        with plot_errors():
            listed = list(self._files.listed(below))
        newest = max((one.modified for one in listed), default=0.0)
        return [one.name for one in listed if one.modified <= newest - older_than_s]

    def remove(self, names: Iterable[str]) -> None:
        """Remove files. Those that are gone already are ignored."""
        with plot_errors():
            self._files.remove(names)


def bucket_of(settings: Settings) -> Bucket | None:
    """The bucket that a process of these settings shares; None if its data folder is its own."""
    return Bucket(settings.bucket) if settings.bucket else None


def _below(url: str, part: str) -> str:
    return f"{url.rstrip('/')}/{part}" if "://" in url else str(Path(url).expanduser() / part)


@contextmanager
def _bytes(path: Path) -> Iterator[memoryview]:
    if not path.stat().st_size:  # nothing can be mapped
        yield memoryview(b"")
        return
    with (
        path.open("rb") as file,
        mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as mapped,
        memoryview(mapped) as data,
    ):
        yield data


def _write(path: Path, pieces: Iterable[bytes | None]) -> str:
    """Write a file durably, and return the SHA-256 of what came."""
    found = hashlib.sha256()
    with path.open("wb") as file:
        for piece in pieces:
            found.update(piece or b"")
            file.write(piece or b"")
        file.flush()
        os.fsync(file.fileno())
    return found.hexdigest()
