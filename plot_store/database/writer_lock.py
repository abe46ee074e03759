"""A lock in front of LMDB's own lock, whose wait has no limit when a stopped or hanging process holds it.

This lock only bounds the wait and names the holder; LMDB's makes writers exclude each other. So where this
lock is missing or lost (an older release, another thread that closes the file), only the time limit is lost.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import struct
import sys
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from plot_store.ground.errors import StoreIO

LONGEST_WAIT_S: Final = 60.0  # many times what a transaction takes, its sync on a busy disk included
AGAIN_S: Final = (
    1.0  # once somebody waited in vain, until the lock is had again: not all threads of a server wait
)
_FIRST_PAUSE_S: Final = 0.0005
_LONGEST_PAUSE_S: Final = 0.005
_FLOCK: Final = "hhqqi"  # struct flock of Linux: type, whence, start, length, pid


class WriterLock:
    """One for each LMDB environment of a process; the lock file lies beside its data. Not re-entrant."""

    def __init__(self, folder: Path, of: str) -> None:
        """of: what the folder holds, for the message: "the store at …"."""
        self._path = folder / "write.lock"
        self._of = of
        self._ours = threading.Lock()
        self._hung = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Keep other writers waiting. Raises StoreIO when the lock is not to be had in LONGEST_WAIT_S
        (AGAIN_S)."""
        wait_s = min(AGAIN_S, LONGEST_WAIT_S) if self._hung else LONGEST_WAIT_S
        end = time.monotonic() + wait_s
        if not self._ours.acquire(timeout=wait_s):
            raise self._held_by(f"another thread of this process ({os.getpid()})", wait_s)
        try:
            with _opened(self._path) as fd:  # closing it gives the lock back
                if fd is not None:
                    self._wait(fd, end, wait_s)
                self._hung = False
                yield
        finally:
            self._ours.release()

    def _wait(self, fd: int, end: float, wait_s: float) -> None:
        """Polls: a call that waits can be bounded by a signal only, and those belong to the main thread."""
        pause = _FIRST_PAUSE_S
        while not _taken(fd):
            if time.monotonic() > end:
                holder = _holder(fd)
                raise self._held_by(f"process {holder}" if holder else "a process (lsof names it)", wait_s)
            time.sleep(pause)
            pause = min(2 * pause, _LONGEST_PAUSE_S)

    def _held_by(self, holder: str, wait_s: float) -> StoreIO:
        self._hung = True
        return StoreIO(
            f"{holder} holds the write lock of {self._of} and did not give it back in {wait_s:g} s, so "
            "nothing was "
            "changed: it is stopped (kill -CONT lets it go on), waits for the disk, or hangs (kill -KILL "
            "ends it, and "
            "LMDB undoes what it had in hand); then try again"
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """The lock file's descriptor; None where there is no room for it, or no right to make it: LMDB says so
    better."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _taken(fd: int) -> bool:
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _holder(fd: int) -> int:
    """The id of the process that has the lock; 0 where that cannot be told (gone by now, of another
    container)."""
    if not sys.platform.startswith("linux"):
        return 0
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else max(0, int(pid))
