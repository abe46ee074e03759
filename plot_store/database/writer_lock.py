"""A lock in front of LMDB's write lock that bounds the wait and names the holder.

LMDB alone waits forever if a stopped or hanging process holds its lock. Mutual exclusion still comes from
LMDB. So where this lock is missing or lost (an older release, another thread that closes the file), only the
time limit is lost.
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

MAX_WAIT_S: Final = 60.0  # many times the duration of a transaction, sync on a busy disk included
# The wait after one that timed out, until the lock is acquired again: a server's threads must not all block.
RETRY_WAIT_S: Final = 1.0
_MIN_POLL_S: Final = 0.0005
_MAX_POLL_S: Final = 0.005
_FLOCK: Final = "hhqqi"  # struct flock of Linux: type, whence, start, length, pid


class WriterLock:
    """The write lock of one LMDB environment in this process: a lock file beside its data. Not re-entrant."""

    def __init__(self, folder: Path, of: str) -> None:
        """of: what the folder holds, as messages name it, such as "the store at …"."""
        self._path = folder / "write.lock"
        self._of = of
        self._ours = threading.Lock()
        self._hung = False

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lock in the block. Raises StoreIO if it is not acquired within MAX_WAIT_S.

        After such a failure, the wait is RETRY_WAIT_S until an attempt succeeds.
        """
        wait_s = min(RETRY_WAIT_S, MAX_WAIT_S) if self._hung else MAX_WAIT_S
        end = time.monotonic() + wait_s
        if not self._ours.acquire(timeout=wait_s):
            raise self._held_by(f"another thread of this process ({os.getpid()})", wait_s)
        try:
            with _opened(self._path) as fd:  # closing it releases the lock
                if fd is not None:
                    self._wait(fd, end, wait_s)
                self._hung = False
                yield
        finally:
            self._ours.release()

    def _wait(self, fd: int, end: float, wait_s: float) -> None:
        """Poll for the lock: only a signal, which is the main thread's, could bound a blocking call."""
        pause = _MIN_POLL_S
        while not _try_lock(fd):
            if time.monotonic() > end:
                holder = _holder(fd)
                raise self._held_by(f"process {holder}" if holder else "a process (lsof names it)", wait_s)
            time.sleep(pause)
            pause = min(2 * pause, _MAX_POLL_S)

    def _held_by(self, holder: str, wait_s: float) -> StoreIO:
        self._hung = True
        return StoreIO(
            f"{holder} holds the write lock of {self._of} and did not release it within {wait_s:g} s, so "
            "nothing was changed: it is stopped (kill -CONT resumes it), waits for the disk, or hangs (kill "
            "-KILL ends it, and LMDB undoes its transaction); then try again"
        )


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    """Open the lock file. Yields its descriptor, or None on an error, which LMDB will report better."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        yield None
        return
    try:
        yield fd
    finally:
        os.close(fd)


def _try_lock(fd: int) -> bool:
    """Try to take the lock without waiting. Returns whether it succeeded."""
    try:
        fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _holder(fd: int) -> int:
    """Return the id of the process that holds the lock; 0 if it just ended or is in another container."""
    if not sys.platform.startswith("linux"):
        return 0
    asked = struct.pack(_FLOCK, fcntl.F_WRLCK, os.SEEK_SET, 0, 0, 0)
    kind, _, _, _, pid = struct.unpack(_FLOCK, fcntl.fcntl(fd, fcntl.F_GETLK, asked))
    return 0 if kind == fcntl.F_UNLCK else max(0, int(pid))
