"""Durable files, and the mapping from OSError to the store's errors.

A file is written under a temporary name, synced and renamed; then its folder is synced. A failed fsync is
never retried: the kernel may have dropped the pages, so the file is abandoned. Everything durable goes
through `sync_file` and `sync_folder`, except LMDB's file, which LMDB syncs itself.
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
_FLUSH_BYTES: Final = 4 << 20  # start write-back after every 4 MiB, so that the final sync is short
_SYNC_FILE_RANGE_WRITE: Final = 2
Buffer = bytes | bytearray | memoryview


def io_error(error: OSError, doing: str) -> StoreIO:
    """Convert an OSError to StoreFull or StoreIO. `doing` says what failed."""
    if error.errno in _FULL:
        return StoreFull(
            f"no space left while {doing}: free disk space, then run it again (nothing was published)"
        )
    why = error.strerror or error
    return StoreIO(f"{why} while {doing}: check the disk, its permissions and limits, then try again")


@contextlib.contextmanager
def convert_os_errors(doing: str) -> Iterator[None]:
    """Convert an OSError raised in the block to StoreFull or StoreIO."""
    try:
        yield
    except OSError as error:
        raise io_error(error, doing) from error


def sync_file(fd: int) -> None:
    """Make an open file's bytes durable. Raises OSError."""
    os.fsync(fd)


def sync_folder(folder: Path) -> None:
    """Make a folder's directory entries durable. Raises OSError."""
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def make_folder(folder: Path) -> None:
    """Create a folder and its missing parents, durably. Raises OSError."""
    if folder.is_dir():
        return
    make_folder(folder.parent)
    folder.mkdir(exist_ok=True)
    sync_folder(folder.parent)


def write_all(fd: int, chunk: Buffer) -> int:
    """Write every byte (os.write may write fewer). Returns their number. Raises OSError."""
    view = memoryview(chunk).cast("B")
    size = view.nbytes
    while view.nbytes:
        done = os.write(fd, view)
        view = view[done:]
    return size


class TemporaryFile:
    """A new file under a temporary name, written from beginning to end.

    The caller ends it by `sync` or `discard`. Every method raises StoreFull, StoreIO.
    """

    def __init__(self, folder: Path) -> None:
        self.path = folder / f"{uuid.uuid4().hex}{TEMPORARY}"
        self.size = 0  # bytes written
        self._begun = 0  # bytes whose write-back has begun
        self._doing = f"writing {self.path.name} in {folder}"
        with convert_os_errors(self._doing):
            self._fd = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644)

    def write(self, chunk: Buffer) -> None:
        """Add bytes."""
        with convert_os_errors(self._doing):
            self.size += write_all(self._fd, chunk)
            if self.size - self._begun >= _FLUSH_BYTES:
                _start_writeback(self._fd, self._begun, self.size - self._begun)
                self._begun = self.size

    def sync(self) -> Path:
        """Make the file durable and close it. Returns its path."""
        try:
            with convert_os_errors(self._doing):
                sync_file(self._fd)
        finally:
            self._close()
        return self.path

    def touch(self) -> None:
        """Set the time of its last change to now."""
        with convert_os_errors(self._doing):
            os.utime(self.path)

    def discard(self) -> None:
        """Close and remove the file, if it is still there under this name."""
        self._close()
        remove(self.path)

    def _close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1


def write_temporary(folder: Path, chunks: Iterable[Buffer]) -> Path:
    """Write and sync a file under a temporary name. On any failure no file remains.

    Raises StoreFull, StoreIO.
    """
    file = TemporaryFile(folder)
    try:
        for chunk in chunks:
            file.write(chunk)
        return file.sync()
    except BaseException:
        file.discard()
        raise


def _start_writeback(fd: int, start: int, size: int) -> None:
    """Ask the system to write this range back soon.

    This is only a hint: it makes nothing durable. Systems without the call take longer over the final sync.
    """
    if _SYNC_RANGE is not None:
        _SYNC_RANGE(fd, start, size, _SYNC_FILE_RANGE_WRITE)


def _sync_range() -> Any:
    function: Any = getattr(ctypes.CDLL(None, use_errno=True), "sync_file_range", None)
    if function is not None:
        function.argtypes = [ctypes.c_int, ctypes.c_int64, ctypes.c_int64, ctypes.c_uint]
    return function


_SYNC_RANGE: Final = _sync_range()


def remove(path: Path) -> bool:
    """Unlink a file. Returns whether it existed. Raises StoreIO."""
    try:
        os.unlink(path)
    except FileNotFoundError:
        return False
    except OSError as error:
        raise io_error(error, f"removing {path}") from error
    return True


def free_bytes(folder: Path) -> int:
    """Return the bytes that an unprivileged user may still write. Raises OSError."""
    status = os.statvfs(folder)
    return status.f_bavail * status.f_frsize


def folder_bytes(folder: Path) -> int:
    """Return the bytes on disk of all files below a folder. Files that vanish meanwhile are skipped."""
    total = 0
    for base, _, names in os.walk(folder):
        for name in names:
            with contextlib.suppress(FileNotFoundError):
                total += os.stat(os.path.join(base, name)).st_blocks * 512
    return total
