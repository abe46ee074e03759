"""`Store`, the entry point: it opens readers and writers and runs collection, checks and archives."""

from __future__ import annotations

import math
import os
import time
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from plot_store.care import archive, attachments, check, gc
from plot_store.care.compact import MAX_SEGMENTS, compact
from plot_store.care.erase import erase
from plot_store.care.scrub import ScrubProgress, scrub
from plot_store.care.snapshot import Snapshot, snapshot
from plot_store.catalogue import agreed, records, refs, tags, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import RefRecord
from plot_store.environment import pins
from plot_store.environment.environment import Environment, acquire, release
from plot_store.environment.pins import Lease, LeaseInfo, Pin
from plot_store.face.fetching import Fetching
from plot_store.ground import names
from plot_store.ground.arguments import check_number, check_path
from plot_store.ground.errors import Closed, Invalid, NotFound
from plot_store.ground.files import folder_bytes
from plot_store.ground.limits import Limits
from plot_store.ground.nouns import (
    Accept,
    EraseReport,
    GcReport,
    Progress,
    Schema,
    StoreInfo,
    Transfer,
    VerifyReport,
    VersionInfo,
    VersionMeta,
)
from plot_store.reading.backoff import Backoff
from plot_store.reading.diff import DiffReport, diff
from plot_store.reading.reader import Reader, open_reader
from plot_store.remote.objects import open_objects
from plot_store.remote.pull import pull
from plot_store.remote.push import push
from plot_store.remote.refs import need_place
from plot_store.writing import builds
from plot_store.writing.append import Entries, append
from plot_store.writing.writer import SEGMENT_BYTES, Writer

POLL_S: Final = 0.05
"""Seconds between two looks of `Store.moved` at whether anything was committed."""
DELETE_TRIES: Final = 5
"""Times that `Store.delete` looks at the refs that have moved."""


