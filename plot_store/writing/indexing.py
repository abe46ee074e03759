"""The segments of a publication: planning which are needed, and writing the last rows and the indexes."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from itertools import chain
from typing import Final

from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import Bytes, Keys, row_keys

from plot_store.environment.environment import Environment
from plot_store.ground.errors import Invalid
from plot_store.ground.nouns import Schema, SegmentInfo, VersionInfo, last_of_each
from plot_store.segments import format as fmt
from plot_store.segments.drafts import Draft, Drafts
from plot_store.writing.merging import MAX_RACED, Merge, in_segments, merge_newest, newest_runs
from plot_store.writing.segment_writer import SEGMENT_BYTES, SegmentWriter, empty_rows

MAX_SALTS: Final = 64
SLOT_BYTES: Final = 11  # bytes of an index for each row
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
    drafts: tuple[Draft, ...]  # the files of the new ones, still under temporary names
    rows: tuple[SegmentInfo, ...]  # those that hold rows of the build alone
    own: tuple[SegmentInfo, ...]  # the build's segments and the new ones
    merges: bool  # whether they cover rows of the base, too

    def onto(self, base: VersionInfo) -> tuple[SegmentInfo, ...] | None:
        """Return the segments of a version with the same additions to another base.

        None if that takes other files: if these hold or cover rows of the old base, or if the other base has
        so many indexes that some are to be merged.
        """
        indexes = [segment for segment in self.own if segment.kind == "index"]
        if self.merges or any(newest_runs(base, new.order, new.count, MAX_RACED) for new in indexes):
            return None
        return last_of_each([*base.segments, *self.own])


def plan(
    environment: Environment,
    writer: SegmentWriter,
    base: VersionInfo | None,
    loose: Mapping[int, Bytes],
    given: Mapping[int, Merge],
    *,
    runs: int,
    apart: bool,
) -> SegmentPlan:
    """Write the rows that are still in memory, and the indexes. Merge some of the base's if it has many.

    loose: by order, rows uint8 [m, stride] of the build that are newer than its segments. given: by order,
    the merges whose copies are the build's rows already. runs: merge where the base has so many indexes of an
    order. apart: write the loose rows as segments of their own, without copies. Raises StoreFull, StoreIO,
    Damaged, Invalid (too many rows for one index).
    """
    record, new = writer.record, _New(environment, writer)
    rows, replaced, merges = list(record.segments), set[str](), False
    try:
        for order in record.schema.orders:
            own, rest = [s for s in record.segments if s.order == order], loose.get(order)
            count = sum(s.count for s in own) + (0 if rest is None else len(rest))
            together = not (own or apart)
            merge = given.get(order)
            if merge is None and count:
                merge = merge_newest(environment, base, order, count, runs, most=1 - together)
            if merge is not None:
                pieces = () if order in given else merge.pieces()
                copies: Iterable[Bytes] = (copied for _, copied in pieces)
                if rest is not None and together:
                    copies, rest = chain(copies, [rest]), None
                own = [*merge.large, *new.copies(order, copies), *own]
                merges, replaced = True, replaced | merge.replaced
            if rest is not None:
                rows.append(new.rows(order, rest))
                own.append(rows[-1])
            if own:
                new.index(order, last_of_each(own))
        made = tuple(new.drafts.finish())
    except BaseException:
        new.drafts.discard()
        raise
    kept = [] if base is None else [s for s in base.segments if s.name not in replaced]
    mine = (*record.segments, *sorted(new.made, key=lambda info: info.kind == "index"))
    return SegmentPlan(last_of_each([*kept, *mine]), made, tuple(rows), mine, merges)


class _New:
    """The new segments of a plan, and the keys of rows that need not be read again for the indexes."""

    def __init__(self, environment: Environment, writer: SegmentWriter) -> None:
        self.made: list[SegmentInfo] = []
        self.drafts = Drafts(environment.folder)
        self._environment = environment
        self._writer = writer
        self._schema = writer.record.schema
        self._keys = dict(writer.keys)

    def rows(self, order: int, rows: Bytes) -> SegmentInfo:
        """Write rows uint8 [m, stride] as one segment."""
        info = self._writer.write(self.drafts, order, rows)
        self.made.append(info)
        self._keys[info.name] = row_keys(rows, order)
        return info

    def copies(self, order: int, pieces: Iterable[Bytes]) -> list[SegmentInfo]:
        """Write rows that come in pieces as few segments."""
        buffer = empty_rows(self._schema, order, SEGMENT_BYTES)
        return [self.rows(order, rows) for rows in in_segments(pieces, buffer)]

    def index(self, order: int, covered: Sequence[SegmentInfo]) -> None:
        """Write an index over rows segments, given oldest first."""
        self._environment.check_room(SLOT_BYTES * sum(segment.count for segment in covered), "an index")
        known, schema = self._keys, self._schema
        keys = [
            known[s.name] if s.name in known else self._environment.segment(s, schema).keys for s in covered
        ]
        self.made.append(write_index(self.drafts, schema, order, covered, keys))


def write_index(
    drafts: Drafts, schema: Schema, order: int, covered: Sequence[SegmentInfo], keys: Sequence[Keys]
) -> SegmentInfo:
    """Write an index over rows segments, given oldest first with the keys of each, uint64 [rows, words].

    Raises Invalid (too many rows for one index), StoreFull, StoreIO.
    """
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
