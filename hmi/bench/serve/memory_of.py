"""Memory of this process, and of the machine."""

from __future__ import annotations

import os
from pathlib import Path


def resident_bytes(pid: int | None = None) -> int:
    """Return the bytes of a process that are in memory, by default of this one. Linux only."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def private_bytes() -> int:
    """Return the bytes of this process in memory that no file backs. Linux only."""
    _, resident, shared = Path("/proc/self/statm").read_text().split()[:3]
    return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")


def free_bytes() -> int:
    """Return the bytes of memory that are available without swapping. Linux only."""
    lines = Path("/proc/meminfo").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("MemAvailable:"))
