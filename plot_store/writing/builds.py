"""The records of builds: opening, resuming, restarting and abandoning one."""

from __future__ import annotations

import re
import time
import uuid
from dataclasses import dataclass, replace
from typing import Final

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord
from plot_store.catalogue.version_tree import MAX_DEPTH
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Conflict, Damaged, Invalid, NotFound
from plot_store.ground.nouns import Schema, SegmentInfo, VersionInfo
from plot_store.writing import promote

_MAX_LEVELS: Final = MAX_DEPTH - 1
_EPHEMERAL: Final = re.compile(r"(append|import)-[0-9a-f]{32}|compact-v[0-9a-f]{32}")


@dataclass(frozen=True)
class Opened:
    """A build as its writer found it at opening."""

    build: str
    record: BuildRecord
    current: str | None  # id of the ref's current version
    base: VersionInfo | None  # the version that an extending build adds to


def open_build(
    environment: Environment, ref: str, build: str, schema: Schema, parent: str | None, extend: bool
) -> Opened:
    """Register a build, or take over the one of this id. Raises Invalid, NotFound, Collected."""
    names.check_ref(ref)
    names.check_build(build)
    if not isinstance(schema, Schema):
        raise Invalid(f"schema = {schema!r} is not a Schema: pass Schema(dim=…, vocab=…)")

    def body(txn: CatalogueTxn) -> Opened:
        held = version_tree.get_ref(txn, ref)
        current = None if held is None else held.current
        ancestor = _parent(txn, ref, current, parent)
        found = version_tree.get_build(txn, build)
        if found is None:
            base = current if extend else None
            found = BuildRecord(
                ref, schema, None if ancestor is None else ancestor.id, extend, base, "", (), 0.0
            )
        else:
            _check_same(txn, build, found, ref, schema, ancestor if parent is not None else None, extend)
        base_version = version_tree.get_version(txn, found.base) if found.base is not None else None
        _check_schema(schema, ancestor, base_version)
        kept = _present(environment, txn, found.segments)
        whole = found.sealed is not None and all(environment.holds(txn, info) for info in found.sealed)
        sealed = found.sealed if whole else None
        record = replace(found, owner=uuid.uuid4().hex, segments=kept, sealed=sealed, touched=time.time())
        version_tree.put_build(txn, build, record)
        return Opened(build, record, current, base_version)

    return environment.catalogue.write(body)


def abandon(environment: Environment, build: str, owner: str | None = None) -> bool:
    """See `Store.abandon`. A writer that still holds the build gets Conflict at its next segment.

    owner: if given, end the build only while this owner holds it. A damaged record then raises Damaged.
    """
    names.check_build(build)

    def body(txn: CatalogueTxn) -> set[str] | None:
        try:
            found = version_tree.get_build(txn, build)
            held = None if found is None or (owner is not None and found.owner != owner) else found.names
        except Damaged:
            if owner is not None:
                raise
            held = set()  # its segments become orphans, which gc removes
        if held is not None:
            txn.delete(version_tree.BUILD + build)
        return held

    held = environment.catalogue.write(body)
    if held:
        promote.sweep(environment, held)
    return held is not None


def is_ephemeral(build: str) -> bool:
    """Return whether the id is that of one call of append, import or compact, which nobody can resume."""
    return _EPHEMERAL.fullmatch(build) is not None


def is_compaction(build: str) -> bool:
    """Return whether the id is that of one call of compact, which copies rows of older segments."""
    return build.startswith("compact-") and is_ephemeral(build)


def still_ours(txn: CatalogueTxn, build: str, record: BuildRecord) -> BuildRecord:
    """Return the build's current record. Raises Conflict if another writer took it over, or it ended."""
    found = version_tree.get_build(txn, build)
    if found is None:
        raise Conflict(f"build {build!r} has ended (published, aborted or collected): begin it again")
    if found.owner != record.owner:
        raise Conflict(f"another writer took over build {build!r}: let only one process run it")
    return found


def _parent(txn: CatalogueTxn, ref: str, current: str | None, parent: str | None) -> VersionInfo | None:
    """Resolve the parent: the given one, else that of the ref's current version, else the enclosing ref.

    Raises NotFound, Collected, Invalid.
    """
    if parent is None and current is not None:
        known = version_tree.get_version(txn, current).parent
        return None if known is None else version_tree.get_version(txn, known)
    if parent is None and "/" in ref:
        parent = ref.rpartition("/")[0]
        if version_tree.get_ref(txn, parent) is None:
            raise NotFound(
                f"{ref} would branch off {parent}, which does not exist: publish that, or name a parent"
            )
    if parent is None:
        return None
    found = version_tree.resolve(txn, parent)
    chain = version_tree.chain(txn, found)
    if any(version.ref == ref for version in chain):
        raise Invalid(f"{ref} cannot fall back on itself: choose a parent that does not descend from it")
    if len(chain) >= _MAX_LEVELS:
        raise Invalid(
            f"the version tree is limited to {_MAX_LEVELS} levels: choose a parent nearer to the root"
        )
    return found


def _check_same(
    txn: CatalogueTxn,
    build: str,
    found: BuildRecord,
    ref: str,
    schema: Schema,
    ancestor: VersionInfo | None,
    extend: bool,
) -> None:
    """Raises Invalid unless a resumed build is asked for with the arguments that it began with.

    ancestor: the parent asked for, or None. Its ref must be the same; its version may have moved on.
    """
    same = found.ref == ref and found.schema == schema and found.extend == extend
    if same and ancestor is not None:
        began = None if found.parent is None else version_tree.get_version(txn, found.parent).ref
        same = began == ancestor.ref
    if not same:
        raise Invalid(f"build {build!r} began with another ref, schema, parent or extend: use a new build id")


def _check_schema(schema: Schema, ancestor: VersionInfo | None, base: VersionInfo | None) -> None:
    if base is not None and base.schema != schema:
        raise Invalid(
            f"an extending build must keep the schema {base.schema}: pass it, or build without extend"
        )
    if ancestor is not None and ancestor.schema.shape != schema.shape:
        raise Invalid(
            f"a branch needs its parent's n, dim, vocab and window ({ancestor.schema}): only dtype may differ"
        )


def _present(
    environment: Environment, txn: CatalogueTxn, segments: tuple[SegmentInfo, ...]
) -> tuple[SegmentInfo, ...]:
    """Return the finished segments whose files exist; per order, only those before the first lost one."""
    lost: set[int] = set()
    kept: list[SegmentInfo] = []
    for info in segments:
        if not environment.holds(txn, info):
            lost.add(info.order)
        if info.order not in lost:
            kept.append(info)
    return tuple(kept)
