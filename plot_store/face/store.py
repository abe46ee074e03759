"""The store: refs and versions; it makes readers and writers and runs collection, checks and archives."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import Any

from plot_store.care import archive, attachments, check, gc
from plot_store.care.compact import MAX_SEGMENTS, compact
from plot_store.care.scrub import ScrubProgress, scrub
from plot_store.catalogue import records, version_tree
from plot_store.catalogue.catalogue import FORMAT
from plot_store.environment.environment import Environment, acquire, release
from plot_store.face.branches import Branches
from plot_store.ground import names
from plot_store.ground.arguments import check_number, check_path
from plot_store.ground.errors import Closed, Invalid
from plot_store.ground.files import folder_bytes
from plot_store.ground.limits import Limits
from plot_store.ground.nouns import GcReport, Progress, Schema, StoreInfo, VerifyReport, VersionInfo
from plot_store.reading.backoff import Backoff
from plot_store.reading.diff import DiffReport, diff
from plot_store.reading.reader import Reader, open_reader
from plot_store.writing import builds
from plot_store.writing.append import Entries, append
from plot_store.writing.writer import SEGMENT_BYTES, Writer

WEEK = 7 * 86400.0


class Store(Branches):
    """A versioned store of n-gram representations in one folder. Thread-safe; several processes may use one
    folder."""

    def __init__(self, environment: Environment) -> None:
        self._environment: Environment | None = environment

    @classmethod
    def open(
        cls, path: str | Path, *, create: bool = False, read_only: bool = False, limits: Limits | None = None
    ) -> Store:
        """Open a store. Stores of one path in one process share an environment, and the limits given last.

        Raises NotFound, InUse (open read-only here), FormatTooNew, Damaged, StoreFull, StoreIO.
        """
        return cls(acquire(check_path("path", path), create=create, read_only=read_only, limits=limits))

    @property
    def path(self) -> Path:
        """The store's folder."""
        return self._env().path

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

        parent: ref or version id. None keeps the current version's; for a new ref "a/b" it is ref "a", for a
        new ref without "/" it makes a root. extend adds to the current version's segments. Raises Invalid,
        NotFound, Collected, Conflict, StoreFull, StoreIO.
        """
        cure = "that is too small; use 16 KiB or more (64 MiB is the default)"
        check_number("segment_bytes", segment_bytes, cure, least=1 << 14, whole=True)
        checked = records.check_meta({} if meta is None else meta)
        opened = builds.open_build(self._env(), ref, build, schema, parent, extend)
        return Writer(self._env(), opened, checked, segment_bytes)

    def abandon(self, build: str) -> bool:
        """End a build that no writer will resume, and remove its segments. Whether there was one.

        Of one whose record is damaged the segments go with a later gc.
        """
        return builds.abandon(self._env(), build)

    def reader(self, ref_or_id: str, backoff: Backoff = "order") -> Reader:
        """A reader pinned to one version. Raises NotFound, Collected, Invalid, Damaged, FormatTooNew,
        StoreIO.

        backoff: what fills a window that no stored n-gram fills: "order", the longest n-grams of every
        version first; "version", everything of the nearest version first; or steps [(order, depth), …], depth
        None for every version.
        """
        return open_reader(self._env(), ref_or_id, backoff)

    def append(
        self, ref: str, entries: Entries, *, build: str | None = None, meta: dict[str, Any] | None = None
    ) -> VersionInfo:
        """Publish a version with these entries, {order: (n-grams, rows)} as in `Writer.add`, on top of the
        current one.

        Costs what the entries weigh, not what the ref holds; `compact` merges what many of these leave.
        build: an id of the caller's, else a new one. Raises NotFound, Invalid, Conflict (somebody published
        meanwhile: append again), StoreFull, StoreIO; nothing is left then.
        """
        return append(self._env(), ref, entries, build, records.check_meta({} if meta is None else meta))

    def compact(
        self,
        ref: str,
        *,
        max_segments: int = MAX_SEGMENTS,
        target_bytes: int = SEGMENT_BYTES,
        progress: Progress | None = None,
    ) -> VersionInfo | None:
        """Merge the small segments that appends and extensions leave, and publish the same content as a new
        version.

        An order is merged where more than max_segments of its segments are below half of target_bytes; None:
        there is no such order. Readers go on with what they have; gc frees the old files later. The version's
        meta is the old one's with "compacted": its id. progress(bytes done, bytes in all) may raise to stop.
        Raises NotFound, Invalid, Conflict (a publication came first, also of a build that began later:
        compact again when it is quiet), Damaged, StoreFull, StoreIO; nothing is left then.
        """
        return compact(self._env(), ref, max_segments, target_bytes, progress)

    def diff(self, a: str, b: str, *, samples: int = 0) -> DiffReport:
        """Compare a with b: the n-grams that either stores itself, counted by order as added, removed,
        changed and same, with up to `samples` of each kind.

        A version also has what it inherits, so an n-gram that one stores and the other inherits is the same
        or changed. Raises NotFound, Collected, Damaged, Invalid (other dim, vocabulary or n).
        """
        return diff(self._env(), a, b, samples)

    def gc(
        self,
        *,
        dry_run: bool = False,
        orphan_age_s: float = 3600,
        build_age_s: float = WEEK,
        keep_versions: int = 8,
        keep_days: float = 0.0,
        keep: Iterable[str] = (),
    ) -> GcReport:
        """Remove what nothing needs. Kept are, with all their ancestors: each ref's current version, its
        newest keep_versions and all younger than keep_days; what is tagged, pinned or leased; what readers of
        this process hold; what builds stand on; the ids in `keep`. The report says why each one stays.

        Orphans are files that no record names; only those older than orphan_age_s go, since a running build
        may be writing them. A build untouched for build_age_s counts as abandoned, and from orphan_age_s on
        one that nobody resumes: of an append without a build id, an import, a compaction; so an orphan_age_s
        near 0 ends those that are running. For orphan_age_s at least, a version that went answers Collected;
        then NotFound. Raises Invalid, StoreIO, Damaged.
        """
        cure = "keep at least 1 version and 0 days, or delete the ref"
        check_number("keep_versions", keep_versions, cure, least=1, whole=True)
        check_number("keep_days", keep_days, cure, least=0)
        for name, age_s in (("orphan_age_s", orphan_age_s), ("build_age_s", build_age_s)):
            check_number(name, age_s, "pass seconds", least=-math.inf)
        kept = list(keep) if isinstance(keep, Iterable) else [keep]
        for version in kept:
            if not names.is_id(version):
                raise Invalid(
                    f"keep holds {version!r}, which is no version id: take ids from the history of a ref"
                )
        environment = self._env()
        if not dry_run:
            environment.catalogue.forget_dead_readers()
        policy = gc.Policy(keep_versions, keep_days, orphan_age_s, build_age_s, frozenset(kept))
        return gc.collect(environment, policy, dry_run=dry_run)

    def verify(self, ref: str | None = None) -> VerifyReport:
        """Read every byte of every version (of a ref's retained versions and their ancestors); list every
        damage."""
        return check.verify(self._env(), ref)

    def scrub(
        self,
        ref: str | None = None,
        *,
        bytes_per_second: float | None = None,
        progress: Callable[[ScrubProgress], None] | None = None,
    ) -> VerifyReport:
        """Like `verify`, in a child process at a bounded rate, so that a bad disk kills only the child.

        Raises NotFound, Damaged (the catalogue), FormatTooNew, StoreIO.
        """
        return scrub(self.path, ref=ref, bytes_per_second=bytes_per_second, progress=progress)

    def export(
        self,
        ref_or_id: str,
        path: str | Path,
        *,
        attached: Mapping[str, Path] | None = None,
        progress: Progress | None = None,
    ) -> None:
        """Write a version and all its ancestors to one compressed, checksummed file, replacing it at once.

        attached: files, by name, that are to travel with it (`attached` reads them). progress(bytes of
        segments done, bytes in all). Raises NotFound, Invalid, Damaged, StoreFull, StoreIO.
        """
        archive.export(self._env(), ref_or_id, check_path("path", path), attached or {}, progress)

    def import_archive(
        self, path: str | Path, *, ref: str | None = None, progress: Progress | None = None
    ) -> VersionInfo:
        """Take over an exported version and its ancestors; nothing changes if they are there already.

        ref: another name for the version. progress as in `export`. Raises Damaged (nothing is left then),
        FormatTooNew, Conflict, StoreFull, StoreIO.
        """
        return archive.import_archive(self._env(), check_path("path", path), ref, progress)

    @staticmethod
    def archived(path: str | Path) -> list[VersionInfo]:
        """The versions of an export, the exported one first, from its head alone. Raises NotFound, Damaged,
        StoreIO."""
        return archive.versions_of(check_path("path", path))

    @staticmethod
    def attached(path: str | Path) -> Iterator[tuple[str, bytes]]:
        """Each file that travels with an export: its name and its content, compared with its hash.

        Raises NotFound, Damaged, FormatTooNew, StoreIO.
        """
        return attachments.read(check_path("path", path))

    def info(self) -> StoreInfo:
        """Totals, counted now."""
        environment = self._env()
        refs = self.refs()
        versions = environment.catalogue.read(lambda txn: len(txn.keys(version_tree.VERSION)))
        current = {version.id: version for version in refs.values()}
        entries: Counter[int] = Counter({3: 0, 2: 0, 1: 0})
        for version in current.values():
            entries.update(version.entries)
        segments = sum(names.is_segment(file.name) for file in environment.folder.iterdir())
        size = folder_bytes(environment.path)
        return StoreInfo(str(environment.path), FORMAT, size, segments, len(refs), versions, dict(entries))

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
