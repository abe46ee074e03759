"""The reserve: a file that is deleted to make room for the catalogue, so that `gc` works on a full disk.

`gc` deletes records before files. LMDB writes a new copy of each changed page, so this takes at most the
size of its file.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from plot_store.catalogue.catalogue import Catalogue, CatalogueTxn
from plot_store.ground.errors import StoreFull
from plot_store.ground.files import remove

MIN_BYTES: Final = 1 << 18
MAX_BYTES: Final = 1 << 26
T = TypeVar("T")


def allocate(folder: Path) -> None:
    """Create or enlarge the reserve of a catalogue's folder. Does nothing if the disk has no room."""
    path = folder / "reserve"
    with contextlib.suppress(OSError):
        wanted = min(MAX_BYTES, max(MIN_BYTES, (folder / "data.mdb").stat().st_size))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(fd).st_size < wanted:
                os.posix_fallocate(fd, 0, wanted)
        finally:
            os.close(fd)


def write_freeing(catalogue: Catalogue, folder: Path, body: Callable[[CatalogueTxn], T]) -> T:
    """Run `Catalogue.write` for a change that frees space; on a full disk, delete the reserve and retry.

    Raises as `Catalogue.write`.
    """
    try:
        return catalogue.write(body)
    except StoreFull:
        if not remove(folder / "reserve"):
            raise
    return catalogue.write(body)
