"""Setting how much freed memory malloc keeps: all in a process that trains, none in one that serves."""

from __future__ import annotations

import ctypes

_TRIM_THRESHOLD, _TOP_PAD, _MMAP_MAX = -1, -2, -4  # malloc.h
KEPT = 2_000_000_000
MORE = 256 << 20


def keep_freed_memory() -> bool:
    """Let malloc keep what is freed for the next step instead of giving it back to the kernel.

    glibc maps every large block anew, and the kernel clears its pages at each step: a third to a half of the time of
    training a whole encoder. For processes that end with their training. False where malloc is another one.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return all(
        mallopt(option, value) == 1 for option, value in ((_MMAP_MAX, 0), (_TRIM_THRESHOLD, KEPT), (_TOP_PAD, MORE))
    )


def give_back_memory() -> bool:
    """Give freed memory back to the kernel, also what lies between what is in use. False where malloc is another one.

    Takes a while and locks malloc's arenas one after the other meanwhile: call it seldom and off the event loop.
    """
    try:
        trim = ctypes.CDLL(None).malloc_trim
    except (OSError, AttributeError):
        return False
    return bool(trim(0))
