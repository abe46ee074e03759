"""The entries that one version stores itself, streamed in pieces for compaction and comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np
from hmi_kernels.lookup import layout, ops
from hmi_kernels.lookup.layout import Bytes
from numpy.typing import NDArray

from plot_store.environment.environment import Environment
from plot_store.ground.errors import Damaged
from plot_store.ground.nouns import Schema, SegmentInfo, VersionInfo
from plot_store.reading.mapped import index_run
from plot_store.segments import format as fmt
from plot_store.segments.mapping import read_soon
from plot_store.segments.segment import MappedSegment

PIECE_BYTES: Final = 8 << 20
Ints = NDArray[np.int64]


@dataclass(frozen=True)
class CoveringIndex:
    """An index segment, and the names of the rows segments that it covers, oldest first."""

    info: SegmentInfo
    covers: tuple[str, ...]
    view: ops.IndexRun


@dataclass(frozen=True)
class OwnEntries:
    """Mapped segments of one version, without those of its ancestors."""

    version: VersionInfo
    opened: dict[str, MappedSegment]

    @property
    def schema(self) -> Schema:
        """The version's schema."""
        return self.version.schema

    def indexes(self, order: int) -> list[CoveringIndex]:
        """Return the opened indexes of an order, oldest first."""
        return [self._covering(info) for info in self.version.indexes(order) if info.name in self.opened]

    def _covering(self, info: SegmentInfo) -> CoveringIndex:
        covers = tuple(self.opened[info.name].covered)
        return CoveringIndex(info, covers, index_run(self.opened, info, self.version, 0))

    def table(self, indexes: Sequence[CoveringIndex]) -> ops.LevelTable:
        """Return a table that finds the newest row of an n-gram in these indexes, given oldest first."""
        views, schema = [index.view for index in reversed(indexes)], self.schema
        return ops.level_table(views, schema.n, schema.dim, window=schema.window)

    def pieces(self, order: int, names: Sequence[str], table: ops.LevelTable) -> Iterator[tuple[int, Bytes]]:
        """Yield (bytes read, rows uint8 [m, stride]) of these segments, without rows that newer ones replace.

        Every row has been checked. Checks of older formats detect less, so their files are first compared
        with the hash in their name, and the rows get checks of the current format. Raises Damaged.
        """
        for name in names:
            segment = self.opened[name]
            read_soon(segment.raw)
            if segment.layout.format < fmt.FORMAT:
                segment.check_whole()
            step = max(1, PIECE_BYTES // segment.layout.stride)
            for start in range(0, segment.info.count, step):
                rows = segment.rows[start : start + step]
                segment.check(rows)  # before the keys are used
                yield rows.nbytes, with_checks(segment, rows[newest_rows(table, segment, rows)])

    def rows_at(self, order: int, addresses: Ints) -> Bytes:
        """Copy and check the rows at addresses int64 [m]. Returns uint8 [m, stride]. Raises Damaged."""
        schema = self.schema
        stride = layout.stride(schema.n, order, schema.dim, schema.code, schema.window)
        rows = np.empty((len(addresses), stride), np.uint8)
        for segment in self.opened.values():
            if segment.info.kind == "rows" and segment.info.order == order:
                start = segment.rows.ctypes.data
                here = np.flatnonzero((addresses >= start) & (addresses < start + segment.rows.nbytes))
                taken = segment.rows[(addresses[here] - start) // stride]
                segment.check(taken)
                rows[here] = with_checks(segment, taken)
        return rows


def with_checks(segment: MappedSegment, rows: Bytes) -> Bytes:
    """Return checked rows of a segment, uint8 [m, stride] (a copy), with the checks of the current format."""
    n, order = segment.layout.n, segment.layout.order
    if segment.layout.format < fmt.FORMAT:
        end = layout.header_bytes(n, order)
        rows[:, end - 8 : end] = layout.row_checks(rows, n, order).astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


def newest_rows(table: ops.LevelTable, segment: MappedSegment, rows: Bytes) -> NDArray[np.bool_]:
    """Return whether the table finds each of these mapped rows for its own n-gram: bool [m].

    It does not if a newer row replaces it. Raises Damaged for a row whose n-gram the table lacks.
    """
    order = segment.info.order
    ngrams = layout.unpack_keys(layout.row_keys(rows, order), order)
    found, _ = ops.find(table, order, ngrams, check=False)
    if not found.all():
        raise Damaged(
            f"segment {segment.info.name} holds rows that its index does not know: restore it with an import "
            "of an export, or build the version again"
        )
    here = rows.ctypes.data + np.arange(rows.shape[0], dtype=np.int64) * rows.shape[1]
    return np.asarray(found == here)


def open_entries(
    environment: Environment, version: VersionInfo, indexes: Sequence[SegmentInfo] | None = None
) -> OwnEntries:
    """Map a version's own segments. indexes: map only these indexes and the rows that they cover.

    The caller must keep the version from collection. Raises Damaged, FormatTooNew, StoreIO.
    """
    opened = {
        info.name: environment.segment(info, version.schema)
        for info in (version.segments if indexes is None else indexes)
    }
    by_name = {info.name: info for info in version.segments}
    for index in [segment for segment in opened.values() if segment.info.kind == "index"]:
        for name in index.covered:
            if name not in by_name:
                raise Damaged(
                    f"segment {name} is not in its version: restore it from an export or build it again"
                )
            if name not in opened:
                opened[name] = environment.segment(by_name[name], version.schema)
    return OwnEntries(version, opened)
