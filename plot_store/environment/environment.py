"""The state that all `Store`s of one path share in a process, reference-counted.

It consists of the catalogue, the mapped segments, and the versions that open readers hold.
"""

from __future__ import annotations

import contextlib
import os
import threading
from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from plot_store.catalogue import creation, places
from plot_store.catalogue.catalogue import Catalogue, CatalogueTxn
from plot_store.catalogue.probe import has_segments
from plot_store.database.shared import Shared
from plot_store.ground import files, limits
from plot_store.ground.errors import Damaged, InUse, StoreFull
from plot_store.ground.files import convert_os_errors, remove
from plot_store.ground.host import check_host
from plot_store.ground.limits import Limits
from plot_store.ground.nouns import Place, Schema, SegmentInfo
from plot_store.segments.segment import MappedSegment, SegmentCache, check_size

_MIN_BYTES: Final = 1 << 18
_MAX_BYTES: Final = 1 << 26


def _allocate(folder: Path) -> None:
    """Create or enlarge the reserve of a catalogue's folder. Does nothing if the disk has no room."""
    path = folder / "reserve"
    with contextlib.suppress(OSError):
        wanted = min(_MAX_BYTES, max(_MIN_BYTES, (folder / "data.mdb").stat().st_size))
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(fd).st_size < wanted:
                os.posix_fallocate(fd, 0, wanted)
        finally:
            os.close(fd)


def write_freeing(catalogue: Catalogue, folder: Path, body: Callable[[CatalogueTxn], T]) -> T:
    """Run `Catalogue.write` for a change that frees space; on a full disk, delete the reserve and retry.

    The reserve is a file that makes room for the catalogue, so that `gc` works on a full disk: it deletes
    records before files. LMDB writes a new copy of each changed page, so this takes at most the size of its
    file. Raises as `Catalogue.write`.
    """
    try:
        return catalogue.write(body)
    except StoreFull:
        if not remove(folder / "reserve"):
            raise
    return catalogue.write(body)


CATALOGUE: Final = "catalogue"
SEGMENTS: Final = "segments"
T = TypeVar("T")
# Path -> version id -> number of holders. Global, because readers outlive the environment that opened them.
_HELD: dict[str, Counter[str]] = {}
# Re-entrant, because Python's garbage collector may run a reader's finalizer while the lock is held.
_HELD_LOCK = threading.RLock()


