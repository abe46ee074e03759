"""Refs, versions and builds inside a transaction: resolving, walking to the root, descendants, reachability."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict
from typing import Final

from plot_store import names, records
from plot_store.catalogue import Txn
from plot_store.errors import Collected, Damaged, NotFound
from plot_store.nouns import VersionInfo
from plot_store.records import BuildRecord, RefRecord

REF: Final = "ref/"
VERSION: Final = "version/"
BUILD: Final = "build/"
COLLECTED: Final = "collected/"
MAX_DEPTH: Final = 64


def get_ref(txn: Txn, ref: str) -> RefRecord | None:
    raw = txn.get(REF + ref)
    return None if raw is None else records.parse_ref(raw)


def put_ref(txn: Txn, ref: str, record: RefRecord) -> None:
    txn.put(REF + ref, asdict(record))


def get_version(txn: Txn, version_id: str) -> VersionInfo:
    """The version of this id. Raises NotFound, or Collected if it once was."""
    raw = txn.get(VERSION + version_id)
    if raw is not None:
        version = records.parse_version(raw)
        if version.id != version_id:
            raise Damaged(f"version {version_id} is recorded under another's id: restore the store from an export")
        return version
    if txn.get(COLLECTED + version_id) is not None:
        raise Collected(f"version {version_id} was removed by gc: open the ref's current version, or keep more of them")
    raise NotFound(f"there is no version {version_id}: list them with history(ref)")


def put_version(txn: Txn, version: VersionInfo) -> None:
    txn.put(VERSION + version.id, records.version_fields(version))


def get_build(txn: Txn, build: str) -> BuildRecord | None:
    raw = txn.get(BUILD + build)
    return None if raw is None else records.parse_build(raw)


def put_build(txn: Txn, build: str, record: BuildRecord) -> None:
    txn.put(BUILD + build, asdict(record))


def resolve(txn: Txn, ref_or_id: str) -> VersionInfo:
    """A version id's version, or a ref's current one. Raises NotFound, Collected."""
    if names.is_id(ref_or_id):
        return get_version(txn, ref_or_id)
    record = get_ref(txn, names.check_ref(ref_or_id))
    if record is None:
        raise NotFound(f"there is no ref {ref_or_id!r}: list them with refs(), or publish one")
    return get_version(txn, record.current)


def chain(txn: Txn, version: VersionInfo) -> list[VersionInfo]:
    """The version and its ancestors, nearest first, root last."""
    found = [version]
    while (parent := found[-1].parent) is not None:
        if len(found) >= MAX_DEPTH:
            raise Damaged(f"the ancestors of {version.id} do not end: restore the store from an export")
        found.append(get_version(txn, parent))
    return found


def descendants(txn: Txn, ref: str) -> list[str]:
    """Refs whose current version falls back, at any distance, on a version of this ref."""
    found = []
    for other in txn.keys(REF):
        if other != ref and any(v.ref == ref for v in chain(txn, resolve(txn, other))[1:]):
            found.append(other)
    return found


def closure(txn: Txn, ids: Iterable[str]) -> dict[str, VersionInfo]:
    """These versions and all their ancestors, by id; ids that are gone are left out."""
    found: dict[str, VersionInfo] = {}
    waiting = list(ids)
    while waiting:
        version_id = waiting.pop()
        if version_id in found or txn.get(VERSION + version_id) is None:
            continue
        version = get_version(txn, version_id)
        found[version_id] = version
        if version.parent is not None:
            waiting.append(version.parent)
    return found


def named_segments(txn: Txn) -> set[str]:
    """Every file name that a version or a build in progress mentions."""
    found: set[str] = set()
    for version_id in txn.keys(VERSION):
        found.update(segment.name for segment in get_version(txn, version_id).segments)
    for build in txn.keys(BUILD):
        record = get_build(txn, build)
        assert record is not None
        found.update(segment.name for segment in record.segments)
    return found