class _Branches(ABC):
    """The methods of `Store` that only read and change records.

    A parameter `ref` takes a ref's name. A parameter `version` takes a ref (meaning its current version), a
    version id, or a tag "ref@tag".
    """

    @abstractmethod
    def _env(self) -> Environment:
        """The open environment. Raises Closed."""

    def heads(self, prefix: str = "") -> dict[str, str]:
        """Return the id of every ref's current version, reading no manifest.

        prefix: only of refs that begin with it, at the cost of these alone.
        """
        if not names.may_begin_ref(prefix):
            raise Invalid(f"prefix = {prefix!r} begins no ref: pass text such as 'base/', or '' for all refs")
        return self._env().catalogue.read(lambda txn: refs.heads(txn, prefix))

    def moved(self, seen: Mapping[str, str], timeout_s: float = 0.0) -> dict[str, str | None]:
        """Wait until refs are not where `seen` has them, and return those; {} after `timeout_s`.

        seen: a version id for each ref, as `heads` returns them. Returns the id of each moved ref's current
        version, or None for a ref that is gone. A caller who applies each answer to `seen` knows what was
        current at the last one, whichever process made the changes, and also if this process did not run
        meanwhile. A ref that moves and comes back within POLL_S may be left out. Waiting takes some 0.1 ms
        each POLL_S while nothing is committed.

        Raises Closed, within POLL_S, if this store is closed meanwhile, or if another folder, such as a
        snapshot, takes the place of its own. Then open the store again and go on with the same `seen`. Also
        raises Invalid, Damaged, Forked, StoreIO.
        """
        if not isinstance(seen, Mapping):
            raise Invalid(f"seen = {seen!r} is not a dict of version ids by ref: pass what heads() returned")
        cure = "pass the seconds to wait, or 0 to return at once"
        check_number("timeout_s", timeout_s, cure, least=0)
        end, commit = time.monotonic() + timeout_s, -1

        def look(txn: CatalogueTxn) -> tuple[int, dict[str, str | None]]:
            return txn.commit, {} if txn.commit == commit else refs.moved(txn, seen)

        while True:
            commit, found = self._env().catalogue.follow(look)
            left = end - time.monotonic()
            if found or left <= 0:
                return found
            time.sleep(min(POLL_S, left))

    def refs(self) -> dict[str, VersionInfo]:
        """Return the current version of every ref, with its manifest. `heads` is much faster."""

        def body(txn: CatalogueTxn) -> dict[str, VersionInfo]:
            return {ref: version_tree.get_version(txn, head) for ref, head in refs.heads(txn).items()}

        return self._env().catalogue.read(body)

    def version(self, version: str) -> VersionInfo:
        """Resolve a ref, an id or a tag to its version. Raises NotFound, Collected, Invalid."""
        return self._env().catalogue.read(lambda txn: version_tree.resolve(txn, version))

    def metas(self) -> list[VersionMeta]:
        """Return the meta of every version in the store, without the rest of its manifest.

        They include those that only tags, pins or descendants keep, and those that gc has yet to remove.
        """

        def body(txn: CatalogueTxn) -> list[VersionMeta]:
            return [version_tree.get_meta(txn, version_id) for version_id in txn.keys(version_tree.VERSION)]

        return self._env().catalogue.read(body)

    def history(self, ref: str) -> list[VersionInfo]:
        """Return a ref's retained versions, newest publication first. A rollback does not reorder them."""

        def body(txn: CatalogueTxn) -> list[VersionInfo]:
            return [version_tree.get_version(txn, v) for v in version_tree.need_ref(txn, ref).versions]

        return self._env().catalogue.read(body)

    def chain(self, version: str) -> list[VersionInfo]:
        """Return a version and its ancestors, nearest first, the root last."""
        return self._env().catalogue.read(
            lambda txn: version_tree.chain(txn, version_tree.resolve(txn, version))
        )

    def children(self, ref: str) -> list[str]:
        """Return the refs whose current version descends, at any distance, from a version of this ref."""

        return sorted(self._env().catalogue.read(lambda txn: refs.dependants(txn, ref)).refs)

    def rollback(self, ref: str, version: str) -> VersionInfo:
        """Make one of a ref's own versions current, older or newer. `version` is an id or a tag.

        Raises NotFound, Collected, Invalid (another ref's version).
        """

        def body(txn: CatalogueTxn) -> VersionInfo:
            record = version_tree.need_ref(txn, ref)
            if not names.is_id(version) and names.split_tag(version) is None:
                raise Invalid(f"{version!r} is not a version id or tag: take one from the history of {ref}")
            found = version_tree.resolve(txn, version)
            if found.ref != ref:
                raise Invalid(
                    f"version {found.id} is of {found.ref}, not of {ref}: take one from the history of {ref}"
                )
            known = record.versions if found.id in record.versions else (*record.versions, found.id)
            version_tree.put_ref(txn, ref, RefRecord(found.id, known))
            return found

        return self._env().catalogue.write(body)

    def delete(self, ref: str) -> None:
        """Remove a ref; `gc` frees its bytes.

        Raises NotFound, and InUse while other refs descend from it or tags name its versions; the message
        lists them. Versions that are pinned or leased, or that others fall back on, stay readable by their
        id. Two refs that, after rollbacks, fall back on each other's older versions do not block each other.

        The call looks at the other refs before it takes the write lock. If something is committed in
        between, it looks again at the refs that have moved. Only the last of DELETE_TRIES looks holds the
        lock.
        """
        environment, found = self._env(), None
        for tries_left in reversed(range(DELETE_TRIES)):
            found = environment.catalogue.read(partial(refs.check_unused, ref=ref, before=found))
            drop = partial(refs.delete, ref=ref, found=found, anew=not tries_left)
            if environment.write_freeing(drop):
                return

    def tag(self, ref: str, name: str, version: str | None = None) -> str:
        """Name a version of the ref "ref@name" and keep it from gc. Returns the version's id.

        The default is the ref's current version. Raises NotFound, Collected, Invalid (another ref's version),
        Conflict (the tag already names another version).
        """
        return self._env().catalogue.write(lambda txn: tags.put(txn, ref, name, version))

    def untag(self, ref: str, name: str) -> bool:
        """Remove a tag. Returns whether it existed."""
        return self._env().write_freeing(lambda txn: tags.remove(txn, ref, name))

    def tags(self, ref: str | None = None) -> dict[str, str]:
        """Return {"ref@name": version id} for one ref or for all."""
        return self._env().catalogue.read(lambda txn: tags.listed(txn, ref))

    def pin(self, version: str, owner: str) -> Pin:
        """Keep a version and its ancestors from gc, in every process, until `unpin`. Idempotent.

        Raises NotFound, Collected, Invalid.
        """
        return self._env().catalogue.write(lambda txn: pins.pin(txn, version, owner))

    def unpin(self, version: str, owner: str) -> bool:
        """Remove an owner's pin. Returns whether it existed."""
        return self._env().write_freeing(lambda txn: pins.unpin(txn, version, owner))

    def pins(self) -> list[Pin]:
        """Return every pin."""
        return self._env().catalogue.read(pins.pins)

    def lease(self, version: str, ttl_s: float, owner: str = "anonymous") -> Lease:
        """Pin a version for `ttl_s` seconds, unless renewed. Returns a context manager. Raises as `pin`."""
        return pins.lease(self._env(), version, ttl_s, owner)

    def leases(self) -> list[LeaseInfo]:
        """Return every lease that has not expired."""
        return self._env().catalogue.read(lambda txn: pins.leases(txn, time.time()))


