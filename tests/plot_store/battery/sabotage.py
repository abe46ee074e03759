"""Bugs to plant, which the battery must find. Each omits a step or reverses two."""

from __future__ import annotations

import dataclasses
import os
import stat
from collections.abc import Callable
from typing import Any, Final

import lmdb

from plot_store.care import gc
from plot_store.catalogue import changes, places, version_tree
from plot_store.catalogue.catalogue import Catalogue, CatalogueTxn
from plot_store.database import database
from plot_store.ground import files
from plot_store.writing import builds, promote, publication


def _without_sync(of_folders: bool) -> None:
    for name in ("fsync", "fdatasync"):
        setattr(os, name, _skipping(getattr(os, name), of_folders))


def _skipping(real: Callable[[int], None], of_folders: bool) -> Callable[[int], None]:
    def call(fd: int) -> None:
        if stat.S_ISDIR(os.fstat(fd).st_mode) != of_folders:
            real(fd)

    return call


def no_segment_sync() -> None:
    """Segments are named before their bytes are durable."""
    _without_sync(of_folders=False)


def no_folder_sync() -> None:
    """A version names segments whose names are not durable."""
    _without_sync(of_folders=True)


def sync_off() -> None:
    """LMDB commits without an fsync."""
    real = lmdb.open

    def call(*arguments: Any, **options: Any) -> Any:
        return real(*arguments, **{**options, "sync": False, "metasync": False})

    lmdb.open = call


def collection_reversed() -> None:
    """The collector unlinks files before the records that name them are gone."""
    real = gc.collect

    def call(environment: Any, *arguments: Any, **options: Any) -> Any:
        dead = set(real(environment, *arguments, **{**options, "dry_run": True}).segments)

        def doomed(txn: CatalogueTxn) -> set[str]:
            live = version_tree.named_segments(txn) - dead
            return {places.find(txn, s).file for s in dead} - {places.find(txn, s).file for s in live}

        for name in environment.catalogue.read(doomed):
            os.unlink(environment.folder / name)
        return real(environment, *arguments, **options)

    gc.collect = call


class _Later(CatalogueTxn):
    """A transaction that writes only refs and keeps the other changes back."""

    def __init__(self, raw: Any) -> None:
        super().__init__(raw, writes=True)
        self.kept: dict[str, Any] = {}

    def get(self, key: str) -> Any:
        return self.kept[key] if key in self.kept else super().get(key)

    def put(self, key: str, value: Any) -> None:
        if key.startswith(version_tree.REF):
            super().put(key, value)
        else:
            self.kept[key] = value

    def delete(self, key: str) -> bool:
        known = self.get(key) is not None
        self.kept[key] = None
        return known


def ref_before_manifest() -> None:
    """A publication commits the ref first, and everything else in a second transaction."""
    real = Catalogue.write

    def write(self: Catalogue, body: Callable[[CatalogueTxn], Any]) -> Any:
        held: list[_Later] = []

        def first(txn: CatalogueTxn) -> Any:
            held[:] = [_Later(txn._raw)]
            return body(held[0])

        def second(txn: CatalogueTxn) -> None:
            for key, value in held[0].kept.items():
                if value is None:
                    txn.delete(key)
                else:
                    txn.put(key, value)

        done = real(self, first)
        real(self, second)
        return done

    Catalogue.write = write  # type: ignore[method-assign]


def name_before_sync() -> None:
    """Segments are renamed before their bytes are durable, though still before any record names them."""
    files.sync_file = lambda fd: None
    real = promote.promote

    def call(environment: Any, txn: Any, drafts: Any) -> None:
        real(environment, txn, drafts)
        for draft in drafts:
            fd = os.open(environment.folder / draft.file, os.O_RDONLY)
            os.fsync(fd)
            os.close(fd)

    for module in (promote, publication):
        module.promote = call  # type: ignore[attr-defined]


def after_a_lost_one() -> None:
    """A resumed build keeps segments that follow a lost one."""
    builds._present = lambda environment, txn, segments: tuple(
        s for s in segments if environment.holds(txn, s)
    )


def resize_at_once() -> None:
    """The map changes its size under running transactions."""

    def resize(self: database.Database, size: int) -> None:
        self._env.set_mapsize(size)

    database.Database._resize = resize  # type: ignore[method-assign]


def base_unheld() -> None:
    """The collector keeps the parent of a build, but not what an extending one adds to."""
    real = gc._builds

    def call(txn: CatalogueTxn, reasons: Any, policy: Any, now: float) -> Any:
        before = {version_id: list(why) for version_id, why in reasons.items()}
        found = real(txn, reasons, policy, now)
        for build in txn.keys(version_tree.BUILD):
            record = version_tree.get_build(txn, build)
            if record is not None and record.base is not None and record.base not in before:
                del reasons[record.base]
        return found

    gc._builds = call


def roots_unseen() -> None:
    """The collector does not look at what was pinned, published or begun since its snapshot."""
    gc._revived = lambda *_: frozenset()


def pins_unseen() -> None:
    """The same, but for pins, leases and tags only."""
    real = changes.since

    def call(txn: CatalogueTxn, seen: Any) -> Any:
        found = real(txn, seen)
        keys = tuple(key for key in found.keys if not key.startswith(("pin/", "lease/", "tag/")))
        return dataclasses.replace(found, keys=keys)

    changes.since = call


def files_unseen() -> None:
    """Files are unlinked though a version recorded since the snapshot names them."""
    changes.named_since = lambda *_: set()


def ancestors_first() -> None:
    """The collector removes a version before the versions that fall back on it."""
    real = gc._in_order
    gc._in_order = lambda *given: real(*given)[::-1]


def lists_unchanged() -> None:
    """Versions go, and stay in the lists of their refs."""
    gc._shorten = lambda *_: []


BUGS: Final = {
    "no segment fsync": no_segment_sync,
    "no folder fsync": no_folder_sync,
    "sync off": sync_off,
    "collection reversed": collection_reversed,
    "ref before manifest": ref_before_manifest,
    "named before its fsync": name_before_sync,
}
EDGES: Final = {  # with the job that finds each
    "segments after a lost one": (after_a_lost_one, "lost"),
    "resize at once": (resize_at_once, "growing"),
    "base unheld": (base_unheld, "ground"),
    "new roots unseen": (roots_unseen, "raced"),
    "new pins unseen": (pins_unseen, "raced"),
    "revived files unseen": (files_unseen, "raced"),
    "ancestors first": (ancestors_first, "raced"),
    "lists unchanged": (lists_unchanged, "raced"),
}
assert database.lmdb is lmdb  # otherwise `sync_off` would change another module's


def plant(name: str) -> None:
    """Plant a bug in this process, for good; "" plants none."""
    if name in EDGES:
        EDGES[name][0]()
    elif name:
        BUGS[name]()
