"""Mapping a file read-only without keeping a descriptor open.

Python's mmap holds a duplicate of the descriptor for as long as the mapping lives, so a large store would run into
the usual limit of 1,024 open files at 64 GB. The operating system needs none after the call.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from typing import Any, Final

import numpy as np

from kernels.layout import Bytes

_PROT_READ: Final = 1
_MAP_SHARED: Final = 1
_MADV_RANDOM: Final = 1  # rows are read one by one: reading ahead would only evict others
_FAILED: Final = ctypes.c_void_p(-1).value


def _libc() -> Any:
    libc: Any = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
    libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
    libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
    return libc


_LIBC: Final = _libc()


def map_read_only(fd: int, size: int) -> Bytes:
    """uint8 [size], read-only; unmapped when the last view of it is gone. Raises OSError."""
    address = _LIBC.mmap(None, size, _PROT_READ, _MAP_SHARED, fd, 0)
    if address is None or address == _FAILED:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    _LIBC.madvise(address, size, _MADV_RANDOM)  # a hint: whether it is taken changes no result
    memory: Any = (ctypes.c_ubyte * size).from_address(address)
    weakref.finalize(memory, _LIBC.munmap, address, size).atexit = False
    raw: Bytes = np.frombuffer(memory, np.uint8)
    raw.flags.writeable = False
    return raw
