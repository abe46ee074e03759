"""The machine's free memory, and its page cache."""

from __future__ import annotations

import os
from pathlib import Path


def free_bytes() -> int:
    """Return the bytes of memory that are available without swapping or evicting what is in use.

    Half of the machine's memory where the system does not tell.
    """
    try:
        lines = Path("/proc/meminfo").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
    except (OSError, StopIteration):
        return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2


def drop_cached(path: Path) -> None:
    """Drop a file's pages from the page cache, unless they are mapped. Linux only."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
