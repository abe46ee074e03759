"""The indexes of a publication: planning which are needed, and writing them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from typing import Final

from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import Keys

from plot_store.catalogue.records import BuildRecord
from plot_store.environment.environment import Environment
from plot_store.ground.errors import Damaged, Invalid
from plot_store.ground.nouns import Schema, SegmentInfo, VersionInfo
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Drafts

MAX_SALTS: Final = 64
MAX_RUNS: Final = 4  # indexes of one order in one version; one more merges the newest of them
DIRECT_SHARE: Final = 8  # unigrams get a direct index if at least 1/8 of the vocabulary has an entry


@dataclass(frozen=True)
class _Built:
    """An index in memory."""

    slots: Keys  # uint64 [cap]
    shift: int  # of the row ids
    distinct: int  # n-grams
    salt: int  # 0 for a direct index


@dataclass(frozen=True)
class SegmentPlan:
    """The segments of a version to be published."""

    segments: tuple[SegmentInfo, ...]  # all, oldest first
    own: tuple[SegmentInfo, ...]  # the build's rows and the new indexes
    merges: bool  # whether a new index covers rows of the base, too

    def onto(self, base: VersionInfo) -> tuple[SegmentInfo, ...] | None:
        """Return the segments of a version with the same additions to another base.

        None if that takes another index: because a new one covers rows of the old base, or the other base has
        so many that the next is to merge some.
        """
        indexed = {segment.order for segment in self.own if segment.kind == "index"}
        counts = Counter(segment.order for segment in base.segments if segment.kind == "index")
        if self.merges or any(counts[order] >= MAX_RUNS for order in indexed):
            return None
        return tuple(_last_of_each([*base.segments, *self.own]))


def plan(
    environment: Environment,
    record: BuildRecord,
    base: VersionInfo | None,
    known: Mapping[str, Keys],
    drafts: Drafts,
) -> SegmentPlan:
    """Index the build's segments. An extending build keeps its base's indexes while they are few.

    known: keys of new segments by name, which then need not be read again. drafts: takes the new indexes.
    Raises StoreFull, StoreIO, Damaged, Invalid (too many rows for one index).
    """
    old = [] if base is None else list(base.segments)
    indexes: list[SegmentInfo] = []
    merges = False
    for order in record.schema.orders:
        fresh = [s for s in record.segments if s.order == order]
        if not fresh:
            continue
        runs = [s for s in old if s.order == order and s.kind == "index"]
        merged = _merged(runs, sum(s.count for s in fresh)) if len(runs) >= MAX_RUNS else []
        covered = _last_of_each([*_covered(environment, record.schema, old, merged), *fresh])
        indexes.append(_write_index(environment, record.schema, order, covered, known, drafts))
        old = [s for s in old if s not in merged]
        merges = merges or bool(merged)
    own = (*record.segments, *indexes)
    return SegmentPlan(tuple(_last_of_each([*old, *own])), own, merges)


def _merged(runs: list[SegmentInfo], rows: int) -> list[SegmentInfo]:
    """Return the newest indexes, which a new index of this many rows shall merge.

    It merges at least one, and older ones while they are at most twice as large as the total so far. So a
    large old index is not rewritten for a few rows.
    """
    first = len(runs)
    while first and (first == len(runs) or runs[first - 1].count <= 2 * rows):
        first -= 1
        rows += runs[first].count
    return runs[first:]


def _covered(
    environment: Environment, schema: Schema, segments: list[SegmentInfo], indexes: list[SegmentInfo]
) -> list[SegmentInfo]:
    """Return the rows segments that these indexes cover, oldest first. Raises Damaged, StoreIO."""
    by_name = {segment.name: segment for segment in segments}
    names = [f"{digest}.rows" for index in indexes for digest, _ in environment.segment(index, schema).covers]
    missing = [name for name in names if name not in by_name]
    if missing:
        raise Damaged(
            f"segment {missing[0]} is not in its version: restore it from an export or build it again"
        )
    return [by_name[name] for name in names]


def _last_of_each(segments: list[SegmentInfo]) -> list[SegmentInfo]:
    """Remove duplicates, keeping the last. Segments of identical content have the same name."""
    newest = {segment.name: place for place, segment in enumerate(segments)}
    return [segment for place, segment in enumerate(segments) if newest[segment.name] == place]


def _write_index(
    environment: Environment,
    schema: Schema,
    order: int,
    covered: list[SegmentInfo],
    known: Mapping[str, Keys],
    drafts: Drafts,
) -> SegmentInfo:
    keys = [known[s.name] if s.name in known else environment.segment(s, schema).keys for s in covered]
    covers = [(segment.digest, segment.count) for segment in covered]
    direct = order == 1 and sum(map(len, keys)) * DIRECT_SHARE >= schema.vocab
    try:
        built = _Built(*ops.build_direct(keys, schema.vocab), 0) if direct else _hash_index(keys, covers)
    except ValueError as error:
        raise Invalid(f"{error} (order {order}): open the writer with larger segment_bytes") from error
    base = fmt.SegmentHeader(
        fmt.DIRECT if direct else fmt.INDEX,
        order,
        schema.code,
        schema.dim,
        schema.vocab,
        built.distinct,
        built.shift,
        built.slots.size,
        len(covered),
        schema.n,
        format=schema.format,
        salt=built.salt,
    )
    return drafts.add(base, built.slots.data, covers)


def _hash_index(keys: Sequence[Keys], covers: list[tuple[str, int]]) -> _Built:
    """Build a hash index with the first salt that leaves no n-gram too far from its home slot.

    The salt is derived from the rows: nobody can choose n-grams that crowd together under it, and building a
    version again gives the same files. The first salt nearly always works. Raises ValueError.
    """
    for attempt in range(MAX_SALTS):
        text = fmt.pack_covers(covers) + attempt.to_bytes(1, "little")
        salt = int.from_bytes(blake2b(text, digest_size=8).digest(), "little") | 1
        try:
            return _Built(*ops.build_index(keys, salt), salt)
        except ops.Crowded:
            continue
    raise ValueError("the n-grams crowd together in the index under every salt tried")
