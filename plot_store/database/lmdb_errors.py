"""LMDB's errors as the store's, in messages that name the database."""

from __future__ import annotations

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


def damaged(error: BadFile, label: Label) -> Damaged:
    """The store's error for a file that a check refuses."""
    return Damaged(f"{label.name} is damaged ({error}): {label.cure}")


def too_many(label: Label) -> StoreIO:
    """The store's error for LMDB's table of readers without a free slot."""
    return StoreIO(
        f"all places for transactions of {label.owner} are taken: run fewer processes at once; where many "
        "were killed, "
        "any change by one that has it open frees their places"
    )


def as_ours(error: lmdb.Error, doing: str, folder: Path, label: Label) -> PlotStoreError:
    """The store's error for LMDB's; `doing`: "using" or "opening".

    On a full disk LMDB reports short writes as I/O errors and may then not trust its own pages, so the free
    room is looked at first.
    """
    text, doing = str(error), f"{doing} {label.name}"
    if "No space left" in text or "quota" in text.lower() or _is_full(folder):
        return StoreFull(f"no space left while {doing} ({text}): free disk space, then run it again")
    if isinstance(error, _DAMAGE):
        return Damaged(f"{label.name} is damaged ({text}): {label.cure}")
    if "Permission denied" in text:
        return StoreIO(
            f"this user may not open {label.name} in {folder} ({text}): whoever opens it, also to read, "
            "enters itself "
            "in lock.mdb there, so let the user's group read and write that file (chmod g+rw) and read "
            "the others, or "
            "hand over an export"
        )
    if isinstance(error, lmdb.PanicError):
        return StoreIO(
            f"LMDB gave up while {doing} ({text}): check the disk, then close {label.owner} and open it again"
        )
    return StoreIO(
        f"LMDB says {text!r} while {doing}: check the disk, its permissions and limits, then try again"
    )


def _is_full(folder: Path) -> bool:
    try:
        return files.free_bytes(folder) < _NO_ROOM
    except OSError:
        return False
