"""Compaction: many small segments of a version become few large ones, published as a new version of the same
content.

Large segments stay as they are, and so do older indexes that cover hardly any small segment, so the cost
depends on the small segments only. Only rows that no newer row replaces are copied, so their order does not
matter. Readers go on. A publication that comes first wins, however late it began, and the compaction then
leaves nothing. It is not retried here: that would repeat all the copying for a ref that is still being
written, and only the caller knows when that ends. The next compaction finds the same segments, and more.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Final

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.arguments import check_number
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import Progress, SegmentInfo, VersionInfo
from plot_store.reading.entries import CoveringIndex, Entries, open_entries
from plot_store.writing import builds
from plot_store.writing.append import COMPACTED
from plot_store.writing.builds import Opened
from plot_store.writing.writer import Writer

MAX_SEGMENTS: Final = 8
_BUILD: Final = "compact-"  # and the version's id: the build of its compaction
_MOSTLY: Final = 4  # a index is worth making anew when small segments are a fourth of its bytes


@dataclass(frozen=True)
class _Merge:
    """The plan for one order."""

    order: int
    indexes: tuple[CoveringIndex, ...]  # whose indexes become one, oldest first
    small: tuple[str, ...]  # rows segments whose rows are copied, oldest first
    large: tuple[SegmentInfo, ...]  # rows segments that stay, under the new index


def compact(
    environment: Environment, ref: str, max_segments: int, target_bytes: int, progress: Progress | None
) -> VersionInfo | None:
    """See `Store.compact`."""
    check_number("max_segments", max_segments, "use 1 or more", least=1, whole=True)
    check_number("target_bytes", target_bytes, "use 16 KiB or more", least=1 << 14, whole=True)
    version = environment.catalogue.read(lambda txn: version_tree.resolve(txn, names.check_ref(ref)))
    small = {s.name for s in version.segments if s.kind == "rows" and s.bytes < target_bytes // 2}
    if not any(
        sum(s.order == order and s.name in small for s in version.segments) > max_segments
        for order in version.schema.orders
    ):
        return None
    opened = _open_build(environment, version)
    try:
        entries = open_entries(environment, version)
        planned = [_merge_of(entries, order, small, max_segments) for order in version.schema.orders]
        merges = [merge for merge in planned if merge is not None]
        if merges:
            return _carry_out(environment, opened, entries, merges, target_bytes, progress)
        return None
    finally:  # a published build is gone already
        builds.abandon(environment, opened.build, opened.record.owner)


def _open_build(environment: Environment, version: VersionInfo) -> Opened:
    """Open an empty build for this compaction, and drop what one that died left in it. From now on the build
    keeps the version from collection."""
    _end_overtaken(environment, version)
    build = f"{_BUILD}{version.id}"
    opened = builds.open_build(environment, version.ref, build, version.schema, None, True)
    if opened.base is None or opened.base.id != version.id:
        builds.abandon(environment, build, opened.record.owner)
        raise Conflict(f"{version.ref} got a newer version before its compaction began: compact it again")
    return opened


def _end_overtaken(environment: Environment, version: VersionInfo) -> None:
    """Abandon compactions of this ref's other versions: they died, or will learn that a publication came
    first."""

    def body(txn: CatalogueTxn) -> list[str]:
        found = [_BUILD + rest for rest in txn.keys(version_tree.BUILD + _BUILD)]
        records = {build: version_tree.get_build(txn, build) for build in found}
        return [
            b for b, r in records.items() if r is not None and r.ref == version.ref and r.base != version.id
        ]

    for build in environment.catalogue.read(body):
        builds.abandon(environment, build)


def _merge_of(entries: Entries, order: int, small: set[str], max_segments: int) -> _Merge | None:
    """The newest indexes, from the oldest one that mostly small segments lie under; None if that is not worth
    it."""
    indexes = entries.indexes(order)
    first = next(
        (i for i, index in enumerate(indexes) if _mostly_small(entries, index, small, max_segments)),
        len(indexes),
    )
    taken, left = indexes[first:], {name for index in indexes[:first] for name in index.covers}
    covered = list(dict.fromkeys(name for index in reversed(taken) for name in reversed(index.covers)))[::-1]
    # One name may lie under several indexes: its newest counts.
    mine = [name for name in covered if name not in left]
    merged = tuple(name for name in mine if name in small)
    if len(merged) <= max_segments:
        return None
    large = tuple(entries.opened[name].info for name in covered if name not in merged)
    return _Merge(order, tuple(taken), merged, large)


def _mostly_small(entries: Entries, index: CoveringIndex, small: set[str], max_segments: int) -> bool:
    sizes = {name: entries.opened[name].info.bytes for name in index.covers}
    little = [name for name in sizes if name in small]
    return len(little) > max_segments or sum(sizes[n] for n in little) * _MOSTLY >= sum(sizes.values())


def _carry_out(
    environment: Environment,
    opened: Opened,
    entries: Entries,
    merges: list[_Merge],
    target_bytes: int,
    progress: Progress | None,
) -> VersionInfo:
    """Copy the small segments' rows into a build over the large ones, and publish it."""
    gone = {index.info.name for merge in merges for index in merge.indexes} | {
        n for m in merges for n in m.small
    }
    rest = replace(entries.version, segments=tuple(s for s in entries.version.segments if s.name not in gone))
    large = tuple(info for merge in merges for info in merge.large)
    opened = builds.restart(environment, replace(opened, base=rest), large)
    total, done = sum(entries.opened[name].info.bytes for merge in merges for name in merge.small), 0
    with Writer(environment, opened, {}, target_bytes) as writer:
        for merge in merges:
            table = entries.table(merge.indexes)
            for size, rows in entries.pieces(merge.order, merge.small, table):
                writer.add_encoded(merge.order, rows)
                done += size
                if progress is not None:
                    progress(done, total)
        return writer.publish(meta={**entries.version.meta, COMPACTED: entries.version.id})
