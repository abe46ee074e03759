"""Export of a version with its ancestors to one file, and import. An import is atomic and idempotent."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path
from typing import Final

import xxhash

from plot_store.care import attachments, check
from plot_store.care.archive_format import CHUNK, Packer, Unpacker, segments_of
from plot_store.catalogue import records, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord, RefRecord
from plot_store.environment.environment import Environment
from plot_store.ground import files, names
from plot_store.ground.errors import Conflict, Damaged, FormatTooNew, Invalid, NotFound
from plot_store.ground.files import Buffer, convert_os_errors, remove, write_temporary
from plot_store.ground.nouns import Progress, SegmentInfo, VersionInfo
from plot_store.reading.reader import Reader, open_reader
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Draft
from plot_store.segments.mapping import read_soon
from plot_store.segments.segment import check_agreement
from plot_store.writing import builds, promote

_TOUCH_EVERY_S: Final = 60.0


def export(
    environment: Environment,
    ref_or_id: str,
    path: Path,
    attached: Mapping[str, Path],
    progress: Progress | None = None,
) -> None:
    """See `Store.export`."""
    with open_reader(environment, ref_or_id) as reader:
        draft = write_temporary(path.absolute().parent, _pieces(environment, reader, attached, progress))
        with convert_os_errors(f"naming the export {path}"):
            try:
                os.replace(draft, path)
            finally:
                remove(draft)
            files.sync_folder(path.absolute().parent)


def _pieces(
    environment: Environment, reader: Reader, attached: Mapping[str, Path], progress: Progress | None
) -> Iterator[Buffer]:
    """Yield the bytes of an export. Raises Damaged, StoreIO."""
    packer = Packer()
    versions = list(reader.chain)
    count = _ProgressBytes(versions, progress)
    listed = attachments.described(attached)
    yield packer.head(versions, [asdict(one) for one in listed])
    yield from attachments.pieces(packer, listed, attached)
    for info, version in segments_of(versions):
        segment = environment.segment(info, version.schema)
        whole = xxhash.xxh3_128()
        read_soon(segment.raw)
        for start in range(0, info.bytes, CHUNK):
            raw = segment.raw[start : start + CHUNK].tobytes()
            whole.update(raw)
            yield packer.chunk(raw)
            count.add(len(raw))
        if whole.hexdigest() != info.digest:
            raise Damaged(f"segment {info.name} is damaged, so nothing was exported: build the version again")
    yield packer.tail()


def versions_of(path: Path) -> list[VersionInfo]:
    """See `Store.archived`."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}: pass one that `export` wrote")
    with convert_os_errors(f"reading the export {path}"), open(path, "rb") as file:
        return Unpacker(file).head()


class _ProgressBytes:
    """Reports how many bytes of segments an export or import has processed."""

    def __init__(self, versions: list[VersionInfo], progress: Progress | None) -> None:
        self._total = sum(info.bytes for info, _ in segments_of(versions))
        self._done = 0
        self._progress = progress

    def add(self, size: int) -> None:
        self._done += size
        if self._progress is not None:
            self._progress(self._done, self._total)


def import_archive(
    environment: Environment, path: Path, ref: str | None, progress: Progress | None = None
) -> VersionInfo:
    """See `Store.import_archive`."""
    if not path.is_file():
        raise NotFound(f"there is no file {path}: pass one that `export` wrote")
    with convert_os_errors(f"reading the export {path}"), open(path, "rb") as file:
        unpacker = Unpacker(file)
        versions = unpacker.head()
        attachments.skip(unpacker)
        if ref is not None:
            versions[0] = _renamed(versions, names.check_ref(ref))
        present = environment.catalogue.read(lambda txn: _imported_version(txn, versions[0]))
        if present is not None and all(_is_sound(environment, info) for info, _ in segments_of(versions)):
            return present  # otherwise damaged or missing segments are restored from the archive
        _check_room(environment, versions)
        count = _ProgressBytes(versions, progress)
        lease = _ImportBuild(environment, versions[0])
        try:
            for info, version in segments_of(versions):
                lease.take(info, version, unpacker, count)
            unpacker.tail()
            for version in versions:
                damages = check.check_version(environment, version, {}, lease.watch)
                if damages:
                    raise Damaged(
                        f"segment {damages[0].segment} of the export is wrong ({damages[0].what}): export it "
                        "again"
                    )
            return environment.catalogue.write(lambda txn: _publish(txn, versions, lease))
        finally:
            lease.end()


def _renamed(versions: list[VersionInfo], ref: str) -> VersionInfo:
    """Return the first version under another ref, with a new id. Raises Invalid if an ancestor has that ref.

    The id is the hash of the renamed manifest, so importing twice gives one version.
    """
    tip = versions[0]
    if tip.ref == ref:
        return tip
    if any(version.ref == ref for version in versions[1:]):
        raise Invalid(f"{ref} is the name of an ancestor in this export: choose another")
    return records.new_version(
        ref=ref,
        parent=tip.parent,
        previous=None,
        created=tip.created,
        schema=tip.schema,
        segments=tip.segments,
        build=tip.build,
        meta=tip.meta,
    )


