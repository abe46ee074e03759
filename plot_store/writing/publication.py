"""Publication: one synced transaction names the finished files, records a version and moves the ref.

A crash before the commit leaves a build to resume, and a crash after it leaves a version, never
one without its files.

A build that only adds entries may be published on top of a version that came meanwhile (`ON_TOP`). If its
files hold the added entries alone, only the manifest changes. If it merged older rows, it is prepared anew.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from typing import Any, Final

from plot_store.catalogue import erased, records, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import BuildRecord, RefRecord
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import SegmentInfo, VersionInfo
from plot_store.segments.drafts import Draft
from plot_store.writing import builds
from plot_store.writing.promote import promote


class _Special:
    """A sentinel for `expect` that is neither a version id nor None."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __repr__(self) -> str:
        return self._name


ANY: Final = _Special("ANY")  # replace whatever version is current
AS_OPENED: Final = _Special("AS_OPENED")  # replace only the version that was current at the writer's opening
# Like AS_OPENED, or, for an extending build, a version published on top of that one; see `successor`.
ON_TOP: Final = _Special("ON_TOP")
Expect = str | None | _Special
COMPACTED: Final = "compacted"  # meta key: the id of the version that a compaction replaced
MAX_BETWEEN: Final = (
    64  # publications between the version that a build extends and the one it moves on top of
)


@dataclass(frozen=True)
class PublishRequest:
    """The version to publish, and the one that it may replace."""

    build: str
    record: BuildRecord
    segments: tuple[SegmentInfo, ...]
    expect: Expect  # a version id, None, ANY or ON_TOP
    meta: dict[str, Any]
    base: VersionInfo | None = None  # what an extending build added to, as it was read
    # With ON_TOP: gives the segments on top of another version, or None if indexes have to be made anew.
    onto: Callable[[VersionInfo], tuple[SegmentInfo, ...] | None] | None = None
    apart: bool = False  # leave the ref where it is; a pin of the build keeps the version


class Moved(Exception):
    """The version must be prepared again for a new base, on which it may be published."""


def publish(environment: Environment, request: PublishRequest, drafts: Sequence[Draft]) -> VersionInfo:
    """Rename the drafts and record the version, in one transaction.

    Raises Conflict (another publication or writer came first), Moved (only with ON_TOP), StoreFull, StoreIO;
    nothing is published then.
    """
    created = datetime.now(UTC).isoformat().replace("+00:00", "Z")

    def body(txn: CatalogueTxn) -> VersionInfo:
        builds.still_ours(txn, request.build, request.record)
        ready, previous = _ready(txn, request)
        if drafts:
            promote(environment, txn, drafts)
        return record_version(txn, ready, previous, created)

    return environment.catalogue.write(body)


def _ready(txn: CatalogueTxn, request: PublishRequest) -> tuple[PublishRequest, str | None]:
    """Return what to publish, and the id of the current version. Raises Conflict, Moved."""
    if request.expect is not ON_TOP:
        if _is_stale(txn, request):
            raise Conflict(
                f"n-grams were erased from {request.record.ref} while this build extended it: begin it again"
            )
        return request, check_expected(txn, request.record, request.expect)
    base = successor(txn, request.record)
    moved = base.id != request.record.base or _is_stale(txn, request)
    return _on_top(request, base, moved), base.id


def _is_stale(txn: CatalogueTxn, request: PublishRequest) -> bool:
    """Return whether n-grams were erased from the build's base since it was read: merges may hold them."""
    known = () if request.base is None else request.base.segments
    return any(erased.is_erased(txn, segment.name) for segment in known)


def _on_top(request: PublishRequest, base: VersionInfo, moved: bool) -> PublishRequest:
    """Return the request on top of this version, whose meta it inherits. Raises Moved.

    moved: the version is not the base as it was read.
    """
    segments = request.segments
    if moved:
        found = None if request.onto is None else request.onto(base)
        if found is None:
            raise Moved
        segments = found
    inherited = {key: value for key, value in base.meta.items() if key != COMPACTED}
    return replace(request, segments=segments, meta=records.check_meta({**inherited, **request.meta}))


def successor(txn: CatalogueTxn, build: BuildRecord) -> VersionInfo:
    """Return the ref's current version: what an extending build adds to, or one published on top of that.

    Raises Conflict if it is neither (after a rollback, for example), or has another schema or parent.
    """
    current = version_tree.need_ref(txn, build.ref).current
    found = version_tree.get_version(txn, current)
    before: str | None = current
    for _ in range(MAX_BETWEEN):
        if before in (None, build.base):
            break
        before = version_tree.previous(txn, before)
    if before != build.base:
        raise Conflict(
            f"{build.ref} moved to {current}, which does not follow {build.base}, or does so after more than "
            f"{MAX_BETWEEN} publications or some that gc removed: look at what was published or rolled back, "
            "then append again"
        )
    if (found.schema, found.parent) != (build.schema, build.parent):
        raise Conflict(
            f"{build.ref} moved to {current}, which has another schema or falls back on another version: "
            "append entries that are computed for it"
        )
    return found


def record_version(
    txn: CatalogueTxn, request: PublishRequest, previous: str | None, created: str
) -> VersionInfo:
    """Write the manifest, make the version current unless it stays apart, and end the build."""
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
    version_tree.put_version(txn, version)
    if request.apart:
        pins.pin(txn, version.id, request.build)
    else:
        move_ref(txn, version)
    txn.delete(version_tree.BUILD + request.build)
    return version


def move_ref(txn: CatalogueTxn, version: VersionInfo) -> None:
    """Make a version its ref's current one."""
    old = version_tree.get_ref(txn, version.ref)
    kept = () if old is None else old.versions
    version_tree.put_ref(txn, version.ref, RefRecord(version.id, (version.id, *kept)))


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
