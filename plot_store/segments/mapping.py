"""Mapping a file read-only without keeping a descriptor open, and asking for parts of it before they are
used.

Python's mmap holds a duplicate of the descriptor for as long as the mapping lives, so a large store would run
into the usual limit of 1,024 open files at 64 GB. The operating system needs none after the call.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from pathlib import Path
from typing import Any, Final

import numpy as np
from hmi_kernels.lookup.layout import Bytes
from numpy.typing import NDArray

from plot_store.ground.errors import StoreIO

_PROT_READ: Final = 1
_MAP_SHARED: Final = 1
_MADV_RANDOM: Final = 1  # rows are read one by one: reading ahead would only evict others
_MADV_WILLNEED: Final = 3
_MADV_POPULATE_READ: Final = 22
_MOST_RANGES: Final = 1024  # that one system call takes
_PIDFD_OPEN: Final = 434  # the numbers are the same on every architecture of Linux that numpy runs on
_PROCESS_MADVISE: Final = 440
_FAILED: Final = ctypes.c_void_p(-1).value
_LIMIT: Final = Path("/proc/sys/vm/max_map_count")
# Mappings left to the rest of the process: without one, no thread starts and arrays fail.
_SPARE: Final = 1 << 13
_MAPPED: Final[set[int]] = set()  # where this process has files mapped


def _libc() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    libc.syscall.restype = ctypes.c_long
    return libc


_LIBC: Final = _libc()


def map_read_only(fd: int, size: int) -> Bytes:
    """uint8 [size], read-only; unmapped when the last view of it is gone. Raises OSError, StoreIO (too
    many)."""
    if len(_MAPPED) >= _MOST_MAPPED:
        raise StoreIO(
            f"this process has {len(_MAPPED)} segments mapped, and may have {_MOST_MAPPED + _SPARE} mappings "
            "in all: compact the refs (fewer, larger segments), close readers, or raise "
            "vm.max_map_count (sysctl)"
        )
    address = _LIBC.mmap(None, size, _PROT_READ, _MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _LIBC.madvise(address, size, _MADV_RANDOM)  # a hint: whether it is taken changes no result
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    _MAPPED.add(address)
    weakref.finalize(memory, _unmap, address, size).atexit = False
    raw: Bytes = np.frombuffer(memory, np.uint8)
    raw.flags.writeable = False
    return raw


def _unmap(address: int, size: int) -> None:
    _MAPPED.discard(address)  # first: once it is unmapped, another thread may map there
    _LIBC.munmap(address, size)


def _most_mapped() -> int:
    """The limit on file mappings of one process, which leaves some for the rest of the process."""
    try:
        return max(1, int(_LIMIT.read_text()) - _SPARE)
    except (OSError, ValueError):  # no Linux
        return 1 << 40


_MOST_MAPPED: Final = _most_mapped()


def fault_in(raw: Bytes) -> None:
    """Enter a whole mapped file in this process's page table (Linux 5.14), so that no use of it stops for
    that.

    For files that were just read. A hint too.
    """
    _LIBC.madvise(raw.ctypes.data, raw.size, _MADV_POPULATE_READ)


def read_soon(raw: Bytes) -> None:
    """Begin to read a whole mapped file, without waiting."""
    will_need(np.array([[raw.ctypes.data, raw.size]], np.uint64))


def will_need(ranges: NDArray[np.uint64]) -> None:
    """Begin to read ranges of mapped memory, uint64 [k, 2] (address on a page boundary, bytes), without
    waiting.

    A thousand ranges a system call where the kernel can (Linux 5.10), else one. Hints: a refusal changes no
    result.
    """
    done = _many_at_once(np.ascontiguousarray(ranges))
    for start, size in ranges[done:].tolist():
        _LIBC.madvise(start, size, _MADV_WILLNEED)


def _many_at_once(ranges: NDArray[np.uint64]) -> int:
    """How many of the ranges were asked for by `process_madvise` on this process; an array row is a `struct
    iovec`."""
    # Opened each time: a kept one would name the parent after a fork.
    me = _LIBC.syscall(_PIDFD_OPEN, os.getpid(), 0)
    if me < 0:
        return 0
    try:
        for first in range(0, len(ranges), _MOST_RANGES):
            part = ranges[first : first + _MOST_RANGES]
            taken = _LIBC.syscall(
                _PROCESS_MADVISE,
                me,
                ctypes.c_void_p(part.ctypes.data),
                ctypes.c_size_t(len(part)),
                _MADV_WILLNEED,
                ctypes.c_uint(0),
            )
            if taken != int(part[:, 1].sum()):
                return first
        return len(ranges)
    finally:
        os.close(me)
