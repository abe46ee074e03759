"""Bringing versions with their segments into a store, from any source. Atomic and idempotent."""

from __future__ import annotations

import time
import uuid
from collections.abc import Callable, Container, Iterator, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Final, Protocol

import xxhash

from plot_store.care import check, rewrite
from plot_store.care.archive_format import Stands, erased_in, segments_of
from plot_store.catalogue import erased, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord, RefRecord
from plot_store.environment.environment import Environment
from plot_store.ground import files
from plot_store.ground.errors import Conflict, Damaged, FormatTooNew
from plot_store.ground.nouns import Progress, SegmentInfo, VersionInfo
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Drafts
from plot_store.segments.segment import check_agreement
from plot_store.writing import builds, promote

_TOUCH_EVERY_S: Final = 60.0
Keep = Callable[[CatalogueTxn, list[VersionInfo]], None]


class Source(Protocol):
    """Where segments come from. The caller asks for each once, in the order of `segments_of`."""

    cure: str  # for a message: what to do if the source's bytes are wrong

    def chunks(self, name: str, size: int) -> Iterator[bytes]:
        """Yield the bytes of a segment, `size` in all. The first chunk holds its header. Raises Damaged."""

    def skipped(self, name: str, size: int) -> Iterator[bytes]:
        """Go past a segment that the store has. Yields the bytes that had to be read for it."""

    def tail(self) -> None:
        """Check what follows the last segment. Raises Damaged."""


def bring_in(
    environment: Environment,
    versions: list[VersionInfo],
    source: Source,
    present: Callable[[CatalogueTxn], bool],
    progress: Progress | None,
    trusted: Sequence[VersionInfo] = (),
    stands: Stands | None = None,
    keep: Keep | None = None,
) -> VersionInfo:
    """Bring a chain of versions into the store and publish them. Returns the first.

    versions: nearest first, with the segments that the source has. If the store has all of them intact, and
    the source tells of no erasure that is new here, nothing changes, and the source is not read. Damaged or
    missing segments are restored. Where n-grams were erased from a segment, here or at the source, only what
    stands for it is brought in. present: returns whether the first version's ref has it already; raises
    Conflict if the ref must not get it. trusted: versions of this store; their files are not read again.
    stands: what stands for segments at the source; None: what the versions tell of it. keep: records why the
    versions stay; None: their refs do. Raises Damaged, Conflict, StoreFull, StoreIO, and what the source
    raises; nothing is left then.
    """
    theirs = erased_in(versions) if stands is None else stands
    known = {info.name: info for version in trusted for info in version.segments}
    wanted, news = environment.catalogue.read(lambda txn: _settled(txn, versions, theirs))
    listed = segments_of(wanted)
    if not news and _has_all(environment, listed, known, present):
        return wanted[0]
    _check_room(environment, wanted)
    count = ProgressBytes(versions, progress)
    build = _ImportBuild(environment, wanted[0])
    try:
        seen = build.share([info for info, _ in listed if info.name in known], count)
        seen |= _own(
            environment, build, wanted, {info.name for info, _ in segments_of(versions)} | seen.keys()
        )
        needed = {info.name for info, _ in listed} - seen.keys()
        for version, group in groupby(segments_of(versions), key=lambda each: each[1]):
            for info, _ in group:
                if info.name in needed:
                    build.take(info, version, source, count)
                elif info.name not in known:
                    build.skip(info, source, count)
            build.register()
        source.tail()
        old = {version.id for version in trusted}
        for version in wanted:
            if version.id in old and all(info.name in seen for info in version.segments):
                continue
            damages = check.check_version(environment, version, dict(seen), build.watch)
            if damages:
                raise Damaged(f"segment {damages[0].segment} is wrong ({damages[0].what}): {source.cure}")
        environment.catalogue.write(
            lambda txn: _publish(txn, versions, theirs, wanted, present, build, keep or _put_refs)
        )
    finally:
        build.end()
    if theirs:
        rewrite.remove_dead(environment, {})
    return wanted[0]


def bring_build(environment: Environment, build: str, record: BuildRecord, source: Source) -> None:
    """Bring the finished segments of another store's build, so that this store goes on with it. What this
    store had of the build goes. Raises as `bring_in`."""
    tip = VersionInfo("", record.ref, record.parent, None, "", record.schema, record.segments, build)
    _check_room(environment, [tip])
    work, count = _ImportBuild(environment, tip), ProgressBytes([tip], None)

    def body(txn: CatalogueTxn) -> None:
        work.end_in(txn)
        version_tree.put_build(
            txn, build, replace(record, owner=work.build, sealed=None, touched=time.time())
        )

    try:
        for info in record.segments:
            work.take(info, tip, source, count)
        work.register()
        environment.catalogue.write(body)
    finally:
        work.end()


