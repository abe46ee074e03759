"""The reserve: a file that is deleted when the catalogue has no room for its own pages, so that `gc` works on
a full disk.

`gc` deletes records before files, and LMDB writes each changed page anew, which takes at most the size of its
file.
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

LEAST: Final = 1 << 18
MOST: Final = 1 << 26
T = TypeVar("T")


def keep(folder: Path) -> None:
    """Let a catalogue's folder have its reserve, as large as is needed by now. Where the disk has no room:
    nothing."""
    path = folder / "reserve"
    with contextlib.suppress(OSError):
        wanted = min(MOST, max(LEAST, (folder / "data.mdb").stat().st_size))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(fd).st_size < wanted:
                os.posix_fallocate(fd, 0, wanted)
        finally:
            os.close(fd)


def write_freeing(catalogue: Catalogue, folder: Path, body: Callable[[CatalogueTxn], T]) -> T:
    """`Catalogue.write` for what frees space: on a full disk the reserve goes. Raises as that does."""
    try:
        return catalogue.write(body)
    except StoreFull:
        if not remove(folder / "reserve"):
            raise
    return catalogue.write(body)