WEEK = 7 * 86400.0


class Store(_Branches):
    """A versioned store of n-gram vectors in one folder. Thread-safe.

    Several processes may use one folder.
    """

    def __init__(self, environment: Environment) -> None:
        self._environment: Environment | None = environment

    @classmethod
    def open(
        cls, path: str | Path, *, create: bool = False, read_only: bool = False, limits: Limits | None = None
    ) -> Store:
        """Open a store. All stores of one path in a process share one environment and the limits given last.

        Raises NotFound, Invalid, InUse (this process has it open read-only), Forked,
        FormatTooNew, Damaged, StoreFull, StoreIO.
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
        """Begin a build, or resume the build of this id with the parent version that it began with.

        parent: a ref, version id or tag. None keeps the current version's parent; for a new ref "a/b" it
        means ref "a", and a new ref without "/" becomes a root. extend: add to the current version's
        segments. Raises Invalid, NotFound, Collected, Conflict, StoreFull, StoreIO.
        """
        cure = "that is too small; use 16 KiB or more (64 MiB is the default)"
        check_number("segment_bytes", segment_bytes, cure, least=1 << 14, whole=True)
        checked = records.check_meta({} if meta is None else meta)
        opened = builds.open_build(self._env(), ref, build, schema, parent, extend)
        return Writer(self._env(), opened, checked, segment_bytes)

    def abandon(self, build: str) -> bool:
        """End a build that no writer will resume, and remove its segments. Returns whether it existed.

        If the build's record is damaged, a later gc removes the segments.
        """
        return builds.abandon(self._env(), build)

    def reader(self, ref_or_id: str, backoff: Backoff = "order") -> Reader:
        """Open a reader that is pinned to one version.

        backoff: the plan for windows whose own n-gram is not stored: "order", the longest n-grams of every
        version first; "version", everything of the nearest version first; or steps [(order, depth), …], where
        depth None means every version. Raises NotFound, Collected, Invalid, Damaged, FormatTooNew, StoreIO.
        """
        return open_reader(self._env(), ref_or_id, backoff)

    def append(
        self, ref: str, entries: Entries, *, build: str | None = None, meta: dict[str, Any] | None = None
    ) -> VersionInfo:
        """Publish a version that adds entries to the current one, and return it.

        entries: {order: (n-grams, rows)}, as in `Writer.add`. build: the build's id; a new one by default. If
        other publications come first, the entries are added to what these leave, and replace equal n-grams.
        `previous` of the result is the version to which they were added.

        An append writes a segment and an index for each order. If a version has three indexes of an order,
        the next append merges the newest ones, and the small segments that these cover. So a version has
        O(log n-grams) small segments, however many appends led to it, and a row is copied O(log n-grams)
        times.

        Raises NotFound, Invalid, Conflict (meanwhile the ref was rolled back, or got another schema or
        parent), Damaged (rows to be merged), StoreFull, StoreIO; nothing is left then.
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
        """Merge the small segments of a ref's current version and publish the same content as a new version.

        Builds leave small segments. Appends leave a few, which their own merges have not reached yet.

        An order is merged if more than max_segments of its segments are smaller than half of target_bytes.
        Returns None if no order is. Open readers keep their version; gc frees the old files later. The new
        meta is the old one plus "compacted": the old version's id. progress(bytes done, bytes in total) may
        raise to stop. Raises NotFound, Invalid, Damaged, StoreFull, StoreIO, and Conflict if another
        publication came first, even of a build that began later (compact again when the ref is quiet);
        nothing is left then.
        """
        return compact(self._env(), ref, max_segments, target_bytes, progress)

    def diff(self, a: str, b: str, *, samples: int = 0) -> DiffReport:
        """Compare the n-grams that version a or b stores itself.

        They are counted by order as added, removed, changed or same, with up to `samples` of the first three
        kinds each. An inherited n-gram counts as present: if one version stores an n-gram and the other
        inherits it, it is the same or changed. Raises NotFound, Collected, Damaged, FormatTooNew, StoreIO,
        Invalid (different dim, vocabulary or n).
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
        """Remove unreachable versions, abandoned builds and orphaned files.

        Kept, with all their ancestors: each ref's current version, its newest keep_versions, and all younger
        than keep_days; tagged, pinned and leased versions; versions that readers of this process hold;
        versions that builds extend; the ids in `keep`. The report says why each one stays.

        Orphans are files that no record names. Only those older than orphan_age_s are removed, since a
        running build may be writing them. A build that was not touched for build_age_s counts as abandoned. A
        build that nobody can resume (of an append without a build id, an import, a compaction) does so after
        orphan_age_s, so a value near 0 ends those that are running. Opening a removed version raises
        Collected for at least orphan_age_s, then NotFound. Raises Invalid, StoreIO, Damaged.
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
                    f"keep holds {version!r}, which is not a version id: take ids from the history of a ref"
                )
        environment = self._env()
        if not dry_run:
            environment.catalogue.forget_dead_readers()
        policy = gc.GcPolicy(keep_versions, keep_days, orphan_age_s, build_age_s, frozenset(kept))
        return gc.collect(environment, policy, dry_run=dry_run)

    def erase(
        self,
        refs: Iterable[str],
        ngrams: Mapping[int, NDArray[np.uint32]],
        *,
        dry_run: bool = False,
        progress: Progress | None = None,
    ) -> EraseReport:
        """Delete n-grams from all versions of some refs, and their rows and keys from the store's files.

        ngrams: {order: uint32 [m, order]}. They leave every version of these refs that the store has: older
        ones, tagged and pinned ones, and those that a gc has not removed yet. Versions of other refs that
        share a segment with them change, too; the report names all. Ids, tags and pins stay. Open readers
        keep what they have mapped until they close. progress(bytes searched, bytes in total).

        A call that was killed has erased all of them from the versions, or none; repeat it, so that the bytes
        leave the files. Archives and snapshots keep what they have. So do remotes until the next push of each
        ref and a collection there, and other stores until they pull.

        Raises Invalid, NotFound (no version of a ref), InUse (a build that can be resumed is in progress on
        one of the refs, or on a shared segment), Conflict (others publish all the time), Damaged, StoreFull,
        StoreIO; nothing has changed then, except that after the last two a repetition may find it done.
        """
        return erase(self._env(), refs, ngrams, dry_run, progress)

    def verify(self, ref: str | None = None) -> VerifyReport:
        """Read every byte of every version, and report every damage.

        ref: only the ref's retained versions and their ancestors. Raises NotFound, StoreIO.
        """
        return check.verify(self._env(), ref)

    def scrub(
        self,
        ref: str | None = None,
        *,
        bytes_per_second: float | None = None,
        progress: Callable[[ScrubProgress], None] | None = None,
    ) -> VerifyReport:
        """Run `verify` in a child process, at a bounded rate, so that a bad disk kills only the child.

        Raises Invalid, NotFound, Damaged (the catalogue), FormatTooNew, StoreIO.
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
        """Write a version and all its ancestors to one compressed, checksummed file, replacing it atomically.

        attached: files to include, by name; `Store.attached` reads them. progress(bytes of segments done,
        bytes in total). Raises NotFound, Collected, Invalid, Damaged, StoreFull, StoreIO.
        """
        archive.export(self._env(), ref_or_id, check_path("path", path), attached or {}, progress)

    def snapshot(self, folder: str | Path) -> Snapshot:
        """Write a consistent copy of the store into an empty folder of the same file system. It takes about
        one link for each file of segments. Other processes may publish, delete and collect meanwhile.

        Raises Damaged (the catalogue), StoreFull, StoreIO.
        """
        return snapshot(self._env(), check_path("folder", folder))

    def import_archive(
        self, path: str | Path, *, ref: str | None = None, progress: Progress | None = None
    ) -> VersionInfo:
        """Import an exported version and its ancestors. Nothing changes if the store already has them intact.

        ref: the ref to import under, instead of the exported one. progress: as in `export`. Raises NotFound,
        Invalid, Damaged (nothing is left then), FormatTooNew, Conflict, StoreFull, StoreIO.
        """
        return archive.import_archive(self._env(), check_path("path", path), ref, progress)

    def push(
        self,
        ref: str,
        url: str | os.PathLike[str],
        *,
        expect: str | None = None,
        again: bool = False,
        attached: Mapping[str, Path] | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Send a ref's current version, with its ancestors, to object storage, and make it current there.

        ref: or a version's id. It is sent, and no ref moves there; `Remote.collect` needs it in `keep`. url:
        a folder, "s3://bucket/prefix" or "memory://…"; see `Remote`. Only what the remote lacks is sent.
        expect: the version that the remote has; the push replaces it even if this store has not seen it.
        again: send everything, also what is there, to repair a remote. attached: files of your own that the
        version and its ancestors need, by name, of at most 2 GiB each; whoever pulls gets them.
        progress(bytes done, bytes in total).

        Raises NotFound, Invalid, Damaged, FormatTooNew, StoreIO. Raises Conflict if the remote has a version
        that this store has not seen, if n-grams were erased there that this store has, or if a collection
        runs there. The remote's ref is unchanged then; only after a StoreIO it may have moved: push again.
        """
        return push(self._env(), open_objects(url), ref, expect, again, attached or {}, progress)

    def pull(
        self,
        ref: str,
        url: str | os.PathLike[str],
        *,
        again: bool = False,
        accept: Accept | None = None,
        progress: Progress | None = None,
    ) -> Transfer:
        """Fetch a ref's version from object storage, with its ancestors, and make it current here.

        ref: or a version's id. It is fetched, no ref moves here, and a pin of the owner "plot_store:fetched"
        keeps it. The call fetches only segments that the store lacks, and compares each with the hash in its
        name. Nothing changes if the store's ref is ahead of the remote's. again: read the store's own files,
        too, and fetch those that are damaged. progress: as in `push`.

        accept(versions, attached) is called before anything is fetched, unless this store is ahead. versions:
        those that come, nearest first. attached: for the name of each file that the push attached, a function
        that fetches its content and checks it; store those that you lack. What accept raises ends the pull.
        Without accept, attached files stay there.

        Raises NotFound, Invalid, Damaged, FormatTooNew, StoreFull, StoreIO; and Conflict if both refs have
        moved since they last agreed, or if n-grams were erased there that other versions here have. Nothing
        changes then.
        """
        return pull(self._env(), open_objects(url), ref, again, accept, progress)

    def agreed(self, url: str | os.PathLike[str]) -> dict[str, str]:
        """Return the version on which each ref here and a remote last agreed, by a push or a pull.

        Empty if there is no remote yet. Raises Invalid, Damaged, StoreIO.
        """
        objects = open_objects(url)
        try:
            place = need_place(objects)
        except NotFound:
            return {}
        return self._env().catalogue.read(lambda txn: agreed.every(txn, place))

    def fetching(self, url: str | os.PathLike[str]) -> Fetching:
        """Return readers of a remote's refs and versions: `store.fetching(url).reader(ref_or_id)`.

        A ref that is not here is pulled first, once for all threads and processes that ask for it. A ref that
        is here needs no network, and may be older than the remote's: pull it for the newest version. If the
        store's limits (`Limits`) leave no room, the refs used longest ago are removed, and `gc` runs with its
        defaults. Never removed: refs at a version that the remote does not keep; refs that others fall back
        on; and those of which a tag, pin, lease, build or reader of this process holds a version. Raises
        Invalid.
        """
        return Fetching(self._env, open_objects(url), gc.GcPolicy(8, 0.0, 3600, WEEK, frozenset()))

    @staticmethod
    def archived(path: str | Path) -> list[VersionInfo]:
        """Return the versions of an export, the exported one first. Reads only the beginning of the file.

        Raises NotFound, Invalid, Damaged, FormatTooNew, StoreIO.
        """
        return archive.versions_of(check_path("path", path))

    @staticmethod
    def attached(path: str | Path) -> Iterator[tuple[str, bytes]]:
        """Yield the name and content of each file attached to an export, checked against its hash.

        Raises NotFound, Invalid, Damaged, FormatTooNew, StoreIO.
        """
        return attachments.read(check_path("path", path))

    def info(self) -> StoreInfo:
        """Count the store's refs, versions, segments, entries and bytes."""
        environment = self._env()

        def body(txn: CatalogueTxn) -> tuple[int, int, int, dict[int, int]]:
            heads = refs.heads(txn)
            entries: Counter[int] = Counter({3: 0, 2: 0, 1: 0})
            for version_id in set(heads.values()):
                entries.update(version_tree.get_entries(txn, version_id))
            record = txn.get("format")
            assert record is not None  # it was read when the store was opened
            return record["format"], len(heads), len(txn.raw_keys(version_tree.VERSION)), dict(entries)

        number, heads, versions, entries = environment.catalogue.read(body)
        segments = sum(names.is_file(file.name) for file in environment.folder.iterdir())
        size = folder_bytes(environment.path)
        return StoreInfo(str(environment.path), number, size, segments, heads, versions, entries)

    def close(self) -> None:
        """Release the environment. Open readers keep working. Idempotent."""
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
