"""Publication: one synced transaction names the finished files, records a version and moves the ref.

A crash before the commit leaves a build to resume, and a crash after it leaves a version, never
one without its files.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Final

from plot_store.catalogue import records, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord, RefRecord
from plot_store.environment.environment import Environment
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import SegmentInfo, VersionInfo
from plot_store.segments.segment import Draft
from plot_store.writing import builds
from plot_store.writing.promote import discard, promote


class _Special:
    """A sentinel for `expect` that is neither a version id nor None."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ANY: Final = _Special("ANY")  # replace whatever version is current
AS_OPENED: Final = _Special("AS_OPENED")  # replace only the version that was current at the writer's opening
Expect = str | None | _Special


@dataclass(frozen=True)
class PublishRequest:
    """The version to publish, and the one that it may replace."""

    build: str
    record: BuildRecord
    segments: tuple[SegmentInfo, ...]
    expect: Expect  # a version id, None or ANY
    meta: dict[str, Any]


def publish(environment: Environment, request: PublishRequest, drafts: Sequence[Draft]) -> VersionInfo:
    """Rename the drafts and record the version, in one transaction. Drafts that remain are deleted.

    Raises Conflict (another publication or writer came first), StoreFull, StoreIO; nothing is published then.
    """
    created = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    def body(txn: CatalogueTxn) -> VersionInfo:
        builds.still_ours(txn, request.build, request.record)
        previous = check_expected(txn, request.record, request.expect)
        if drafts:
            promote(environment.folder, drafts)
        return record_version(txn, request, previous, created)

    try:
        return environment.catalogue.write(body)
    finally:
        discard(drafts)


def record_version(
    txn: CatalogueTxn, request: PublishRequest, previous: str | None, created: str
) -> VersionInfo:
    """Write the manifest, make the version current, and end the build."""
    record = request.record
    version = records.new_version(
        ref=record.ref,
        parent=record.parent,
        previous=previous,
        created=created,
        schema=record.schema,
        segments=request.segments,
        build=request.build,
        meta=request.meta,
    )
    old = version_tree.get_ref(txn, record.ref)
    version_tree.put_version(txn, version)
    kept = () if old is None else old.versions
    version_tree.put_ref(txn, record.ref, RefRecord(version.id, (version.id, *kept)))
    txn.delete(version_tree.BUILD + request.build)
    return version


def check_expected(txn: CatalogueTxn, build: BuildRecord, wanted: Expect) -> str | None:
    """Return the id of the ref's current version. Raises Conflict unless it is the wanted one."""
    record = version_tree.get_ref(txn, build.ref)
    current = None if record is None else record.current
    if build.extend and current != build.base:
        raise Conflict(
            f"{build.ref} moved to {current} while this build extended an older version: abort it and build "
            "again"
        )
    if wanted is not ANY and current != wanted:
        raise Conflict(
            f"{build.ref} is at {current}, not at {wanted}: look at what was published, then publish with "
            f"expect={current!r}, or abort"
        )
    return current
