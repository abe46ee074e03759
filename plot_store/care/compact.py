"""Compaction: merges many small segments of a version into few, published as a version of equal content.

Large segments are kept, and so are older indexes that cover hardly any small segment, so the cost depends
only on the small segments. Only rows that no newer row replaces are copied, so their order does not matter.
Readers are not affected.

If another publication of the ref comes first, however late it began, the compaction raises Conflict and
leaves nothing. It is not retried here: that would repeat all the copying for a ref that is still being
written, and only the caller knows when that ends.
"""

from __future__ import annotations

from collections import Counter
from typing import Final

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.arguments import check_number
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import Progress, VersionInfo
from plot_store.reading.entries import CoveringIndex, OwnEntries, open_entries
from plot_store.writing import builds
from plot_store.writing.builds import Opened
from plot_store.writing.merging import Merge, is_small, merge_of
from plot_store.writing.publication import COMPACTED
from plot_store.writing.writer import Writer

MAX_SEGMENTS: Final = 8
_BUILD: Final = "compact-"  # a compaction's build id is this prefix and the version's id
# An index is rebuilt if it covers too many small segments, or they have at least 1/4 of its rows' bytes.
_MIN_SHARE: Final = 4


def compact(
    environment: Environment, ref: str, max_segments: int, target_bytes: int, progress: Progress | None
) -> VersionInfo | None:
    """See `Store.compact`."""
    check_number("max_segments", max_segments, "use 1 or more", least=1, whole=True)
    check_number("target_bytes", target_bytes, "use 16 KiB or more", least=1 << 14, whole=True)
    version = environment.catalogue.read(lambda txn: version_tree.resolve(txn, names.check_ref(ref)))
    small = Counter(s.order for s in version.segments if is_small(s, target_bytes))
    if not any(count > max_segments for count in small.values()):
        return None
    opened = _open_build(environment, version)
    try:
        entries = open_entries(environment, version)
        planned = [_merge(entries, order, target_bytes, max_segments) for order in version.schema.orders]
        merges = [merge for merge in planned if merge.small]
        return _carry_out(environment, opened, merges, target_bytes, progress) if merges else None
    finally:  # does nothing after a publication, which ends the build
        builds.abandon(environment, opened.build, opened.record.owner)


def _open_build(environment: Environment, version: VersionInfo) -> Opened:
    """Open an empty build for this compaction, dropping what earlier ones of the ref left.

    They are dead, or will fail with Conflict. From here on the build keeps the version from collection.
    Raises Conflict.
    """

    def body(txn: CatalogueTxn) -> list[str]:
        found = [_BUILD + rest for rest in txn.keys(version_tree.BUILD + _BUILD)]
        records = {build: version_tree.get_build(txn, build) for build in found}
        return [build for build, record in records.items() if record and record.ref == version.ref]

    for build in environment.catalogue.read(body):
        builds.abandon(environment, build)
    build = f"{_BUILD}{version.id}"
    opened = builds.open_build(environment, version.ref, build, version.schema, None, True)
    if opened.base != version:  # n-grams may have been erased from it, too
        builds.abandon(environment, build, opened.record.owner)
        raise Conflict(f"{version.ref} changed before its compaction began: compact it again")
    return opened


def _merge(entries: OwnEntries, order: int, target_bytes: int, max_segments: int) -> Merge:
    """Plan the merge of one order: all indexes from the oldest one that covers mostly small segments."""

    def mostly_small(index: CoveringIndex) -> bool:
        covered = [entries.opened[name].info for name in index.covers]
        little = [segment.bytes for segment in covered if is_small(segment, target_bytes)]
        return len(little) > max_segments or sum(little) * _MIN_SHARE >= sum(s.bytes for s in covered)

    indexes = entries.indexes(order)
    first = next((i for i, index in enumerate(indexes) if mostly_small(index)), len(indexes))
    elsewhere = {name for index in indexes[:first] for name in index.covers}
    return merge_of(entries, order, indexes[first:], elsewhere, target_bytes, max_segments)


def _carry_out(
    environment: Environment,
    opened: Opened,
    merges: list[Merge],
    target_bytes: int,
    progress: Progress | None,
) -> VersionInfo:
    """Copy the rows of the small segments into the build, and publish it."""
    version, done = merges[0].entries.version, 0
    total = sum(segment.bytes for merge in merges for segment in merge.small)
    with Writer(environment, opened, {}, target_bytes, merges) as writer:
        for merge in merges:
            for size, rows in merge.pieces():
                writer.add_encoded(merge.order, rows)
                done += size
                if progress is not None:
                    progress(done, total)
        return writer.publish(meta={**version.meta, COMPACTED: version.id})
