"""The machine's page cache."""

from __future__ import annotations

import errno
import gc
import os
from pathlib import Path

PAGE = 4096
PROBES = 16
STILL_THERE = 0.1
"""If more than this fraction of the probed pages is in memory, the system has not dropped the files."""


def drop_cached(path: Path) -> None:
    """Drop a file's pages from the page cache, unless they are mapped. Linux only."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.fsync(file)  # dirty pages cannot be dropped
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)


def drop_folder(folder: Path) -> str | None:
    """Drop the pages of a folder's files, which no process may have mapped, or return why that failed."""
    gc.collect()  # a file stays mapped as long as an array of the mapping lives
    kept: list[bool] = []
    for path in folder.iterdir():
        drop_cached(path)
        try:
            kept += _in_memory(path)
        except OSError as error:
            if error.errno in (errno.EOPNOTSUPP, errno.EINVAL):
                return "this file system does not say what is in memory: name a folder on a disk with --data"
            raise
    if sum(kept) > STILL_THERE * len(kept):
        return "the system keeps the files in memory: name a folder on a disk with --data"
    return None


def _in_memory(path: Path) -> list[bool]:
    """Return whether each probed page is in memory. Raises OSError if the system does not tell."""
    found = []
    with path.open("rb", buffering=0) as file:
        size = path.stat().st_size
        for at in range(0, max(1, size - PAGE), max(PAGE, size // PROBES)):
            try:
                found.append(os.preadv(file.fileno(), [bytearray(1)], at, os.RWF_NOWAIT) == 1)
            except BlockingIOError:
                found.append(False)
    return found
