"""The state that all `Store`s of one path share in a process: the catalogue, mapped segments and held versions.

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
from plot_store.catalogue.catalogue import Catalogue, Txn
from plot_store.catalogue.probe import has_segments
from plot_store.ground import files, limits
from plot_store.ground.errors import Damaged, Forked, InUse, StoreIO
from plot_store.ground.files import guarded
from plot_store.ground.host import check_host
from plot_store.ground.limits import Limits
from plot_store.ground.nouns import Schema, SegmentInfo
from plot_store.segments.segment import Segment, SegmentCache

CATALOGUE: Final = "catalogue"
SEGMENTS: Final = "segments"
T = TypeVar("T")
_HELD: dict[str, Counter[str]] = {}  # by path: readers outlive the environment that opened them
_HELD_LOCK = threading.RLock()  # re-entrant: a dropped reader lets go from wherever the garbage collector runs


class Environment:
    """LMDB must never be opened twice in a process, so every Store of a path shares one of these."""

    def __init__(self, path: Path, *, create: bool, read_only: bool) -> None:
        self.path = path
        self.read_only = read_only
        self.pid = os.getpid()
        self.users = 0
        self.folder = path / SEGMENTS
        self.limits = Limits()
        self.fork_refused: StoreIO | None = None  # why children forked from here may not open this store
        check_host(path, f"the store at {path}")
        _refuse_bereft(path)
        if create and not read_only:
            with guarded(f"creating the store at {path}"):
                files.make_folder(self.folder)
                creation.make(path / CATALOGUE)
                for folder in (path, path.parent):  # a process that made ours may have been killed before its sync
                    files.sync_folder(folder)
        self.catalogue = Catalogue(path / CATALOGUE, create=False, read_only=read_only)
        if not read_only:
            self.keep_reserve()
        self.segments = SegmentCache(self.folder)
        self._held = _HELD.setdefault(str(path), Counter())

    def keep_reserve(self) -> None:
        """Room for `write_freeing`; without it where the disk is full."""
        reserve.keep(self.path / CATALOGUE)

    def write_freeing(self, body: Callable[[Txn], T]) -> T:
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

    def segment(self, info: SegmentInfo, schema: Schema) -> Segment:
        """A segment that must be there, mapped. Raises Damaged, FormatTooNew, StoreIO."""
        found = self.segments.get(info, schema)
        if found is None:
            raise Damaged(
                f"segment {info.name} is missing: restore it with an import of an export, or build the version again"
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


_OPEN: dict[str, Environment] = {}
_LOCK = threading.Lock()


def acquire(path: Path, *, create: bool, read_only: bool, limits: Limits | None = None) -> Environment:
    """The process's environment of a path; limits, if given, hold for all of it.

    Raises NotFound, InUse, Forked, Damaged, FormatTooNew, StoreFull, StoreIO.
    """
    key = os.path.realpath(path)
    with _LOCK:
        found = _OPEN.get(key)
        if found is not None and found.pid != os.getpid():
            if found.fork_refused is not None:  # not even closed: that would undo the parent's transaction
                raise Forked(str(found.fork_refused))
            _OPEN.pop(key).catalogue.abandon()
            found = None
        if found is not None and found.read_only and not read_only:
            raise InUse(f"{path} is already open read-only in this process: close that store first")
        if found is None:
            found = _OPEN[key] = Environment(Path(key), create=create, read_only=read_only)
        if limits is not None:
            found.limits = limits
        found.users += 1
        return found


def release(environment: Environment) -> None:
    """Give back one use; the last one closes the catalogue. Mapped segments live on with their readers."""
    with _LOCK:
        environment.users -= 1
        if environment.users == 0 and environment.pid == os.getpid():
            _OPEN.pop(str(environment.path), None)
            environment.catalogue.close()


def _refuse_bereft(path: Path) -> None:
    """Raises Damaged for segments without a catalogue: in a new one nothing would name them, and gc would take them.

    The catalogue is looked for again after the segments: a process that makes the store makes it before any of them.
    """
    data = path / CATALOGUE / "data.mdb"
    with guarded(f"looking at {path}"):
        if not data.exists() and has_segments(path) and not data.exists():
            raise Damaged(
                f"{path} has segments but no catalogue: restore {CATALOGUE}/ from a copy of the folder, or import "
                "exports into a store elsewhere"
            )


def _before_fork() -> None:
    """No transaction may run at a fork: the child's copy of one would undo the parent's."""
    _LOCK.acquire()
    for environment in _OPEN.values():
        if environment.pid == os.getpid():
            environment.fork_refused = None
            try:
                environment.catalogue.pause()
            except StoreIO as error:  # raising would not stop the fork: what the child may do is refused instead
                environment.fork_refused = error


def _after_fork_in_parent() -> None:
    for environment in _OPEN.values():
        if environment.pid == os.getpid() and environment.fork_refused is None:
            environment.catalogue.resume()
    _LOCK.release()


def _after_fork_in_child() -> None:
    global _LOCK, _HELD_LOCK
    _LOCK, _HELD_LOCK = threading.Lock(), threading.RLock()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
