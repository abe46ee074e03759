"""A mapped chain of versions: its segments, and the table by which kernels find their rows."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from hmi_kernels.lookup import ops
from hmi_kernels.lookup.layout import PLAIN_SALT, REACH

from plot_store.environment.environment import Environment
from plot_store.ground.errors import Damaged
from plot_store.ground.nouns import SegmentInfo, VersionInfo
from plot_store.reading.backoff import Step
from plot_store.reading.read_ahead import ReadAhead
from plot_store.segments import format as fmt
from plot_store.segments.segment import MappedSegment


@dataclass(frozen=True)
class MappedChain:
    """The mapped segments of a version and its ancestors, and their table."""

    table: ops.LevelTable
    read_ahead: ReadAhead
    segments: tuple[MappedSegment, ...]

    def check_sizes(self) -> None:
        """Raises Damaged if the file of a segment has been cut since it was mapped."""
        for segment in self.segments:
            segment.check_size()


def damaged(mapped: MappedChain, error: ops.DamagedRow) -> Damaged:
    """Convert a kernel's DamagedRow to an error that names the segment's file."""
    views = [view for run in mapped.table.runs for view in run.segments]
    name = next(segment.info.name for segment in mapped.segments if segment.view is views[error.segment])
    return Damaged(
        f"row {error.row} of segment {name} is damaged: restore it with an import of an export, or build the "
        "version again; `verify` lists everything that is damaged"
    )


def map_chain(
    environment: Environment, chain: list[VersionInfo], steps: list[Step] | None
) -> tuple[MappedChain | None, str]:
    """Map a chain of versions, nearest first. steps: a back-off plan; see `steps_of`.

    Returns (the mapped chain, ""), or (None, the name of a segment) if that segment's file is missing.
    Raises Damaged, FormatTooNew, StoreIO.
    """
    runs: list[ops.IndexRun] = []
    segments: list[MappedSegment] = []
    places = environment.places(info for version in chain for info in version.segments)
    for depth, version in enumerate(chain):
        opened: dict[str, MappedSegment] = {}
        for info in version.segments:
            look = partial(environment.segments.get, info, version.schema)
            segment = look(places[info.name]) or environment.at_place(info, look)  # it may have moved
            if segment is None:
                return None, info.name
            opened[info.name] = segment
        newest_first = [s for s in reversed(version.segments) if s.kind == "index"]
        runs.extend(index_run(opened, info, version, depth) for info in newest_first)
        segments += opened.values()
    schema = chain[0].schema
    table = ops.level_table(runs, schema.n, schema.dim, steps, schema.window)
    return MappedChain(table, ReadAhead(table), tuple(segments)), ""


def index_run(
    opened: dict[str, MappedSegment], info: SegmentInfo, version: VersionInfo, depth: int
) -> ops.IndexRun:
    """Return the kernels' view of an index and the rows it covers. Raises Damaged if they do not match."""
    index = opened[info.name]
    shift = index.layout.shift
    views: list[ops.RowsView] = []
    if index.layout.covers > len(opened):
        raise _unfit(info)
    for digest, count in index.covers:
        segment = opened.get(f"{digest}.rows")
        if (
            segment is None
            or segment.info.order != info.order
            or segment.info.count != count
            or count > 1 << shift
        ):
            raise _unfit(info)
        assert segment.view is not None
        views.append(segment.view)
    direct = index.layout.kind == fmt.DIRECT
    salt, reach = (index.layout.salt, REACH) if index.layout.salt else (PLAIN_SALT, index.layout.cap)
    return ops.IndexRun(
        info.order,
        depth,
        version.schema.code,
        index.slots,
        shift,
        direct,
        tuple(views),
        salt,
        reach,
        lambda: index.filter,
    )


def _unfit(index: SegmentInfo) -> Damaged:
    return Damaged(f"index {index.name} does not match its rows: restore it from an export or build it again")
