"""Setting how much freed memory malloc keeps: all in a process that trains, none in one that serves."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # malloc.h
KEPT = 2_000_000_000
MORE = 256 << 20


def keep_freed_memory() -> bool:
    """Let malloc keep freed memory for the next step instead of returning it to the kernel.

    By default glibc maps every large block anew and the kernel clears its pages at each step, which takes a
    third to a half of the time of training a whole encoder. For processes that end with their training. False
    if malloc is not glibc's.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(option, value) == 1
        for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, KEPT), (_TOP_PAD, MORE))
    )


def give_back_memory() -> bool:
    """Give freed memory back to the kernel, also free blocks between used ones.

    False if malloc is not glibc's. Takes a while and locks malloc's arenas one after the other: call it
    seldom and off the event loop.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))
