"""Checks of LMDB's file before LMDB opens it.

LMDB follows page numbers unchecked. A damaged file can therefore crash the process, or make it destroy more
records. Never call these functions in a process that has the file open: closing the file drops the locks that
LMDB holds on it. This module imports only `lmdb_pages` of the package.
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
    """Read the whole file as of one commit, trying again if a commit comes in between.

    A write transaction that is still open changes only free pages. Raises OSError, BadFile, TimeoutError
    (commits followed each other without a pause).
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
    """Raises BadFile for a file without meta pages, or one that ends before a page in use.

    LMDB maps the file unchecked, and access to a page beyond its end kills the process. Only the meta pages
    are read, unless the file ends before its last page. An empty or missing file passes, since LMDB creates
    it. So does a file that another process keeps writing, since that process has opened it. Raises OSError.
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
            # Measured after the meta pages are read, because a writer extends the file first.
            size = os.fstat(file.fileno()).st_size
    except FileNotFoundError:
        return
    meta = newest(head) if head else None
    if meta is not None and not reaches(meta, size):
        with contextlib.suppress(TimeoutError):
            _walk(read_settled(data))


def check_pages(data: Path, misplaced: Callable[[str], None]) -> None:
    """Raises BadFile for a file with an invalid page. LMDB can safely read a file that passes.

    misplaced: called with a message for each leaf whose keys are out of order, which harms no process. The
    records' content is not checked. A file that is missing, empty, or constantly written by another
    process passes. Raises OSError.
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