class Environment:
    """The open catalogue, segments and limits of one store in this process.

    LMDB must never be opened twice in a process, so all `Store`s of a path share one environment.
    """

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.pid = os.getpid()
        self.folder = path / SEGMENTS
        self.limits = Limits()
        _refuse_lost_catalogue(path)
        if create and not read_only:
            check_host(path, f"the store at {path}")  # before anything is created there
            with convert_os_errors(f"creating the store at {path}"):
                files.make_folder(self.folder)
                creation.make(path / CATALOGUE)
                # Another process may have created the store and been killed before its sync.
                files.sync_folder(path)
                files.sync_folder(path.parent)
        self.catalogue = Catalogue(path / CATALOGUE, create=False, read_only=read_only)
        if not read_only:
            self.keep_reserve()
        self.segments = SegmentCache(self.folder)
        self._held = _HELD.setdefault(str(path), Counter())

    def abandon(self) -> None:
        """In a forked child, drop what the parent opened. Raises Forked; see `Database.abandon`."""
        self.catalogue.abandon()

    def close(self) -> None:
        """Close the catalogue."""
        self.catalogue.close()

    def keep_reserve(self) -> None:
        """Allocate the reserve for `write_freeing`, unless the disk is full."""
        _allocate(self.path / CATALOGUE)

    def write_freeing(self, body: Callable[[CatalogueTxn], T]) -> T:
        """Run `Catalogue.write` for a change that frees space. It works on a full disk."""
        return write_freeing(self.catalogue, self.path / CATALOGUE, body)

    def check_room(self, need: int, doing: str) -> None:
        """Raises StoreFull if `need` further bytes exceed a limit or the disk. Also raises StoreIO."""
        limits.check_room(self.path, self.limits, need, doing)

    def holds(self, txn: CatalogueTxn, info: SegmentInfo) -> bool:
        """Return whether the segment's file exists and is long enough. Raises StoreIO, Damaged."""
        place = places.find(txn, info.name)
        path = self.folder / place.file
        with (
            convert_os_errors(f"looking for segment {info.name}"),
            contextlib.suppress(FileNotFoundError, Damaged),
        ):
            check_size(path, path.stat().st_size, info, place.at)
            return True
        return False

    def places(self, segments: Iterable[SegmentInfo]) -> dict[str, Place]:
        """Return where segments lie, by name. Raises Damaged."""
        names = [info.name for info in segments]
        return self.catalogue.read(lambda txn: {name: places.find(txn, name) for name in names})

    def at_place(self, info: SegmentInfo, look: Callable[[Place], T | None]) -> T | None:
        """Return what `look` finds where a segment lies; it returns None if there is no file. Raises Damaged.

        A publication of the same content may move the segment, and gc then removes the old file. So it looks
        again if the segment lies elsewhere meanwhile.
        """
        before, found = None, None
        while found is None and (place := self.places([info])[info.name]) != before:
            found, before = look(place), place
        return found

    def segment(self, info: SegmentInfo, schema: Schema, whole: bool = True) -> MappedSegment:
        """Return the mapped segment. Raises Damaged (also if its file is missing), FormatTooNew, StoreIO.

        whole: False reads of an index only which segments it covers, and only that may be used.
        """
        found = self.at_place(info, lambda place: self.segments.get(info, schema, place, whole))
        # Another process may have collected it, with the record of its place, while a reader here maps it.
        found = found or self.segments.mapped(info, schema)
        if found is None:
            raise Damaged(
                f"segment {info.name} is missing: restore it with an import of an export, or build the "
                "version again"
            )
        return found

    def hold(self, version_id: str) -> None:
        """Keep a version from gc in this process. Each call needs one `let_go`."""
        with _HELD_LOCK:
            self._held[version_id] += 1

    def let_go(self, version_id: str) -> None:
        """Undo one `hold`."""
        with _HELD_LOCK:
            self._held[version_id] -= 1
            if self._held[version_id] <= 0:
                del self._held[version_id]

    def held(self) -> set[str]:
        """Return the ids of the versions that this process holds."""
        with _HELD_LOCK:
            return set(self._held)


_SHARED: Final[Shared[Environment]] = Shared()


def acquire(path: Path, *, create: bool, read_only: bool, limits: Limits | None = None) -> Environment:
    """Return the process's environment of a path, opening it if need be, and add a use.

    limits: if given, they replace those of every `Store` of the path. Raises NotFound, InUse, Forked,
    Damaged, FormatTooNew, StoreFull, StoreIO.
    """

    def accept(found: Environment) -> None:
        if found.read_only and not read_only:
            raise InUse(f"{path} is already open read-only in this process: close that store first")
        if limits is not None:
            found.limits = limits

    return _SHARED.acquire(path, lambda real: Environment(real, create=create, read_only=read_only), accept)


def release(environment: Environment) -> None:
    """Drop one use; the last closes the catalogue. Segments stay mapped while readers hold them."""
    _SHARED.release(environment)


def _refuse_lost_catalogue(path: Path) -> None:
    """Raises Damaged if there are segments but no catalogue. With a new catalogue, gc would remove them all.

    The catalogue is checked again after the segments: another process may just have created the store, and it
    creates the catalogue first.
    """
    data = path / CATALOGUE / "data.mdb"
    with convert_os_errors(f"looking at {path}"):
        if not data.exists() and has_segments(path) and not data.exists():
            raise Damaged(
                f"{path} has segments but no catalogue: restore {CATALOGUE}/ from a copy of the folder, or "
                "import exports into a store elsewhere"
            )


def _after_fork_in_child() -> None:
    global _HELD_LOCK
    _HELD_LOCK = threading.RLock()


os.register_at_fork(after_in_child=_after_fork_in_child)
