"""Durable files: written under a temporary name, synced, renamed, then the folder is synced. OSErrors are
mapped here.

A failed fsync is never retried: the kernel may have dropped the pages, so the file is abandoned. `sync_file`
and `sync_folder` are the only places that make anything of ours durable (LMDB syncs its own file).
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, Final

from plot_store.ground.errors import StoreFull, StoreIO

TEMPORARY: Final = ".tmp"
_FULL: Final = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
_EARLY: Final = 4 << 20  # after so many bytes the disk is told to begin, so that the sync at the end is short
_BEGIN_WRITING: Final = 2  # SYNC_FILE_RANGE_WRITE
Buffer = bytes | bytearray | memoryview


def io_error(error: OSError, doing: str) -> StoreIO:
    """The store's error for the operating system's."""
    if error.errno in _FULL:
        return StoreFull(
            f"no space left while {doing}: free disk space, then run it again (nothing was published)"
        )
    why = error.strerror or error
    return StoreIO(f"{why} while {doing}: check the disk, its permissions and limits, then try again")


@contextlib.contextmanager
def guarded(doing: str) -> Iterator[None]:
    """Turns an OSError inside into StoreIO or StoreFull."""
    try:
        yield
    except OSError as error:
        raise io_error(error, doing) from error


def sync_file(fd: int) -> None:
    """Make an open file's bytes durable. Raises OSError."""
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make the folder's entries durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Make a folder and those it lies in, durably, where they are lacking. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def write_all(fd: int, chunk: Buffer) -> int:
    """Write every byte, since os.write may write fewer; how many there were. Raises OSError."""
    view = memoryview(chunk).cast("B")
    size = view.nbytes
    while view.nbytes:
        done = os.write(fd, view)
        view = view[done:]
    return size


def write_temporary(folder: Path, chunks: Iterable[Buffer]) -> Path:
    """A synced file of these bytes under a temporary name; on any failure no file remains.

    Raises StoreFull or StoreIO.
    """
    path = folder / f"{uuid.uuid4().hex}{TEMPORARY}"
    try:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)
        try:
            _write_chunks(fd, chunks)
            sync_file(fd)
        finally:
            os.close(fd)
    except BaseException as error:
        remove(path)
        if isinstance(error, OSError):
            raise io_error(error, f"writing {path.name} in {folder}") from error
        raise
    return path


def _write_chunks(fd: int, chunks: Iterable[Buffer]) -> None:
    end = begun = 0
    for chunk in chunks:
        end += write_all(fd, chunk)
        if end - begun >= _EARLY:
            _begin_writing(fd, begun, end - begun)
            begun = end


def _begin_writing(fd: int, start: int, size: int) -> None:
    """Ask the system to write this range back soon. This is only a hint: it makes nothing durable, and on
    systems without it only the sync takes longer."""
    if _SYNC_RANGE is not None:
        _SYNC_RANGE(fd, start, size, _BEGIN_WRITING)


def _sync_range() -> Any:
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_SYNC_RANGE: Final = _sync_range()


def remove(path: Path) -> bool:
    """Unlink if there; whether it was. Raises StoreIO."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise io_error(error, f"removing {path}") from error
    return True


def free_bytes(folder: Path) -> int:
    """Bytes that a user without privileges may still write. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def folder_bytes(folder: Path) -> int:
    """Bytes on disk of all files below a folder; files that vanish meanwhile count nothing."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(base, name)).st_blocks * 512
    return total
