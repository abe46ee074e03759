"""The machine's page cache."""

from __future__ import annotations

import os
from pathlib import Path


def drop_cached(path: Path) -> None:
    """Drop a file's pages from the page cache, unless they are mapped. Linux only."""
    file = os.open(path, os.O_RDONLY)
    try:
        os.posix_fadvise(file, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(file)
