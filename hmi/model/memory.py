"""The memory that the process may use, and settings of glibc's malloc: a process that trains keeps freed
memory, one that serves returns it."""

from __future__ import annotations

import ctypes
import os
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

CGROUP_LIMITS = (Path("/sys/fs/cgroup/memory.max"), Path("/sys/fs/cgroup/memory/memory.limit_in_bytes"))
"""The files in which Linux tells a container its memory limit, in cgroups of version 2 and 1."""
_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # malloc.h
TRIM_THRESHOLD_BYTES = 2_000_000_000
"""Free memory at the top of the heap is returned to the kernel only beyond this."""
TOP_PAD_BYTES = 256 << 20
"""The heap grows by this much more than is needed."""


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
    return all(
        mallopt(option, value) == 1
        for option, value in (
            (_MMAP_MAX, 0),
            (_TRIM_THRESHOLD, TRIM_THRESHOLD_BYTES),
            (_TOP_PAD, TOP_PAD_BYTES),
        )
    )


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


def usable_memory(limits: Sequence[Path] = CGROUP_LIMITS) -> int:
    """The bytes of memory that this process may use: the machine's, or its container's limit if lower.

    limits: files with a limit in bytes, or with `max` for none. A file that is missing sets no limit.
    """
    found = [os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")]
    for file in limits:
        with suppress(OSError, ValueError):
            found.append(int(file.read_text()))
    return min(found)
