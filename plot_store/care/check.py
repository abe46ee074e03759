"""Verification of every byte of a segment against its checksums, and of every index against its rows."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import BinaryIO

import numpy as np
import xxhash
from hmi_kernels.lookup import layout, ops

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.ground.errors import Damaged, NotFound, PlotStoreError
from plot_store.ground.files import convert_os_errors
from plot_store.ground.nouns import Damage, Place, Schema, SegmentInfo, VerifyReport, VersionInfo
from plot_store.reading.mapped import index_run
from plot_store.segments import format as fmt
from plot_store.segments.segment import MappedSegment, check_size

_SHOWN = 8
_UNCOVERED = "no readable index covers it"
_LOOKUP_ROWS = 1 << 16  # rows per look-up
Watch = Callable[[str, int], None]  # (segment, bytes just read); 0 bytes at the segment's beginning


def verify(environment: Environment, ref: str | None, watch: Watch | None = None) -> VerifyReport:
    """See `Store.verify`. `watch` is called for each block read; it may sleep to limit the rate."""
    damages: list[Damage] = []
    if ref is None:
        damages += [
            Damage("", f"catalogue record {k!r}")
            for k in environment.catalogue.read(CatalogueTxn.damaged_keys)
        ]
    versions = environment.catalogue.read(lambda txn: _versions(txn, ref, damages))
    for version in versions:
        environment.hold(version.id)
    try:
        seen: dict[str, SegmentInfo] = {}
        found = [(v.id, damage) for v in versions for damage in check_version(environment, v, seen, watch)]
    finally:
        for version in versions:
            environment.let_go(version.id)
    damages += _still_there(environment, found)
    return VerifyReport(len(versions), len(seen), sum(info.bytes for info in seen.values()), tuple(damages))


def _still_there(environment: Environment, found: list[tuple[str, Damage]]) -> list[Damage]:
    """Leave out what another process has collected meanwhile, which is no damage. found: with version ids.

    Rows may stay in a later version when their own version goes, with its index.
    """
    if not found:
        return []

    def read(txn: CatalogueTxn) -> tuple[set[str], set[str]]:
        return version_tree.named_segments(txn), set(txn.keys(version_tree.VERSION))

    try:
        named, ids = environment.catalogue.read(read)
    except Damaged:
        return [damage for _, damage in found]
    return [
        damage
        for version_id, damage in found
        if damage.segment in named and (damage.what != _UNCOVERED or version_id in ids)
    ]


def _versions(txn: CatalogueTxn, ref: str | None, damages: list[Damage]) -> list[VersionInfo]:
    """Return the versions to check, with their ancestors. Appends unreadable ones to `damages`."""
    if ref is None:
        waiting = txn.keys(version_tree.VERSION)
    else:
        version_tree.resolve(txn, ref)
        record = version_tree.get_ref(txn, ref)
        if record is None:
            raise NotFound(f"{ref!r} is a version id or tag: verify takes the name of a ref")
        waiting = list(record.versions)
    found: dict[str, VersionInfo] = {}
    while waiting:
        version_id = waiting.pop()
        if version_id in found:
            continue
        try:
            version = found[version_id] = version_tree.get_version(txn, version_id)
        except (Damaged, NotFound) as error:
            damages.append(Damage("", str(error)))
            continue
        if version.parent is not None:
            waiting.append(version.parent)
    return list(found.values())


def check_version(
    environment: Environment, version: VersionInfo, seen: dict[str, SegmentInfo], watch: Watch | None = None
) -> list[Damage]:
    """Return all damages of a version's own segments.

    Segments in `seen` are not checked again. The version's segments are added to it.
    """
    damages: list[Damage] = []
    opened: dict[str, MappedSegment] = {}
    fresh = {info.name for info in version.segments if info.name not in seen}
    for info in version.segments:
        seen[info.name] = info
        try:
            if info.name in fresh:
                check_bytes(environment, info, watch or _unwatched)
            segment = opened[info.name] = environment.segment(info, version.schema)
            if info.name in fresh and info.kind == "rows":
                _check_rows(segment, version.schema)
        except PlotStoreError as error:
            damages.append(Damage(info.name, str(error)))
    for info in version.segments:
        if info.kind == "index" and info.name in opened and info.name in fresh:
            try:
                _check_index(opened, info, version)
            except PlotStoreError as error:
                damages.append(Damage(info.name, str(error)))
    return damages + _uncovered(opened, version)


def _uncovered(opened: dict[str, MappedSegment], version: VersionInfo) -> list[Damage]:
    """Return a damage for each rows segment that no index covers."""
    indexes = [s for s in opened.values() if s.info.kind == "index"]
    reached = {f"{digest}.rows" for index in indexes for digest, _ in index.covers}
    lost = [s.name for s in version.segments if s.kind == "rows" and s.name not in reached]
    return [Damage(name, _UNCOVERED) for name in lost]


def _unwatched(segment: str, read: int) -> None:
    """Ignore the progress."""


def check_bytes(environment: Environment, info: SegmentInfo, watch: Watch = _unwatched) -> None:
    """Compare a segment's bytes with their block checksums and the hash in its name.

    They are read, not mapped: a bad sector then gives an error instead of a fatal signal.
    Raises Damaged, FormatTooNew, StoreIO.
    """
    whole = xxhash.xxh3_128()
    sums: list[int] = []

    def opened(place: Place) -> tuple[BinaryIO, Place] | None:
        with contextlib.suppress(FileNotFoundError):
            return open(environment.folder / place.file, "rb"), place
        return None

    watch(info.name, 0)
    with convert_os_errors(f"reading segment {info.name}"):
        there = environment.at_place(info, opened)
        if there is None:
            raise Damaged("the file is missing")
        file, place = there
        with file:
            check_size(Path(file.name), os.fstat(file.fileno()).st_size, info, place.at)
            file.seek(place.at)
            parsed = fmt.parse(file.read(fmt.HEADER_BYTES), info.name)
            if parsed.file_bytes != info.bytes:
                raise Damaged(f"it has {info.bytes} bytes, its header says {parsed.file_bytes}")
            file.seek(place.at)
            for start in range(0, parsed.checks_at, fmt.BLOCK):
                block = file.read(min(fmt.BLOCK, parsed.checks_at - start))
                sums.append(xxhash.xxh3_64_intdigest(block))
                whole.update(block)
                watch(info.name, len(block))
            tail = file.read(info.bytes - parsed.checks_at)
            whole.update(tail)
    expected = fmt.decode_checksums(tail, info.name)
    bad = [i for i, value in enumerate(sums) if value != expected[i]]
    if bad:
        raise Damaged(f"blocks {_few(bad)} of 1 MiB do not match their checksums")
    if whole.hexdigest() != info.digest:
        raise Damaged("the content does not match the hash in its name")


def _check_rows(segment: MappedSegment, schema: Schema) -> None:
    """Raises Damaged unless each row has a valid key, finite non-negative scales and a matching check."""
    order, step = segment.info.order, max(1, fmt.BLOCK // segment.layout.stride)
    for start in range(0, segment.info.count, step):
        rows = segment.rows[start : start + step]
        keys = layout.row_keys(rows, order)
        ids = layout.unpack_keys(keys, order)
        if not np.array_equal(layout.pack_keys(ids), keys) or int(ids.max(initial=0)) >= schema.vocab:
            raise Damaged(f"rows from {start} on hold keys that are not n-grams")
        scales = layout.row_scales(rows, schema.n, order, schema.window)
        if not (np.isfinite(scales) & (scales >= 0)).all():
            raise Damaged(f"rows from {start} on hold impossible scales")
        if not (sound := segment.sound(rows)).all():
            raise Damaged(f"rows {_few(start + np.flatnonzero(~sound))} do not match their checks")


def _check_index(opened: dict[str, MappedSegment], info: SegmentInfo, version: VersionInfo) -> None:
    """Raises Damaged unless the index leads to the newest row of every n-gram covered, and nowhere else."""
    run = index_run(opened, info, version, 0)
    pieces = np.array_split(run.slots, -(-run.slots.nbytes // fmt.BLOCK))
    used = sum(int((piece != np.uint64(layout.EMPTY_SLOT)).sum()) for piece in pieces)
    if used != info.count:
        raise Damaged(f"the index holds {used} n-grams, the manifest says {info.count}")
    n, dim, _, window = version.schema.shape
    table = ops.level_table([run], n, dim, window=window)
    newest = 0
    for ordinal, view in enumerate(run.segments):
        base, (count, stride) = view.rows.ctypes.data, view.rows.shape
        for start in range(0, count, _LOOKUP_ROWS):
            rows = view.rows[start : start + _LOOKUP_ROWS]
            ngrams = layout.unpack_keys(layout.row_keys(rows, info.order), info.order)
            found, _ = ops.find(table, info.order, ngrams, check=False)
            if not found.all():
                raise Damaged(f"the index misses {int((found == 0).sum())} rows of its segment {ordinal}")
            newest += int((found == base + (start + np.arange(len(rows))) * stride).sum())
    if newest != info.count:
        raise Damaged(f"{info.count - newest} entries of the index point at other rows than they should")


def _few(numbers: Iterable[int]) -> str:
    listed = list(numbers)
    return ", ".join(map(str, listed[:_SHOWN])) + (
        f" and {len(listed) - _SHOWN} more" if len(listed) > _SHOWN else ""
    )
