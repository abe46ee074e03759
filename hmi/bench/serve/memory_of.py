"""Memory of this process, of the machine, and its page cache. Linux only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resident:
    """The bytes of this process that are in memory."""

    private: int
    """Bytes that no file backs."""
    mapped: int
    """Bytes of mapped files, which the system's page cache holds anyway."""

    @property
    def all(self) -> int:
        return self.private + self.mapped


def resident() -> Resident:
    """Read the kernel's counts of this process."""
    _, pages, shared = map(int, Path("/proc/self/statm").read_text().split()[:3])
    size = os.sysconf("SC_PAGE_SIZE")
    return Resident((pages - shared) * size, shared * size)


def free_bytes() -> int:
    """Return the bytes of memory that are available without swapping."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))


def forget(path: Path) -> None:
    """Drop a file's pages from the page cache, unless they are mapped."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
