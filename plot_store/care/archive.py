"""Export of a version with its ancestors to one file, and import. An import is atomic and idempotent."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import asdict, replace
from pathlib import Path

import xxhash

from plot_store.care import attachments
from plot_store.care.archive_format import CHUNK, Packer, Unpacker, segments_of
from plot_store.care.incoming import ProgressBytes, bring_in
from plot_store.catalogue import records, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.ground import files, names
from plot_store.ground.errors import Conflict, Damaged, Invalid, NotFound
from plot_store.ground.files import Buffer, convert_os_errors, remove, write_temporary
from plot_store.ground.nouns import Progress, VersionInfo
from plot_store.reading.reader import Reader, open_reader
from plot_store.segments.mapping import read_soon


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
    count = ProgressBytes(versions, progress)
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
        return bring_in(environment, versions, unpacker, lambda txn: _is_present(txn, versions[0]), progress)


def _renamed(versions: list[VersionInfo], ref: str) -> VersionInfo:
    """Return the first version under another ref, with a new id. Raises Invalid if an ancestor has that ref.

    The id is the hash of the renamed manifest, so importing twice gives one version.
    """
    tip = versions[0]
    if tip.ref == ref:
        return tip
    if any(version.ref == ref for version in versions[1:]):
        raise Invalid(f"{ref} is the name of an ancestor in this export: choose another")
    named = records.new_version(
        ref=ref,
        parent=tip.parent,
        previous=None,
        created=tip.created,
        schema=tip.schema,
        segments=tip.published,
        build=tip.build,
        meta=tip.meta,
    )
    return replace(named, segments=tip.segments, erased=tip.erased)


def _is_present(txn: CatalogueTxn, tip: VersionInfo) -> bool:
    """Return whether the version's ref has it already.

    Raises Conflict if the ref's current version is not the one that this version replaced.
    """
    record = version_tree.get_ref(txn, tip.ref)
    if record is None:
        return False
    if tip.id in record.versions:
        return True
    if record.current != tip.previous:
        raise Conflict(
            f"{tip.ref} is at version {record.current}, which the exported one does not follow: import with "
            "ref=another name"
        )
    return False
