"""The memory of a process that is resident: held in the machine's memory now. Linux only."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Resident:
    """A process's resident memory in bytes."""

    anonymous: int
    """The process's own memory: no file backs it."""
    files: int
    """Pages of mapped files, which the kernel's page cache holds, and shared memory."""

    @property
    def all(self) -> int:
        return self.anonymous + self.files


def resident(pid: int | None = None) -> Resident:
    """Return the memory of the process `pid`; None: of this one. Raises OSError where there is no /proc."""
    statm = Path(f"/proc/{'self' if pid is None else pid}/statm").read_text(encoding="ascii")
    _, pages, shared = map(int, statm.split()[:3])
    size = os.sysconf("SC_PAGE_SIZE")
    return Resident((pages - shared) * size, shared * size)


def peak_resident() -> int | None:
    """Return the largest resident size of this process in bytes, from /proc; `getrusage` may report the
    parent's. None if it is unknown."""
    try:
        lines = Path("/proc/self/status").read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    return next((int(line.split()[1]) << 10 for line in lines if line.startswith("VmHWM:")), None)
