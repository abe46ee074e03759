"""Planning a version's list of segments and writing the indexes it lacks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from kernels import ops
from kernels.layout import ORDERS, Keys
from plot_store import format as fmt
from plot_store.environment import Environment
from plot_store.errors import Damaged, Invalid
from plot_store.nouns import Schema, SegmentInfo, VersionInfo
from plot_store.promote import discard
from plot_store.records import BuildRecord
from plot_store.segment import Draft, write_segment

MAX_RUNS: Final = 4  # indexes of one order in one version; a further one makes one of all


@dataclass(frozen=True)
class Plan:
    """What a publication will contain, its new index files still under temporary names."""

    segments: tuple[SegmentInfo, ...]
    drafts: tuple[Draft, ...]


def plan(environment: Environment, record: BuildRecord, base: VersionInfo | None, known: Mapping[str, Keys]) -> Plan:
    """Index the build's segments; an extending build keeps the base's indexes while they are few.

    known: keys of segments by name, so that fresh ones need not be read again. Raises StoreFull, StoreIO, Damaged.
    """
    old = [] if base is None else list(base.segments)
    drafts: list[Draft] = []
    try:
        for order in ORDERS:
            fresh = [s for s in record.segments if s.order == order]
            runs = [s for s in old if s.order == order and s.kind == "index"]
            covered = fresh
            if fresh and len(runs) >= MAX_RUNS:
                covered = [s for s in old if s.order == order and s.kind == "rows"] + fresh
                old = [s for s in old if s not in runs]
            if fresh:
                drafts.append(_write_index(environment, record.schema, order, _last_of_each(covered), known))
    except BaseException:
        discard(drafts)
        raise
    segments = _last_of_each([*old, *record.segments, *(draft.info for draft in drafts)])
    return Plan(tuple(segments), tuple(drafts))


def _last_of_each(segments: list[SegmentInfo]) -> list[SegmentInfo]:
    """Without repetitions: identical content has one name, and its newest place decides what wins."""
    newest = {segment.name: place for place, segment in enumerate(segments)}
    return [segment for place, segment in enumerate(segments) if newest[segment.name] == place]


def _write_index(
    environment: Environment, schema: Schema, order: int, covered: list[SegmentInfo], known: Mapping[str, Keys]
) -> Draft:
    keys = [known[s.name] if s.name in known else _read_keys(environment, s, schema) for s in covered]
    try:
        slots, shift, distinct = ops.build_index(keys)
    except ValueError as error:
        raise Invalid(f"{error} (order {order}): open the writer with larger segment_bytes") from error
    assert slots.size > distinct  # a free slot ends every probe
    base = fmt.Layout(
        fmt.INDEX, order, schema.code, schema.dim, schema.vocab, distinct, shift, slots.size, len(covered)
    )
    covers = [(segment.digest, segment.count) for segment in covered]
    return write_segment(environment.folder, base, slots.data, covers)


def _read_keys(environment: Environment, info: SegmentInfo, schema: Schema) -> Keys:
    segment = environment.segments.get(info, schema)
    if segment is None:
        raise Damaged(f"segment {info.name} of the build is missing: abort the build and start it again")
    return segment.keys