def _has_all(
    environment: Environment,
    listed: list[tuple[SegmentInfo, VersionInfo]],
    known: Container[str],
    present: Callable[[CatalogueTxn], bool],
) -> bool:
    """Return whether the store has these segments intact, and the ref. Those in `known` are not read."""

    def recorded(txn: CatalogueTxn) -> bool:
        return present(txn) and all(environment.holds(txn, info) for info, _ in listed if info.name in known)

    return environment.catalogue.read(recorded) and all(
        _is_sound(environment, info) for info, _ in listed if info.name not in known
    )


def _settled(
    txn: CatalogueTxn, versions: Sequence[VersionInfo], theirs: Stands
) -> tuple[list[VersionInfo], Stands]:
    """Return versions of a source with the segments that they have in this store, and what of `theirs` is new
    here. The store's records of erased segments go before the source's.

    Raises Conflict if the source erased n-grams from a segment that other versions of this store have.
    """
    concerned = _named(txn, versions) if theirs else set()
    fresh = {
        name: now for name, now in theirs.items() if name in concerned and not erased.is_erased(txn, name)
    }
    others = version_tree.named_segments(txn, {version.id for version in versions}) if fresh else set()
    if both := sorted(fresh.keys() & others):
        raise Conflict(
            f"n-grams were erased where {versions[0].ref} comes from, and another version of this store has "
            f"segment {both[0]} with them: collect it with keep_versions=1, or delete its ref and collect, "
            "or erase them here, too; then begin again"
        )

    def stands_for(segment: SegmentInfo) -> SegmentInfo | None:
        now: SegmentInfo | None = segment
        while now is not None:
            further = fresh[now.name] if now.name in fresh else erased.stands_for(txn, now)
            if further == now:
                break
            now = further
        return now

    return [version.standing(stands_for) for version in versions], fresh


def _named(txn: CatalogueTxn, versions: Sequence[VersionInfo]) -> set[str]:
    """Return the names of the segments of these versions, and of all that this store has of their refs.

    A remote may tell of segments of other refs, too. These come with a pull of their own ref.
    """
    refs = {version.ref for version in versions}
    found = {info.name for version in versions for info in version.published}
    for version_id in txn.keys(version_tree.VERSION):
        if version_tree.get_node(txn, version_id).ref in refs:
            found |= version_tree.segment_names(txn, version_id)
    return found


def _own(
    environment: Environment, build: _ImportBuild, wanted: list[VersionInfo], offered: set[str]
) -> dict[str, SegmentInfo]:
    """Register the store's own files of wanted segments that the source does not offer, by name.

    They stand for segments from which n-grams were erased here. Raises Conflict if the store lacks one.
    """
    absent = [info for info, _ in segments_of(wanted) if info.name not in offered]
    own = build.share([info for info in absent if _is_sound(environment, info)])
    if lost := [info.name for info in absent if info.name not in own]:
        raise Conflict(
            f"n-grams were erased from a segment of {wanted[0].ref}, and this store lacks {lost[0]}, which "
            "stands for it: bring the version into another store, erase them there, and import its export"
        )
    return own


class ProgressBytes:
    """Reports how many bytes of segments an export or import has processed."""

    def __init__(self, versions: list[VersionInfo], progress: Progress | None) -> None:
        self._total = sum(info.bytes for info, _ in segments_of(versions))
        self._done = 0
        self._progress = progress

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def _check_room(environment: Environment, versions: list[VersionInfo]) -> None:
    """Raises StoreFull before any work if the missing segments do not fit, as with a hostile manifest."""

    def missing(txn: CatalogueTxn) -> int:
        return sum(info.bytes for info, _ in segments_of(versions) if not environment.holds(txn, info))

    environment.check_room(environment.catalogue.read(missing), "the import")


def _is_sound(environment: Environment, info: SegmentInfo) -> bool:
    """Return whether the store has an intact file of this segment. Reads every byte. Raises StoreIO."""
    try:
        check.check_bytes(environment, info)
    except (Damaged, FormatTooNew):
        return False
    return True


def _publish(
    txn: CatalogueTxn,
    versions: list[VersionInfo],
    theirs: Stands,
    wanted: list[VersionInfo],
    present: Callable[[CatalogueTxn], bool],
    build: _ImportBuild,
    keep: Keep,
) -> None:
    """Record the versions, and what was erased from them, and end the import's build. Raises Conflict."""
    build.end_in(txn)
    settled, fresh = _settled(txn, versions, theirs)
    if settled != wanted:
        raise Conflict(f"n-grams were erased from {wanted[0].ref} while it was brought in: begin again")
    if fresh:
        erased.put(txn, fresh, erased.new_edition())
    if present(txn):
        return
    for version in wanted:
        version_tree.put_version(txn, version)
    keep(txn, wanted)


def _put_refs(txn: CatalogueTxn, versions: list[VersionInfo]) -> None:
    """Make the first version current, and make the refs of its ancestors that are not there yet."""
    tip = versions[0]
    for version in versions:
        record = version_tree.get_ref(txn, version.ref)
        if record is None:
            version_tree.put_ref(txn, version.ref, RefRecord(version.id, (version.id,)))
        elif version is tip:
            others = [known for known in record.versions if known != version.id]
            version_tree.put_ref(txn, version.ref, RefRecord(version.id, (version.id, *others)))


