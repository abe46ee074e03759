"""Tells whoever may stop this process whether it holds a lock that other processes wait for.

A server stops the process of a background job (SIGSTOP) while it answers. A process that is stopped inside a
transaction, or with a lock on a file, would hold up all others. So the code that takes such locks runs inside
`with HOLDING`, and the process says so to the one that stops it. In a process that nobody stops this does
nothing.
"""

from __future__ import annotations

import fcntl
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import TracebackType
from typing import Final

from plot_store.ground.files import convert_os_errors


class Holding:
    """Counts the blocks that hold a lock. Thread-safe and re-entrant."""

    def __init__(self) -> None:
        self._tell: Callable[[bool], None] | None = None
        self._count, self._lock = 0, threading.Lock()

    def watch(self, tell: Callable[[bool], None]) -> None:
        """Call `tell(True)` before the first block begins, and `tell(False)` after the last one has ended.

        Call it once, before the process takes a lock.
        """
        self._tell = tell

    def __enter__(self) -> None:
        if self._tell is None:
            return
        with self._lock:
            self._count += 1
            if self._count == 1:
                self._tell(True)

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._tell is None:
            return
        with self._lock:
            self._count -= 1
            if self._count == 0:
                self._tell(False)


HOLDING: Final = Holding()
"""The blocks of this process."""


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of a file for a block, after waiting for other threads and processes.

    The file is created if need be, in a folder that exists. The system frees the lock when the process ends.
    Raises StoreFull, StoreIO.
    """
    with HOLDING:
        with convert_os_errors(f"locking {path}"):
            fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            with convert_os_errors(f"locking {path}"):
                fcntl.flock(fd, fcntl.LOCK_EX)
            yield
        finally:
            os.close(fd)
