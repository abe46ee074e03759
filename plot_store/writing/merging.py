"""Merges: some of the newest indexes of an order become one, and small segments under them become few.

The new index covers copies of the small segments' rows, and large segments as they are. Only rows that no
newer row replaces are copied, so their order does not matter. A compaction chooses indexes by the small
segments that they cover (care/compact.py). An extending build chooses by the number of rows: see
`newest_runs`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from hmi_kernels.lookup.layout import Bytes

from plot_store.environment.environment import Environment
from plot_store.ground.nouns import SegmentInfo, VersionInfo
from plot_store.reading.entries import CoveringIndex, OwnEntries, open_entries
from plot_store.writing.segment_writer import SEGMENT_BYTES

MAX_RUNS: Final = 3  # an extending build merges if the version has so many indexes of one order
MAX_RACED: Final = 16  # so many once others have overtaken it: they would overtake a merge again
GROWTH: Final = 8  # an index is merged if it is at most this many times as large as all newer ones together


@dataclass(frozen=True)
class Merge:
    """The segments of one order that a new version replaces, or covers with its new index."""

    entries: OwnEntries
    order: int
    indexes: tuple[CoveringIndex, ...]  # become one, oldest first
    small: tuple[SegmentInfo, ...]  # rows segments that are copied, oldest first
    large: tuple[SegmentInfo, ...]  # rows segments that stay, under the new index, oldest first

    @property
    def replaced(self) -> set[str]:
        """The names of the segments that are no longer needed."""
        return {index.info.name for index in self.indexes} | {segment.name for segment in self.small}

    def pieces(self) -> Iterator[tuple[int, Bytes]]:
        """Yield (bytes read, rows uint8 [m, stride]): the newest rows of the small segments, checked.

        Raises Damaged.
        """
        names = [segment.name for segment in self.small]
        return self.entries.pieces(self.order, names, self.entries.table(self.indexes))


def merge_of(
    entries: OwnEntries,
    order: int,
    indexes: Sequence[CoveringIndex],
    elsewhere: set[str],
    target_bytes: int,
    most: int,
) -> Merge:
    """Plan the merge of these indexes, given oldest first.

    elsewhere: the names of rows segments that indexes outside the merge cover, too, since their content was
    published twice. These stay. target_bytes: segments smaller than half of it are copied, if there are more
    than `most`.
    """
    newest_first = [name for index in reversed(indexes) for name in reversed(index.covers)]
    covered = [entries.opened[name].info for name in reversed(dict.fromkeys(newest_first))]
    small = tuple(s for s in covered if is_small(s, target_bytes) and s.name not in elsewhere)
    if len(small) <= most:
        small = ()
    return Merge(entries, order, tuple(indexes), small, tuple(s for s in covered if s not in small))


def is_small(segment: SegmentInfo, target_bytes: int) -> bool:
    """Return whether a rows segment is to be copied, where segments are to have this size."""
    return segment.kind == "rows" and segment.bytes < target_bytes // 2


def newest_runs(version: VersionInfo | None, order: int, rows: int, runs: int) -> list[SegmentInfo]:
    """Return the newest indexes of a version that a new one of so many rows shall merge, oldest first.

    It merges none while there are fewer than `runs`. Else it merges those that are at most GROWTH times as
    large as everything newer. So sizes fall geometrically, a version has O(log rows) indexes of an order, and
    a row is copied O(log rows) times: what a merge copies grows by the factor 1 + 1 / GROWTH at least.
    """
    found = [] if version is None else version.indexes(order)
    first = len(found)
    if first < runs:
        return []
    while first and found[first - 1].count <= GROWTH * rows:
        first -= 1
        rows += found[first].count
    return found[first:]


def merge_newest(
    environment: Environment, version: VersionInfo | None, order: int, rows: int, runs: int, most: int
) -> Merge | None:
    """Plan the merge of a version's newest indexes with so many new rows, if one is due: see `newest_runs`.

    Opens only what it merges. Of older indexes it reads only which segments they cover. most: see `merge_of`.
    Raises Damaged, StoreIO.
    """
    chosen = newest_runs(version, order, rows, runs)
    if version is None or not chosen:
        return None
    entries, elsewhere = open_entries(environment, version, chosen), set[str]()
    for older in version.indexes(order)[: -len(chosen)]:
        elsewhere.update(environment.segment(older, version.schema, whole=False).covered)
    return merge_of(entries, order, entries.indexes(order), elsewhere, SEGMENT_BYTES, most)


def in_segments(pieces: Iterable[Bytes], buffer: Bytes) -> Iterator[Bytes]:
    """Yield these rows again, copied into the buffer: as many as it holds, the last time what is left."""
    used = 0
    for rows in pieces:
        while len(rows):
            taken = rows[: len(buffer) - used]
            buffer[used : used + len(taken)] = taken
            used, rows = used + len(taken), rows[len(taken) :]
            if used == len(buffer):
                yield buffer
                used = 0
    if used:
        yield buffer[:used]
