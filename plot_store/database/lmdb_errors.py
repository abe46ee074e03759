"""The mapping from LMDB's errors to the store's, with messages that name the database."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Final

import lmdb

from plot_store.database.lmdb_pages import BadFile
from plot_store.ground import files
from plot_store.ground.errors import Damaged, PlotStoreError, StoreFull, StoreIO

_FULL_BELOW: Final = 1 << 20  # with fewer free bytes, LMDB's "I/O error" or "corrupted" means a full disk
_DAMAGE: Final = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)


@dataclass(frozen=True)
class DatabaseLabel:
    """The words by which error messages name a database."""

    name: str  # "the catalogue"
    owner: str  # what the database belongs to: "the store at …"
    cure: str  # what to do about damage: "restore … from a backup"


def damaged(error: BadFile, label: DatabaseLabel) -> Damaged:
    """Return the store's error for a file that failed a check."""
    return Damaged(f"{label.name} is damaged ({error}): {label.cure}")


def too_many(label: DatabaseLabel) -> StoreIO:
    """Return the store's error for a full table of reader slots."""
    return StoreIO(
        f"all reader slots of {label.owner} are taken: run fewer processes at once; if processes were "
        "killed, the next change by a process that has it open frees their slots"
    )


def as_ours(error: lmdb.Error, doing: str, folder: Path, label: DatabaseLabel) -> PlotStoreError:
    """Convert an LMDB error. doing: "using" or "opening".

    On a full disk LMDB reports short writes as I/O errors, and may then report its own pages as corrupted. So
    the free space is checked first.
    """
    text, doing = str(error), f"{doing} {label.name}"
    if "No space left" in text or "quota" in text.lower() or _is_full(folder):
        return StoreFull(f"no space left while {doing} ({text}): free disk space, then run it again")
    if isinstance(error, _DAMAGE):
        return Damaged(f"{label.name} is damaged ({text}): {label.cure}")
    if "Permission denied" in text:
        return StoreIO(
            f"this user may not open {label.name} in {folder} ({text}): every process that opens it, even to "
            "read, writes to lock.mdb there, so let the user's group read and write that file (chmod g+rw) "
            "and read the others, or pass on an export instead"
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
        return files.free_bytes(folder) < _FULL_BELOW
    except OSError:
        return False
