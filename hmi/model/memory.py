"""The memory that the process may use, and settings of glibc's malloc: a process that trains keeps freed
memory, one that serves returns it."""

from __future__ import annotations

import ctypes
import os
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hmi.resident import resident

CGROUPS = Path("/sys/fs/cgroup")
OWN_CGROUPS = Path("/proc/self/cgroup")
MEMINFO = Path("/proc/meminfo")
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # malloc.h
TRIM_THRESHOLD_BYTES = 2_000_000_000
"""Free memory at the top of the heap is returned to the kernel only beyond this."""
TOP_PAD_BYTES = 256 << 20
"""The heap grows by this much more than is needed."""
GROWTH_BYTES, PAUSE_S = 32 << 20, 1.0
"""A process that keeps freed memory trims its heap when it has grown by so much, and this often at most."""
Names = tuple[str, str, tuple[str, ...]]
"""The fields of a `Cgroup` after its folder."""
VERSION_1: Names = (
    "memory.limit_in_bytes",
    "memory.usage_in_bytes",
    ("total_inactive_file", "total_active_file"),
)
VERSION_2: Names = "memory.max", "memory.current", ("inactive_file", "active_file", "slab_reclaimable")
_trimmed: tuple[float, int] | None = None
"""When the process last looked at its memory, and its resident bytes after the last trim. None in a process
that keeps no freed memory."""


def keep_freed_memory() -> bool:
    """Make malloc reuse freed memory instead of returning it to the kernel. False if malloc is not glibc's.

    By default glibc maps each large block anew, and the kernel clears its pages at every step:
    a third to a half of the time of training a whole encoder. Call it only in a process that
    ends when its training does.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    global _trimmed
    _trimmed = 0.0, 0
    return all(
        mallopt(option, value) == 1
        for option, value in (
            (_MMAP_MAX, 0),
            (_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
            (_TOP_PAD, TOP_PAD_BYTES),
        )
    )


def keep_less_if_grown() -> None:
    """Return free pages to the kernel if this process keeps freed memory and has grown by GROWTH_BYTES.

    Small blocks that live long come to lie in the gaps that large ones left, so the heap of a long training
    grows although it uses no more. Call it at each step: usually it only reads a clock. The pages that a step
    needs again are cleared by the kernel, some 50 ms of work, so it happens at most every PAUSE_S.
    """
    global _trimmed
    if _trimmed is None or time.monotonic() - _trimmed[0] < PAUSE_S:
        return
    with suppress(OSError):  # no /proc
        held, least = resident().anonymous, _trimmed[1]
        if held - least > GROWTH_BYTES:
            give_back_memory()
            least = resident().anonymous
        _trimmed = time.monotonic(), least


def give_back_memory() -> bool:
    """Return freed memory to the kernel, including free pages between used blocks (`malloc_trim`).

    Returns True if any was returned, False if none was or malloc is not glibc's. The call is slow and locks
    malloc's arenas one after another: make it rarely and off the event loop.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))


def usable_memory(groups: Sequence[Cgroup] | None = None) -> int:
    """The bytes of memory that this process may use: the machine's, or a limit of its cgroups if lower.

    groups: None means those of this process.
    """
    limits = [group.limit() for group in (own_cgroups() if groups is None else groups)]
    machine = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return min([machine, *(limit for limit in limits if limit is not None)])


def memory_left(groups: Sequence[Cgroup] | None = None, meminfo: Path = MEMINFO) -> int:
    """The bytes of memory that nobody uses: what the machine has left, or a cgroup of this process if less.

    What the system can drop without loss, such as cached files, counts as left. Half of the machine's memory
    where the system does not tell. groups: None means the cgroups of this process.
    """
    left = (group.left() for group in (own_cgroups() if groups is None else groups))
    return min([_available(meminfo), *(n for n in left if n is not None)])


@dataclass(frozen=True)
class Cgroup:
    """A cgroup of Linux, by the names of its files. A limit or use that cannot be read sets no limit."""

    folder: Path
    limit_file: str
    used_file: str
    dropped: tuple[str, ...]
    """The lines of memory.stat with bytes that the system can drop without loss, such as cached files."""

    def limit(self) -> int | None:
        return _number(self.folder / self.limit_file)

    def left(self) -> int | None:
        limit, used = self.limit(), _number(self.folder / self.used_file)
        if limit is None or used is None:
            return None
        return max(
            0, limit - used + sum(_line(self.folder / "memory.stat", each) or 0 for each in self.dropped)
        )


def own_cgroups(root: Path = CGROUPS, own: Path = OWN_CGROUPS) -> list[Cgroup]:
    """The cgroups that bound this process's memory: its own and all that these are in, of versions 2 and 1.

    Within a container their folders may be out of sight. Then they are at the top, which is read, too.
    """
    found = list[Cgroup]()
    with suppress(OSError):
        for line in own.read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if controllers == "":
                top, names = root, VERSION_2
            elif "memory" in controllers.split(","):
                top, names = root / "memory", VERSION_1
            else:
                continue
            folder = top / path.lstrip("/")
            found += [Cgroup(each, *names) for each in (folder, *folder.parents) if each.is_relative_to(top)]
    return found


def _number(file: Path) -> int | None:
    """The number in a file; None if there is none, or `max`."""
    try:
        return int(file.read_text())
    except (OSError, ValueError):
        return None


def _line(file: Path, name: str) -> int | None:
    """The number after a name in a file of such lines; None if there is none."""
    with suppress(OSError, ValueError):
        for line in file.read_text().splitlines():
            if line.split(maxsplit=1)[:1] == [name]:
                return int(line.split()[1])
    return None


def _available(meminfo: Path) -> int:
    left = _line(meminfo, "MemAvailable:")
    return os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") // 2 if left is None else left << 10
