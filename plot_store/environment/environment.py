"""The state that all `Store`s of one path share in a process: the catalogue, mapped segments and held
versions.

It is reference-counted.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from plot_store.catalogue import creation, reserve
from plot_store.catalogue.catalogue import Catalogue, CatalogueTxn
from plot_store.catalogue.probe import has_segments
from plot_store.database.shared import Shared
from plot_store.ground import files, limits
from plot_store.ground.errors import Damaged, InUse
from plot_store.ground.files import guarded
from plot_store.ground.host import check_host
from plot_store.ground.limits import Limits
from plot_store.ground.nouns import Schema, SegmentInfo
from plot_store.segments.segment import MappedSegment, SegmentCache

CATALOGUE: Final = "catalogue"
SEGMENTS: Final = "segments"
T = TypeVar("T")
_HELD: dict[str, Counter[str]] = {}  # by path: readers outlive the environment that opened them
# Re-entrant: a dropped reader lets go from wherever the garbage collector runs.
_HELD_LOCK = threading.RLock()


class Environment:
    """LMDB must never be opened twice in a process, so every Store of a path shares one of these."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.pid = os.getpid()
        self.folder = path / SEGMENTS
        self.limits = Limits()
        _refuse_bereft(path)
        if create and not read_only:
            check_host(path, f"the store at {path}")  # before anything is made there
            with guarded(f"creating the store at {path}"):
                files.make_folder(self.folder)
                creation.make(path / CATALOGUE)
                for folder in (
                    path,
                    path.parent,
                ):  # a process that made ours may have been killed before its sync
                    files.sync_folder(folder)
        self.catalogue = Catalogue(path / CATALOGUE, create=False, read_only=read_only)
        if not read_only:
            self.keep_reserve()
        self.segments = SegmentCache(self.folder)
        self._held = _HELD.setdefault(str(path), Counter())

    def abandon(self) -> None:
        """In a child process: drop what the parent opened. Raises Forked where that may not be."""
        self.catalogue.abandon()

    def close(self) -> None:
        """Close the catalogue."""
        self.catalogue.close()

    def keep_reserve(self) -> None:
        """Room for `write_freeing`; without it where the disk is full."""
        reserve.keep(self.path / CATALOGUE)

    def write_freeing(self, body: Callable[[CatalogueTxn], T]) -> T:
        """`Catalogue.write` for what makes room: it works on a full disk."""
        return reserve.write_freeing(self.catalogue, self.path / CATALOGUE, body)

    def check_room(self, need: int, doing: str) -> None:
        """StoreFull when `need` further bytes would pass a limit or do not fit. Raises StoreIO too."""
        limits.check_room(self.path, self.limits, need, doing)

    def holds(self, info: SegmentInfo) -> bool:
        """Whether a file of this name and size is there. Raises StoreIO."""
        with guarded(f"looking for segment {info.name}"):
            try:
                return (self.folder / info.name).stat().st_size == info.bytes
            except FileNotFoundError:
                return False

    def segment(self, info: SegmentInfo, schema: Schema) -> MappedSegment:
        """A segment that must be there, mapped. Raises Damaged, FormatTooNew, StoreIO."""
        found = self.segments.get(info, schema)
        if found is None:
            raise Damaged(
                f"segment {info.name} is missing: restore it with an import of an export, or build the "
                "version again"
            )
        return found

    def hold(self, version_id: str) -> None:
        """Keep gc in this process away from a version; counted."""
        with _HELD_LOCK:
            self._held[version_id] += 1

    def let_go(self, version_id: str) -> None:
        with _HELD_LOCK:
            self._held[version_id] -= 1
            if self._held[version_id] <= 0:
                del self._held[version_id]

    def held(self) -> set[str]:
        """The versions that readers of this process hold."""
        with _HELD_LOCK:
            return set(self._held)


_SHARED: Final[Shared[Environment]] = Shared()


def acquire(path: Path, *, create: bool, read_only: bool, limits: Limits | None = None) -> Environment:
    """The process's environment of a path; limits, if given, hold for all of it.

    Raises NotFound, InUse, Forked, Damaged, FormatTooNew, StoreFull, StoreIO.
    """

    def accept(found: Environment) -> None:
        if found.read_only and not read_only:
            raise InUse(f"{path} is already open read-only in this process: close that store first")
        if limits is not None:
            found.limits = limits

    return _SHARED.acquire(path, lambda real: Environment(real, create=create, read_only=read_only), accept)


def release(environment: Environment) -> None:
    """Give back one use; the last one closes the catalogue. Mapped segments live on with their readers."""
    _SHARED.release(environment)


def _refuse_bereft(path: Path) -> None:
    """Raises Damaged for segments without a catalogue: in a new one nothing would name them, and gc would
    take them.

    The catalogue is looked for again after the segments: a process that makes the store makes it before any
    of them.
    """
    data = path / CATALOGUE / "data.mdb"
    with guarded(f"looking at {path}"):
        if not data.exists() and has_segments(path) and not data.exists():
            raise Damaged(
                f"{path} has segments but no catalogue: restore {CATALOGUE}/ from a copy of the "
                "folder, or import "
                "exports into a store elsewhere"
            )


def _after_fork_in_child() -> None:
    global _HELD_LOCK
    _HELD_LOCK = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