class _ImportBuild:
    """The build of an import. It keeps the segments imported so far from collection."""

    def __init__(self, environment: Environment, tip: VersionInfo) -> None:
        self.build = f"import-{uuid.uuid4().hex}"
        self._environment = environment
        self._drafts = Drafts(environment.folder)  # what was taken from the source and is not registered
        self._watched = time.time()
        self._taken: list[SegmentInfo] = []
        self._record = BuildRecord(tip.ref, tip.schema, None, False, None, self.build, (), time.time())
        environment.catalogue.write(lambda txn: version_tree.put_build(txn, self.build, self._record))

    def take(self, info: SegmentInfo, version: VersionInfo, source: Source, count: ProgressBytes) -> None:
        """Take one segment from the source, keeping the store's own file if it is intact."""
        if _is_sound(self._environment, info) and self._share([info]):
            self.skip(info, source, count)
        else:
            self._write(info, version, source, count)

    def skip(self, info: SegmentInfo, source: Source, count: ProgressBytes) -> None:
        """Go past one segment of the source."""
        left = info.bytes
        for chunk in source.skipped(info.name, info.bytes):
            left -= len(chunk)
            count.add(len(chunk))
            self.watch(info.name, len(chunk))
        if left:
            count.add(left)

    def share(self, infos: list[SegmentInfo], count: ProgressBytes | None = None) -> dict[str, SegmentInfo]:
        """Register the store's own files. Returns those that are there, by name."""
        shared = self._share(infos)
        for info in shared:
            if count is not None:
                count.add(info.bytes)
        return {info.name: info for info in shared}

    def _with(self, *infos: SegmentInfo) -> BuildRecord:
        return replace(self._record, segments=(*self._record.segments, *infos), touched=time.time())

    def _share(self, infos: list[SegmentInfo]) -> list[SegmentInfo]:
        """Register the store's own files of these segments. Returns the segments that are there.

        Once the transaction names a segment, no sweep removes it.
        """

        def body(txn: CatalogueTxn) -> list[SegmentInfo]:
            builds.still_ours(txn, self.build, self._record)
            there = [info for info in infos if self._environment.holds(txn, info)]
            if there:
                # A file may be an orphan whose rename was never synced.
                files.sync_folder(self._environment.folder)
                version_tree.put_build(txn, self.build, self._with(*there))
            return there

        there = self._environment.catalogue.write(body) if infos else []
        self._record = self._with(*there)  # before `watch`, which may write the record
        return there

    def _write(self, info: SegmentInfo, version: VersionInfo, source: Source, count: ProgressBytes) -> None:
        """Write one segment from the source. Raises Damaged, Conflict, StoreFull, StoreIO."""
        whole = xxhash.xxh3_128()

        def checked() -> Iterator[bytes]:
            first = True
            for chunk in source.chunks(info.name, info.bytes):
                if first:
                    check_agreement(fmt.parse(chunk[: fmt.HEADER_BYTES], info.name), info, version.schema)
                first = False
                whole.update(chunk)
                count.add(len(chunk))
                self.watch(info.name, len(chunk))
                yield chunk

        self._drafts.copy(info, checked())
        if whole.hexdigest() != info.digest:
            raise Damaged(f"segment {info.name} does not match the hash in its name: {source.cure}")
        self._taken.append(info)

    def register(self) -> None:
        """Name and register what was written since the last call. Raises Conflict, StoreFull, StoreIO."""
        drafts, record = self._drafts.finish(), self._with(*self._taken)

        def body(txn: CatalogueTxn) -> None:
            builds.still_ours(txn, self.build, self._record)
            promote.promote(self._environment, txn, drafts)
            version_tree.put_build(txn, self.build, record)

        if drafts:
            self._environment.catalogue.write(body)
            self._record, self._taken = record, []
            self._drafts = Drafts(self._environment.folder)

    def watch(self, segment: str, read: int) -> None:
        """Touch the build's record and files once a minute, so that gc does not count them as abandoned."""
        if time.time() - self._watched > _TOUCH_EVERY_S:
            self._watched = time.time()
            self._drafts.touch()
            self._record = replace(self._record, touched=self._watched)
            self._environment.catalogue.write(self._touch)

    def _touch(self, txn: CatalogueTxn) -> None:
        builds.still_ours(txn, self.build, self._record)
        version_tree.put_build(txn, self.build, self._record)

    def end_in(self, txn: CatalogueTxn) -> None:
        """End the build in a transaction whose versions keep the segments. Raises Conflict if gc ended it."""
        builds.still_ours(txn, self.build, self._record)
        txn.delete(version_tree.BUILD + self.build)

    def end(self) -> None:
        """End the build, and remove the segments that no version keeps."""
        self._drafts.discard()
        self._environment.catalogue.write(lambda txn: txn.delete(version_tree.BUILD + self.build))
        promote.sweep(self._environment, [info.name for info in self._record.segments])
