"""LMDB's errors as the store's, in messages that name the database."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from plot_store.database.lmdb_pages import BadFile
from plot_store.ground import files
from plot_store.ground.errors import Damaged, PlotStoreError, StoreFull, StoreIO

_NO_ROOM: Final = 1 << 20  # with less free than this, LMDB's "I/O error" or "corrupted" means a full disk
_DAMAGE: Final = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)


@dataclass(frozen=True)
class Label:
    """How messages name a database."""

    name: str  # "the catalogue"
    owner: str  # what it belongs to: "the store at …"
    cure: str  # for damage: "restore … from a backup"


class TableFull(Exception):
    """LMDB's table of readers has no free slot; perhaps only because processes died in a read transaction."""


class Grow(Exception):
    """The map must change size; ours = it is full, else another process has grown it."""

    def __init__(self, ours: bool) -> None:
        super().__init__()
        self.ours = ours


@contextlib.contextmanager
def translated(doing: str, folder: Path, label: Label) -> Iterator[None]:
    """LMDB's errors as the store's; `doing`: "using" or "opening"."""
    try:
        yield
    except lmdb.MapFullError as error:
        raise Grow(True) from error
    except lmdb.MapResizedError as error:
        raise Grow(False) from error
    except lmdb.ReadersFullError as error:
        raise TableFull from error
    except BadFile as error:
        raise Damaged(f"{label.name} is damaged ({error}): {label.cure}") from error
    except lmdb.Error as error:
        raise _as_ours(error, f"{doing} {label.name}", folder, label) from error


def _as_ours(error: lmdb.Error, doing: str, folder: Path, label: Label) -> PlotStoreError:
    """On a full disk LMDB reports short writes as I/O errors and may then not trust its own pages, so the free room is
    looked at first."""
    text = str(error)
    if "No space left" in text or "quota" in text.lower() or _is_full(folder):
        return StoreFull(f"no space left while {doing} ({text}): free disk space, then run it again")
    if isinstance(error, _DAMAGE):
        return Damaged(f"{label.name} is damaged ({text}): {label.cure}")
    if "Permission denied" in text:
        return StoreIO(
            f"this user may not open {label.name} in {folder} ({text}): whoever opens it, also to read, enters itself "
            "in lock.mdb there, so let the user's group read and write that file (chmod g+rw) and read the others, or "
            "hand over an export"
        )
    if isinstance(error, lmdb.PanicError):
        return StoreIO(
            f"LMDB gave up while {doing} ({text}): check the disk, then close {label.owner} and open it again"
        )
    return StoreIO(f"LMDB says {text!r} while {doing}: check the disk, its permissions and limits, then try again")


def _is_full(folder: Path) -> bool:
    try:
        return files.free_bytes(folder) < _NO_ROOM
    except OSError:
        return False
