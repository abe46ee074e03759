"""Durable files: written under a temporary name, synced, renamed, the folder synced. One place maps OSError.

A failed fsync is never retried: the kernel may have dropped the pages, so the file is abandoned.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

from plot_store.errors import StoreFull, StoreIO

TEMPORARY: Final = ".tmp"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
Buffer = bytes | bytearray | memoryview


def io_error(error: OSError, doing: str) -> StoreIO:
    """The store's error for the operating system's."""
    if error.errno in _FULL:
        return StoreFull(f"no space left while {doing}: free disk space, then run it again (nothing was published)")
    return StoreIO(f"{error.strerror or error} while {doing}: check the disk, its permissions and limits")


@contextlib.contextmanager
def guarded(doing: str) -> Iterator[None]:
    """Turns an OSError inside into StoreIO or StoreFull."""
    try:
        yield
    except OSError as error:
        raise io_error(error, doing) from error


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def write_all(fd: int, chunk: Buffer) -> None:
    """Write every byte: os.write may write fewer. Raises OSError."""
    view = memoryview(chunk).cast("B")
    while view.nbytes:
        done = os.write(fd, view)
        view = view[done:]


def write_temporary(folder: Path, chunks: Iterable[Buffer]) -> Path:
    """A synced file of these bytes under a temporary name; on any failure no file remains.

    Raises StoreFull or StoreIO.
    """
    path = folder / f"{uuid.uuid4().hex}{TEMPORARY}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            for chunk in chunks:
                write_all(fd, chunk)
            os.fsync(fd)
        finally:
            os.close(fd)
    except BaseException as error:
        remove(path)
        if isinstance(error, OSError):
            raise io_error(error, f"writing {path.name} in {folder}") from error
        raise
    return path


def remove(path: Path) -> bool:
    """Unlink if there; whether it was. Raises StoreIO."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise io_error(error, f"removing {path}") from error
    return True


def tree_bytes(folder: Path) -> int:
    """Bytes of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for base, _, files in os.walk(folder):
        for name in files:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(base, name)).st_blocks * 512
    return total
