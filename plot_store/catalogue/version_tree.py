"""Refs, versions and builds in a transaction: resolving names, ancestors, reachability.

Besides its manifest, each version has two small records: its place in the tree, and the names of its
segments. Walking the tree and collection read only those. Versions written by format 1 lack them; for these
the manifests are read.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import asdict
from datetime import datetime
from typing import Any, Final

from plot_store.catalogue import erased, records
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord, Node, RefRecord, TagRecord
from plot_store.ground import names
from plot_store.ground.errors import Collected, Damaged, NotFound
from plot_store.ground.nouns import VersionInfo, VersionMeta, entries_of

REF: Final = "ref/"
VERSION: Final = "version/"
NODE: Final = "node/"
NAMES: Final = "names/"
TAG: Final = "tag/"
BUILD: Final = "build/"
COLLECTED: Final = "collected/"
MAX_DEPTH: Final = 64


def get_ref(txn: CatalogueTxn, ref: str) -> RefRecord | None:
    """Return a ref's record, or None if there is no such ref. Raises Damaged."""
    raw = txn.get(REF + ref)
    return None if raw is None else records.parse_ref(raw)


def need_ref(txn: CatalogueTxn, ref: str) -> RefRecord:
    """Return a ref's record. Raises NotFound, Invalid, Damaged."""
    found = get_ref(txn, names.check_ref(ref))
    if found is None:
        raise NotFound(f"there is no ref {ref!r}: look at the list of refs, or publish it")
    return found


def put_ref(txn: CatalogueTxn, ref: str, record: RefRecord) -> None:
    """Write a ref's record."""
    txn.put(REF + ref, asdict(record))


def get_version(txn: CatalogueTxn, version_id: str) -> VersionInfo:
    """Return the version of this id, with what stands for segments from which n-grams were erased.

    Raises NotFound, Collected (it was removed by gc), Damaged.
    """
    version = records.parse_version(_manifest(txn, version_id))
    if version.id != version_id:
        raise Damaged(
            f"version {version_id} is recorded under the id of another: restore the store from an export"
        )
    return erased.applied(txn, version)


def _manifest(txn: CatalogueTxn, version_id: str) -> Any:
    raw = txn.get(VERSION + version_id)
    if raw is not None:
        return raw
    if txn.has(COLLECTED + version_id):
        raise Collected(
            f"version {version_id} was removed by gc: open the ref's current version, or keep more of them"
        )
    raise NotFound(f"there is no version {version_id}: look at the history of its ref")


def previous(txn: CatalogueTxn, version_id: str) -> str | None:
    """Return the id of the version that this one replaced; None also if it is not there any more."""
    raw = txn.get(VERSION + version_id)
    found = None if raw is None else records.field_of(raw, "previous")
    return None if found is None else str(found)


def get_meta(txn: CatalogueTxn, version_id: str) -> VersionMeta:
    """Return a version's meta. Raises NotFound, Collected, Damaged.

    It takes a quarter of the time of `get_version`, since it checks only the record's checksum.
    """
    raw = _manifest(txn, version_id)
    return VersionMeta(version_id, records.field_of(raw, "ref"), records.field_of(raw, "meta"))


def get_entries(txn: CatalogueTxn, version_id: str) -> dict[int, int]:
    """Return `VersionInfo.entries`, with the checks of `get_meta`. Raises NotFound, Collected, Damaged."""
    schema, segments = records.segments_in(_manifest(txn, version_id))
    return entries_of(schema, erased.standing(txn, segments))


def put_version(txn: CatalogueTxn, version: VersionInfo) -> None:
    """Write a version's manifest, its place in the tree and the names of its segments."""
    txn.put(VERSION + version.id, records.version_fields(version))
    txn.put(NODE + version.id, asdict(Node(version.ref, version.parent, time.time())))
    txn.put(NAMES + version.id, [segment.name for segment in version.published])
    txn.delete(COLLECTED + version.id)


def drop_version(txn: CatalogueTxn, version_id: str, now: float) -> None:
    """Remove a version's records. From then on its id raises Collected."""
    txn.put(COLLECTED + version_id, {"at": now})
    for prefix in (VERSION, NODE, NAMES):
        txn.delete(prefix + version_id)


