"""Read-only file mappings that keep no descriptor open, and read-ahead hints for parts of them.

Python's mmap keeps a duplicate of the descriptor as long as the mapping lives, so a store would reach the
usual limit of 1,024 open files at 64 GB. The operating system needs no descriptor after the call.
"""

from __future__ import annotations

import ctypes
import mmap
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
_MADV_RANDOM: Final = 1  # rows are read one by one, so the system's own read-ahead would only evict pages
_MADV_WILLNEED: Final = 3
_MADV_DONTNEED: Final = 4
_MADV_POPULATE_READ: Final = 22
_MAX_RANGES: Final = 1024  # ranges per system call (UIO_MAXIOV)
_PIDFD_OPEN: Final = 434  # system call numbers, equal on every Linux architecture that numpy supports
_PROCESS_MADVISE: Final = 440
_FAILED: Final = ctypes.c_void_p(-1).value
_LIMIT: Final = Path("/proc/sys/vm/max_map_count")
# Mappings left to the rest of the process: without any, threads and large arrays cannot be created.
_SPARE: Final = 1 << 13
_MAPPED: Final[set[int]] = set()  # addresses of this process's file mappings


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
    """Map a file as read-only uint8 [size]. It is unmapped when its last view is gone.

    Raises OSError, StoreIO (too many mappings).
    """
    if len(_MAPPED) >= _MAX_MAPPED:
        raise StoreIO(
            f"this process has {len(_MAPPED)} files of segments mapped, and may have {_MAX_MAPPED + _SPARE} "
            "mappings in total: compact the refs (fewer, larger files), close readers, or raise "
            "vm.max_map_count (sysctl)"
        )
    address = _LIBC.mmap(None, size, _PROT_READ, _MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _LIBC.madvise(address, size, _MADV_RANDOM)  # a hint, so its failure is ignored
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    _MAPPED.add(address)
    weakref.finalize(memory, _unmap, address, size).atexit = False
    raw: Bytes = np.frombuffer(memory, np.uint8)
    raw.flags.writeable = False
    return raw


def _unmap(address: int, size: int) -> None:
    _MAPPED.discard(address)  # before munmap, after which another thread may map the address
    _LIBC.munmap(address, size)


def _max_mapped() -> int:
    """Return the limit on segment mappings: the system's limit less `_SPARE`."""
    try:
        return max(1, int(_LIMIT.read_text()) - _SPARE)
    except (OSError, ValueError):  # not Linux
        return 1 << 40


_MAX_MAPPED: Final = _max_mapped()


def fault_in(raw: Bytes) -> None:
    """Populate the page table for mapped memory (Linux 5.14), so that later access does not fault.

    Meant for what was just read. Only a hint: a failure is ignored.
    """
    _LIBC.madvise(*_pages(raw), _MADV_POPULATE_READ)


def let_go(raw: Bytes) -> None:
    """Drop mapped memory from the page table, so that it no longer counts as this process's memory.

    The system's cache keeps the file, so later access only faults. Only a hint: a failure is ignored.
    """
    _LIBC.madvise(*_pages(raw), _MADV_DONTNEED)


def read_soon(raw: Bytes) -> None:
    """Start reading mapped memory, without waiting."""
    will_need(np.array([_pages(raw)], np.uint64))


def _pages(raw: Bytes) -> tuple[int, int]:
    """Return the address and bytes of mapped memory, from the beginning of its first page.

    A segment begins at a multiple of 4096 bytes, which is no page boundary where pages are larger.
    """
    before = raw.ctypes.data % mmap.PAGESIZE
    return raw.ctypes.data - before, raw.size + before


def will_need(ranges: NDArray[np.uint64]) -> None:
    """Start reading ranges of mapped memory, without waiting.

    ranges: uint64 [k, 2], each an address on a page boundary and a number of bytes. One system call covers
    1,024 ranges (Linux 5.10), otherwise one. Only a hint: a failure is ignored.
    """
    done = _process_madvise(np.ascontiguousarray(ranges))
    for start, size in ranges[done:].tolist():
        _LIBC.madvise(start, size, _MADV_WILLNEED)


def _process_madvise(ranges: NDArray[np.uint64]) -> int:
    """Call `process_madvise` for this process on the ranges (each row is a `struct iovec`).

    Returns the number of ranges done before the first failure.
    """
    # Opened at each call, because a kept descriptor would mean the parent after a fork.
    me = _LIBC.syscall(_PIDFD_OPEN, os.getpid(), 0)
    if me < 0:
        return 0
    try:
        for first in range(0, len(ranges), _MAX_RANGES):
            part = ranges[first : first + _MAX_RANGES]
            advised = _LIBC.syscall(
                _PROCESS_MADVISE,
                me,
                ctypes.c_void_p(part.ctypes.data),
                ctypes.c_size_t(len(part)),
                _MADV_WILLNEED,
                ctypes.c_uint(0),
            )
            if advised != int(part[:, 1].sum()):
                return first
        return len(ranges)
    finally:
        os.close(me)
