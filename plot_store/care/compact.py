"""Compaction: merges many small segments of a version into few, published as a version of equal content.

Large segments are kept, and so are older indexes that cover hardly any small segment, so the cost depends
only on the small segments. Only rows that no newer row replaces are copied, so their order does not matter.
Readers are not affected.

If another publication of the ref comes first, however late it began, the compaction raises Conflict and
leaves nothing. It is not retried here: that would repeat all the copying for a ref that is still being
written, and only the caller knows when that ends.
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
from plot_store.reading.entries import CoveringIndex, OwnEntries, open_entries
from plot_store.writing import builds
from plot_store.writing.builds import Opened
from plot_store.writing.publication import COMPACTED
from plot_store.writing.writer import Writer

MAX_SEGMENTS: Final = 8
_BUILD: Final = "compact-"  # a compaction's build id is this prefix and the version's id
_MIN_SHARE: Final = 4  # an index is rebuilt if small segments make up at least 1/4 of its rows' bytes


@dataclass(frozen=True)
class _Merge:
    """The plan for one order."""

    order: int
    indexes: tuple[CoveringIndex, ...]  # the indexes that become one, oldest first
    small: tuple[str, ...]  # names of the rows segments to copy, oldest first
    large: tuple[SegmentInfo, ...]  # rows segments that are kept, under the new index


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
    finally:  # does nothing after a publication, which ends the build
        builds.abandon(environment, opened.build, opened.record.owner)


def _open_build(environment: Environment, version: VersionInfo) -> Opened:
    """Open an empty build for this compaction, dropping what an earlier, dead one left.

    From here on the build keeps the version from collection. Raises Conflict.
    """
    _end_overtaken(environment, version)
    build = f"{_BUILD}{version.id}"
    opened = builds.open_build(environment, version.ref, build, version.schema, None, True)
    if opened.base is None or opened.base.id != version.id:
        builds.abandon(environment, build, opened.record.owner)
        raise Conflict(f"{version.ref} got a newer version before its compaction began: compact it again")
    return opened


def _end_overtaken(environment: Environment, version: VersionInfo) -> None:
    """Abandon compactions of the ref's other versions. They are dead, or will fail with Conflict anyway."""

    def body(txn: CatalogueTxn) -> list[str]:
        found = [_BUILD + rest for rest in txn.keys(version_tree.BUILD + _BUILD)]
        records = {build: version_tree.get_build(txn, build) for build in found}
        return [
            b for b, r in records.items() if r is not None and r.ref == version.ref and r.base != version.id
        ]

    for build in environment.catalogue.read(body):
        builds.abandon(environment, build)


def _merge_of(entries: OwnEntries, order: int, small: set[str], max_segments: int) -> _Merge | None:
    """Plan the merge of one order: all indexes from the oldest one that covers mostly small segments.

    Returns None if that merges no more than max_segments small segments.
    """
    indexes = entries.indexes(order)
    first = next(
        (i for i, index in enumerate(indexes) if _mostly_small(entries, index, small, max_segments)),
        len(indexes),
    )
    taken, left = indexes[first:], {name for index in indexes[:first] for name in index.covers}
    covered = list(dict.fromkeys(name for index in reversed(taken) for name in reversed(index.covers)))[::-1]
    # Several indexes may cover one segment. Those that a kept, older index covers are not merged.
    mine = [name for name in covered if name not in left]
    merged = tuple(name for name in mine if name in small)
    if len(merged) <= max_segments:
        return None
    large = tuple(entries.opened[name].info for name in covered if name not in merged)
    return _Merge(order, tuple(taken), merged, large)


def _mostly_small(entries: OwnEntries, index: CoveringIndex, small: set[str], max_segments: int) -> bool:
    """Return whether an index covers more than max_segments small segments, or small ones have 1/4 of the
    bytes."""
    sizes = {name: entries.opened[name].info.bytes for name in index.covers}
    little = [name for name in sizes if name in small]
    return len(little) > max_segments or sum(sizes[n] for n in little) * _MIN_SHARE >= sum(sizes.values())


def _carry_out(
    environment: Environment,
    opened: Opened,
    entries: OwnEntries,
    merges: list[_Merge],
    target_bytes: int,
    progress: Progress | None,
) -> VersionInfo:
    """Copy the rows of the small segments into the build, beside the large ones, and publish it."""
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