def get_node(txn: CatalogueTxn, version_id: str) -> Node:
    """Return a version's place in the tree. Raises NotFound, Collected, Damaged."""
    raw = txn.get(NODE + version_id)
    if raw is not None:
        return records.parse_node(raw)
    version = get_version(txn, version_id)
    try:
        created = datetime.fromisoformat(version.created.replace("Z", "+00:00")).timestamp()
    except ValueError:  # an import may have brought any text
        created = 0.0
    return Node(version.ref, version.parent, created)


def segment_names(txn: CatalogueTxn, version_id: str) -> set[str]:
    """Return the names of a version's segments. Raises NotFound, Collected, Damaged."""
    raw = txn.get(NAMES + version_id)
    if raw is not None:
        return erased.standing_names(txn, map(str, raw))
    return {segment.name for segment in get_version(txn, version_id).segments}


def get_build(txn: CatalogueTxn, build: str) -> BuildRecord | None:
    """Return a build's record, or None if there is no such build. Raises Damaged, naming the build."""
    try:
        raw = txn.get(BUILD + build)
        return None if raw is None else records.parse_build(raw)
    except Damaged as error:
        raise Damaged(
            f"{error}; or end build {build!r} with abandon({build!r}) and start it again"
        ) from error


def put_build(txn: CatalogueTxn, build: str, record: BuildRecord) -> None:
    """Write a build's record. Raises Conflict if it names a segment from which n-grams were erased."""
    erased.refuse(txn, record.names)
    txn.put(BUILD + build, records.version_fields(record))


def get_tag(txn: CatalogueTxn, ref: str, tag: str) -> TagRecord | None:
    """Return a tag's record, or None if there is no such tag. Raises Damaged."""
    raw = txn.get(f"{TAG}{ref}@{tag}")
    return None if raw is None else records.parse_tag(raw)


def resolve_id(txn: CatalogueTxn, text: str) -> str:
    """Resolve a version id, a tag "ref@tag" or a ref (its current version) to a version id.

    An id is returned as given, without a look-up. Raises NotFound, Invalid, Damaged.
    """
    if names.is_id(text):
        return text
    tagged = names.split_tag(text)
    if tagged is not None:
        found = get_tag(txn, *tagged)
        if found is None:
            raise NotFound(f"there is no tag {text!r}: look at the tags of {tagged[0]}")
        return found.version
    return need_ref(txn, text).current


def resolve(txn: CatalogueTxn, text: str) -> VersionInfo:
    """Resolve a version id, a tag or a ref to a version. Raises NotFound, Collected, Invalid, Damaged."""
    return get_version(txn, resolve_id(txn, text))


def chain(txn: CatalogueTxn, version: VersionInfo) -> list[VersionInfo]:
    """Return the version and its ancestors, nearest first, the root last. Raises Damaged, Collected."""
    found = [version]
    while (parent := found[-1].parent) is not None:
        if len(found) >= MAX_DEPTH:
            raise Damaged(f"the ancestors of {version.id} do not end: restore the store from an export")
        found.append(get_version(txn, parent))
    return found


def old_tombstones(txn: CatalogueTxn, oldest: float) -> list[str]:
    """Return the keys of the records of versions collected before `oldest` (Unix seconds).

    Unreadable records are included.
    """

    def is_due(key: str) -> bool:
        try:
            return records.parse_collected(txn.get(key)) < oldest
        except Damaged:
            return True

    return [key for key in (COLLECTED + version_id for version_id in txn.keys(COLLECTED)) if is_due(key)]


def closure(txn: CatalogueTxn, ids: Iterable[str]) -> dict[str, Node]:
    """Return these versions and all their ancestors: their places in the tree, by id.

    Ids without a version are left out.
    """
    found: dict[str, Node] = {}
    waiting = list(ids)
    while waiting:
        version_id = waiting.pop()
        if version_id in found or not txn.has(VERSION + version_id):
            continue
        node = found[version_id] = get_node(txn, version_id)
        if node.parent is not None:
            waiting.append(node.parent)
    return found


def named_segments(txn: CatalogueTxn, besides: Collection[str] = ()) -> set[str]:
    """Return the names of all segments that a version or a build in progress needs.

    besides: ids of versions that do not count.
    """
    found: set[str] = set()
    for version_id in txn.keys(VERSION):
        if version_id not in besides:
            found |= segment_names(txn, version_id)
    for build in txn.keys(BUILD):
        record = get_build(txn, build)
        assert record is not None
        found |= record.names
    return found