def _imported_version(txn: CatalogueTxn, tip: VersionInfo) -> VersionInfo | None:
    """Return the version if its ref already has it, otherwise None.

    Raises Conflict if the ref's current version is not the one that this version replaced.
    """
    record = version_tree.get_ref(txn, tip.ref)
    if record is None:
        return None
    if tip.id in record.versions:
        return version_tree.get_version(txn, tip.id)
    if record.current != tip.previous:
        raise Conflict(
            f"{tip.ref} is at version {record.current}, which the exported one does not follow: import with "
            "ref=another name"
        )
    return None


def _check_room(environment: Environment, versions: list[VersionInfo]) -> None:
    """Raises StoreFull before any work if the missing segments do not fit, as with a hostile manifest."""

    def missing(txn: CatalogueTxn) -> int:
        return sum(info.bytes for info, _ in segments_of(versions) if not environment.holds(txn, info))

    need = environment.catalogue.read(missing)
    environment.check_room(need, "the import")


def _is_sound(environment: Environment, info: SegmentInfo) -> bool:
    """Return whether the store has an intact file of this segment. Reads every byte. Raises StoreIO."""
    try:
        check.check_bytes(environment, info)
    except (Damaged, FormatTooNew):
        return False
    return True


def _publish(txn: CatalogueTxn, versions: list[VersionInfo], lease: _ImportBuild) -> VersionInfo:
    """Record the versions and end the import's build. Returns the first version. Raises Conflict."""
    lease.end_in(txn)
    tip = versions[0]
    present = _imported_version(txn, tip)
    if present is not None:
        return present
    for version in versions:
        version_tree.put_version(txn, version)
        record = version_tree.get_ref(txn, version.ref)
        if record is None:
            version_tree.put_ref(txn, version.ref, RefRecord(version.id, (version.id,)))
        elif version is tip:
            version_tree.put_ref(txn, version.ref, RefRecord(version.id, (version.id, *record.versions)))
    return tip


class _ImportBuild:
    """The build of an import. It keeps the segments imported so far from collection."""

    def __init__(self, environment: Environment, tip: VersionInfo) -> None:
        self.build = f"import-{uuid.uuid4().hex}"
        self._environment = environment
        self._record = BuildRecord(tip.ref, tip.schema, None, False, None, self.build, (), time.time())
        environment.catalogue.write(lambda txn: version_tree.put_build(txn, self.build, self._record))

    def take(
        self, info: SegmentInfo, version: VersionInfo, unpacker: Unpacker, count: _ProgressBytes
    ) -> None:
        """Read one segment from the archive, keeping the store's own file if it is intact."""
        sound = _is_sound(self._environment, info)
        if not sound or not self._environment.catalogue.write(lambda txn: self._share(txn, info)):
            self._write(info, version, unpacker, count)
            self._record = self._with(info)
            return
        self._record = self._with(info)  # before `watch`, which may write the record
        for chunk in unpacker.chunks(info.name, info.bytes):
            count.add(len(chunk))
            self.watch(info.name, len(chunk))

    def _with(self, info: SegmentInfo) -> BuildRecord:
        return replace(self._record, segments=(*self._record.segments, info), touched=time.time())

    def _share(self, txn: CatalogueTxn, info: SegmentInfo) -> bool:
        """Register the store's own file. Returns False if it is gone.

        Once this transaction names the file, no sweep removes it. The import verifies it at the end.
        """
        if not self._environment.holds(txn, info):
            return False
        builds.still_ours(txn, self.build, self._record)
        # The file may be an orphan whose rename was never synced.
        files.sync_folder(self._environment.folder)
        version_tree.put_build(txn, self.build, self._with(info))
        return True

    def _write(
        self, info: SegmentInfo, version: VersionInfo, unpacker: Unpacker, count: _ProgressBytes
    ) -> None:
        """Write and register one segment from the archive. Raises Damaged, Conflict, StoreFull, StoreIO."""
        whole = xxhash.xxh3_128()

        def checked() -> Iterator[bytes]:
            first = True
            for chunk in unpacker.chunks(info.name, info.bytes):
                if first:
                    check_agreement(fmt.parse(chunk[: fmt.HEADER_BYTES], info.name), info, version.schema)
                first = False
                whole.update(chunk)
                count.add(len(chunk))
                self.watch(info.name, len(chunk))
                yield chunk

        draft = Draft(write_temporary(self._environment.folder, checked()), ((info, 0),))
        try:
            if whole.hexdigest() != info.digest:
                raise Damaged(f"segment {info.name} does not match the hash in its name: export it again")

            def body(txn: CatalogueTxn) -> None:
                builds.still_ours(txn, self.build, self._record)
                promote.promote(self._environment, txn, [draft])
                version_tree.put_build(txn, self.build, self._with(info))

            self._environment.catalogue.write(body)
        finally:
            promote.discard([draft])

    def watch(self, segment: str, read: int) -> None:
        """Touch the build's record once a minute, so that gc does not count the import as abandoned."""
        if time.time() - self._record.touched > _TOUCH_EVERY_S:
            self._record = replace(self._record, touched=time.time())
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
        self._environment.catalogue.write(lambda txn: txn.delete(version_tree.BUILD + self.build))
        promote.sweep(self._environment, [info.name for info in self._record.segments])
