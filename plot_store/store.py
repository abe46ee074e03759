"""The store: refs and versions, and the way to its readers, writers, collector, checks and archives."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from types import TracebackType
from typing import Any

from plot_store import archive, builds, check, gc, names, records, version_tree
from plot_store.catalogue import FORMAT, Txn
from plot_store.environment import Environment, acquire, release
from plot_store.errors import Closed, InUse, Invalid, NotFound
from plot_store.files import tree_bytes
from plot_store.nouns import GcReport, Schema, StoreInfo, VerifyReport, VersionInfo
from plot_store.reader import Reader, open_reader
from plot_store.records import RefRecord
from plot_store.writer import SEGMENT_BYTES, Writer

WEEK = 7 * 86400.0


class Store:
    """A versioned store of n-gram representations in one folder. Thread-safe; several processes may use one folder."""

    def __init__(self, environment: Environment) -> None:
        self._environment: Environment | None = environment

    @classmethod
    def open(cls, path: str | Path, *, create: bool = False, read_only: bool = False) -> Store:
        """Open a store. Stores of one path in one process share an environment.

        Raises NotFound, InUse (open read-only here), FormatTooNew, Damaged, StoreIO.
        """
        return cls(acquire(Path(path), create=create, read_only=read_only))

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._env().path

    def refs(self) -> dict[str, VersionInfo]:
        """Every ref's current version."""

        def body(txn: Txn) -> dict[str, VersionInfo]:
            return {ref: version_tree.resolve(txn, ref) for ref in txn.keys(version_tree.REF)}

        return self._env().catalogue.read(body)

    def version(self, ref_or_id: str) -> VersionInfo:
        """A ref's current version, or the version of an id. Raises NotFound, Collected."""
        return self._env().catalogue.read(lambda txn: version_tree.resolve(txn, ref_or_id))

    def history(self, ref: str) -> list[VersionInfo]:
        """The retained versions of a ref, the newest publication first (a rollback moves only the current one)."""

        def body(txn: Txn) -> list[VersionInfo]:
            return [version_tree.get_version(txn, v) for v in _ref(txn, ref).versions]

        return self._env().catalogue.read(body)

    def chain(self, ref_or_id: str) -> list[VersionInfo]:
        """A version and what it falls back on: nearest first, the root last."""
        return self._env().catalogue.read(lambda txn: version_tree.chain(txn, version_tree.resolve(txn, ref_or_id)))

    def children(self, ref: str) -> list[str]:
        """Refs whose current version descends, at any distance, from a version of this ref."""

        def body(txn: Txn) -> list[str]:
            _ref(txn, ref)
            return version_tree.descendants(txn, ref)

        return self._env().catalogue.read(body)

    def writer(
        self,
        ref: str,
        *,
        schema: Schema,
        build: str,
        parent: str | None = None,
        meta: dict[str, Any] | None = None,
        extend: bool = False,
        segment_bytes: int = SEGMENT_BYTES,
    ) -> Writer:
        """Begin a build, or resume the one of this id (it keeps the parent version it began with).

        parent: ref or version id. None keeps the current version's; for a new ref "a/b" it is ref "a", for a new ref
        without "/" it makes a root. extend adds to the current version's segments. Raises Invalid, NotFound,
        Collected, Conflict, StoreFull, StoreIO.
        """
        if segment_bytes < 1 << 14:
            raise Invalid(f"segment_bytes = {segment_bytes} is too small: use 16 KiB or more (64 MiB is the default)")
        checked = records.check_meta(meta or {})
        opened = builds.open_build(self._env(), ref, build, schema, parent, extend)
        return Writer(self._env(), opened, checked, segment_bytes)

    def abandon(self, build: str) -> bool:
        """End a build that no writer will resume, and remove its segments. Whether there was one."""
        return builds.abandon(self._env(), build)

    def reader(self, ref_or_id: str) -> Reader:
        """A reader pinned to one version. Raises NotFound, Collected, Damaged, FormatTooNew, StoreIO."""
        return open_reader(self._env(), ref_or_id)

    def rollback(self, ref: str, version_id: str) -> VersionInfo:
        """Point a ref at one of its own versions, older or newer. Raises Invalid for another ref's version."""

        def body(txn: Txn) -> VersionInfo:
            record = _ref(txn, ref)
            if not names.is_id(version_id):
                raise Invalid(f"{version_id!r} is not a version id: take one from history({ref!r})")
            version = version_tree.get_version(txn, version_id)
            if version.ref != ref:
                raise Invalid(f"version {version_id} is of {version.ref}, not of {ref}: take one from history({ref!r})")
            known = record.versions if version_id in record.versions else (*record.versions, version_id)
            version_tree.put_ref(txn, ref, RefRecord(version_id, known))
            return version

        return self._env().catalogue.write(body)

    def delete(self, ref: str) -> None:
        """Remove a ref; `gc` frees its bytes. Raises InUse, naming them, while other refs descend from it."""

        def body(txn: Txn) -> None:
            _ref(txn, ref)
            dependants = version_tree.descendants(txn, ref)
            if dependants:
                raise InUse(f"{ref} is the ground of {', '.join(dependants)}: delete those first")
            txn.delete(version_tree.REF + ref)

        self._env().catalogue.write(body)

    def gc(
        self,
        *,
        dry_run: bool = False,
        orphan_age_s: float = 3600,
        build_age_s: float = WEEK,
        keep_versions: int = 8,
        keep: Iterable[str] = (),
    ) -> GcReport:
        """Remove what no ref (its newest keep_versions), reader of this process, recent build or version of keep needs.

        Orphans are files that no record names; only those older than orphan_age_s go, since a running build may be
        writing them. A build untouched for build_age_s counts as abandoned. Raises Invalid, StoreIO, Damaged.
        """
        if keep_versions < 1:
            raise Invalid(f"keep_versions = {keep_versions}: keep at least 1, or delete the ref")
        environment = self._env()
        if not dry_run:
            environment.catalogue.forget_dead_readers()
        return gc.collect(
            environment,
            dry_run=dry_run,
            orphan_age_s=orphan_age_s,
            build_age_s=build_age_s,
            keep_versions=keep_versions,
            keep=frozenset(keep),
        )

    def verify(self, ref: str | None = None) -> VerifyReport:
        """Read every byte of every version (of a ref's retained versions and their ancestors); list every damage."""
        return check.verify(self._env(), ref)

    def export(self, ref_or_id: str, path: str | Path) -> None:
        """Write a version and all its ancestors to one compressed, checksummed file, replacing it at once."""
        archive.export(self._env(), ref_or_id, Path(path))

    def import_archive(self, path: str | Path, *, ref: str | None = None) -> VersionInfo:
        """Take over an exported version and its ancestors; nothing changes if they are there already.

        ref: another name for the version. Raises Damaged (nothing is left then), FormatTooNew, Conflict, StoreFull.
        """
        return archive.import_archive(self._env(), Path(path), ref)

    @staticmethod
    def archived(path: str | Path) -> list[VersionInfo]:
        """The versions of an export, the exported one first, from its head alone. Raises NotFound, Damaged, StoreIO."""
        return archive.versions_of(Path(path))

    def info(self) -> StoreInfo:
        """Totals, counted now."""
        environment = self._env()
        refs = self.refs()
        versions = environment.catalogue.read(lambda txn: len(txn.keys(version_tree.VERSION)))
        current = {version.id: version for version in refs.values()}
        entries = {order: sum(version.entries[order] for version in current.values()) for order in (3, 2, 1)}
        segments = sum(names.is_segment(file.name) for file in environment.folder.iterdir())
        size = tree_bytes(environment.path)
        return StoreInfo(str(environment.path), FORMAT, size, segments, len(refs), versions, entries)

    def close(self) -> None:
        """Give the environment back; open readers go on working. Again: nothing."""
        environment, self._environment = self._environment, None
        if environment is not None:
            release(environment)

    def _env(self) -> Environment:
        if self._environment is None:
            raise Closed("the store has been closed: open it again")
        return self._environment

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def _ref(txn: Txn, ref: str) -> RefRecord:
    record = version_tree.get_ref(txn, names.check_ref(ref))
    if record is None:
        raise NotFound(f"there is no ref {ref!r}: list them with refs(), or publish one")
    return record
