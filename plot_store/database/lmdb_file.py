"""Checks of LMDB's file before LMDB opens it.

LMDB follows page numbers unchecked, so that a damaged file can crash the process, or make it destroy more.
Never call these in a process that has the file open: closing a file drops the locks that LMDB holds on it.
Imports nothing of the package but `lmdb_pages`.
"""

from __future__ import annotations

import contextlib
import os
import struct
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from plot_store.database.lmdb_pages import BadFile, Walk, metas, newest, reaches

TRIES: Final = 100
PAUSE_S: Final = 0.02
HEAD: Final = 1 << 17  # two of the largest pages


def read_settled(path: Path) -> bytes:
    """Read the whole file without a commit in between: an open write transaction then touches only free
    pages.

    Raises BadFile, TimeoutError (a writer never paused).
    """
    with open(path, "rb") as file:
        for _ in range(TRIES):
            before = metas(file.read(HEAD))
            file.seek(0)
            raw = file.read()
            file.seek(0)
            if before == metas(raw) == metas(file.read(HEAD)):
                return raw
            file.seek(0)
            time.sleep(PAUSE_S)
    raise TimeoutError("the file is being written all the time: try again")


def check_length(data: Path) -> None:
    """Raises BadFile for a file that ends before a page in use, or begins with no meta pages.

    LMDB maps the file without looking, and a page beyond its end kills the process. No more than the meta
    pages is read unless the file ends before its last page. Nothing is said of an empty or missing one, which
    LMDB makes anew, nor of one that another process writes all the time, which has opened it. Raises OSError.
    """
    try:
        with open(data, "rb") as file:
            head = file.read(HEAD)
            for _ in range(TRIES):  # until no commit changes the meta pages while they are read
                file.seek(0)
                again = file.read(HEAD)
                if not head or metas(head) == metas(again):
                    break
                head = again
            size = os.fstat(
                file.fileno()
            ).st_size  # after the meta pages: a writer makes the file longer first
    except FileNotFoundError:
        return
    meta = newest(head) if head else None
    if meta is not None and not reaches(meta, size):
        with contextlib.suppress(TimeoutError):
            _walk(read_settled(data))


def check_pages(data: Path, misplaced: Callable[[str], None]) -> None:
    """Raises BadFile for a file with a page that is not what it should be. What LMDB may open is safe to read
    then.

    misplaced: told of what harms no process, a leaf whose keys are not in order. Nothing is said of what the
    records hold, nor of a file that is missing, empty, or written all the time by a process that has opened
    it. Raises OSError.
    """
    with contextlib.suppress(FileNotFoundError, TimeoutError):
        raw = read_settled(data)
        if raw:
            _walk(raw, misplaced)


def _walk(raw: bytes, misplaced: Callable[[str], None] | None = None) -> None:
    """Raises BadFile."""
    try:
        meta = newest(raw)
        if meta is not None:
            for _ in Walk(raw, meta, misplaced).records():
                pass
    except struct.error as error:
        raise BadFile(f"a page is malformed ({error})") from error
