"""Garbage collection by reachability. It reads only small records, and the manifests of dead versions.

It keeps each ref's current version and its newest or youngest ones; versions that are tagged, pinned, leased,
held by readers of this process, extended by builds in progress, or named by the caller; and all their
ancestors. It deletes the records first, in one synced transaction, and then the files. So a crash between the
two leaves orphaned files, never a record without its file. Readers of other processes keep their files
mapped, so unlinking does not affect them. To keep a version for another process, pin or lease it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from dataclasses import dataclass, field

from plot_store.catalogue import creation, tags, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import RefRecord
from plot_store.catalogue.version_tree import BUILD, REF, VERSION
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.files import TEMPORARY
from plot_store.ground.nouns import GcReport, SegmentInfo
from plot_store.writing import builds, promote

DAY_S = 86400.0
Reasons = dict[str, list[str]]  # version id -> why it stays


@dataclass(frozen=True)
class GcPolicy:
    """The parameters of a collection; see `Store.gc`."""

    keep_versions: int
    keep_days: float
    orphan_age_s: float
    build_age_s: float
    keep: frozenset[str]


@dataclass(frozen=True)
class _Dead:
    """The result of a reachability analysis: what to remove, and why the rest stays."""

    versions: tuple[str, ...]  # ids of unreachable versions
    builds: tuple[str, ...]  # ids of abandoned builds
    keys: tuple[str, ...]  # keys of obsolete records: expired leases, old tombstones
    segments: dict[str, SegmentInfo]  # unreachable segments by name
    refs: dict[str, RefRecord]  # the new records of refs that lose versions
    kept: dict[str, tuple[str, ...]]  # the reasons for each version that stays


@dataclass
class _Builds:
    """The builds: which are abandoned, and which segments are held or no longer held."""

    dead: list[str] = field(default_factory=list)  # ids of abandoned builds
    segments: dict[str, SegmentInfo] = field(default_factory=dict)  # segments of abandoned builds, by name
    held: set[str] = field(default_factory=set)  # names of the segments of the other builds


def collect(environment: Environment, policy: GcPolicy, *, dry_run: bool) -> GcReport:
    """Run one collection. Raises StoreIO, Damaged."""
    now = time.time()

    def find(txn: CatalogueTxn) -> _Dead:
        return _unreachable(txn, environment.held(), policy, now)

    def drop(txn: CatalogueTxn) -> _Dead:
        dead = find(txn)
        drop_records(txn, dead, now)
        return dead

    dead = environment.catalogue.read(find) if dry_run else environment.write_freeing(drop)
    oldest = now - policy.orphan_age_s
    sizes = {
        **_orphans(environment, dead, oldest),
        **{name: info.bytes for name, info in dead.segments.items()},
    }
    unfinished = creation.unfinished(environment.path, oldest)
    gone = sorted({**sizes, **unfinished})
    if not dry_run:
        gone = unlink_files(environment, sorted(sizes))
        gone += [name for name in sorted(unfinished) if creation.remove(environment.path / name)]
        environment.keep_reserve()
    sizes.update(unfinished)
    return GcReport(
        dry_run,
        dead.versions,
        tuple(name for name in gone if name in dead.segments),
        tuple(name for name in gone if name not in dead.segments),
        dead.builds,
        sum(sizes[name] for name in gone),
        dead.kept,
    )


def drop_records(txn: CatalogueTxn, dead: _Dead, now: float) -> None:
    """First step: remove from the catalogue every record of what is to be removed."""
    for ref, record in dead.refs.items():
        version_tree.put_ref(txn, ref, record)
    for version_id in dead.versions:
        version_tree.drop_version(txn, version_id, now)
    for build in dead.builds:
        txn.delete(BUILD + build)
    for key in dead.keys:
        txn.delete(key)


def unlink_files(environment: Environment, gone: list[str]) -> list[str]:
    """Second step: unlink the files, except those that a record names by now. Returns the names unlinked."""
    return promote.sweep(environment, gone) if gone else []


def _unreachable(txn: CatalogueTxn, in_use: set[str], policy: GcPolicy, now: float) -> _Dead:
    """Find what is unreachable. in_use: ids of versions that readers of this process hold."""
    reasons: Reasons = defaultdict(list)
    _held_by_name(txn, reasons, now)
    shorter = _retained(txn, reasons, policy, now)
    for version_id in in_use:
        reasons[version_id].append("a reader of this process")
    for version_id in policy.keep:
        reasons[version_id].append("named by the caller")
    found = _builds(txn, reasons, policy, now)
    live = version_tree.closure(txn, reasons)
    for version_id, node in live.items():
        if node.parent in live:
            reasons[node.parent].append(f"the parent of {version_id}")
    dead_versions = tuple(v for v in txn.keys(VERSION) if v not in live)
    segments = dict(found.segments)
    for version_id in dead_versions:
        segments.update({s.name: s for s in version_tree.get_version(txn, version_id).segments})
    if segments:
        held = found.held.union(*(version_tree.segment_names(txn, v) for v in live))
        segments = {name: info for name, info in segments.items() if name not in held}
    kept = {version_id: tuple(dict.fromkeys(reasons[version_id])) for version_id in live}
    keys = (*pins.expired(txn, now), *version_tree.old_tombstones(txn, now - policy.orphan_age_s))
    return _Dead(dead_versions, tuple(found.dead), keys, segments, shorter, kept)


def _held_by_name(txn: CatalogueTxn, reasons: Reasons, now: float) -> None:
    """Add the versions that are tagged, pinned or leased to `reasons`."""
    for tag, version_id in tags.listed(txn).items():
        reasons[version_id].append(f"tag {tag}")
    for pin in pins.pins(txn):
        reasons[pin.version].append(f"pinned by {pin.owner}")
    for lease in pins.leases(txn, now):
        reasons[lease.version].append(f"leased by {lease.owner}")


def _retained(txn: CatalogueTxn, reasons: Reasons, policy: GcPolicy, now: float) -> dict[str, RefRecord]:
    """Add each ref's retained versions to `reasons`. Returns the new records of refs that lose versions.

    Versions that are already in `reasons` stay in their ref's list.
    """
    shorter: dict[str, RefRecord] = {}
    for ref in txn.keys(REF):
        record = version_tree.get_ref(txn, ref)
        assert record is not None
        kept: list[str] = []
        for place, version_id in enumerate(record.versions):
            why = []
            if version_id == record.current:
                why.append(f"current of {ref}")
            if place < policy.keep_versions:
                why.append(f"one of the newest {policy.keep_versions} of {ref}")
            if (
                policy.keep_days
                and version_tree.get_node(txn, version_id).at > now - policy.keep_days * DAY_S
            ):
                why.append(f"younger than {policy.keep_days:g} days")
            if why:
                reasons[version_id] += why
            if version_id in reasons:
                kept.append(version_id)
        if len(kept) < len(record.versions):
            shorter[ref] = RefRecord(record.current, tuple(kept))
    return shorter


def _builds(txn: CatalogueTxn, reasons: Reasons, policy: GcPolicy, now: float) -> _Builds:
    """Add the parents and bases of builds in progress to `reasons`.

    A build that nobody can resume counts as abandoned as soon as its files would count as orphans.
    """
    found = _Builds()
    for build in txn.keys(BUILD):
        record = version_tree.get_build(txn, build)
        assert record is not None
        age_s = (
            min(policy.build_age_s, policy.orphan_age_s) if builds.is_ephemeral(build) else policy.build_age_s
        )
        if record.touched < now - age_s:
            found.dead.append(build)
            found.segments.update({s.name: s for s in (*record.segments, *(record.sealed or ()))})
            continue
        found.held |= record.names
        for version_id in (record.parent, record.base):
            if version_id is not None:
                reasons[version_id].append(f"the base of build {build}")
    return found


def _orphans(environment: Environment, dead: _Dead, oldest: float) -> dict[str, int]:
    """Find old segment and temporary files that no record names. Returns sizes by name.

    Files whose names the store does not use are never touched.
    """
    named = environment.catalogue.read(version_tree.named_segments)
    found: dict[str, int] = {}
    with os.scandir(environment.folder) as entries:
        for entry in entries:
            ours = names.is_segment(entry.name) or entry.name.endswith(TEMPORARY)
            if not ours or entry.name in named or entry.name in dead.segments:
                continue
            with contextlib.suppress(FileNotFoundError):  # another process may rename or remove it meanwhile
                status = entry.stat()
                if status.st_mtime < oldest:
                    found[entry.name] = status.st_size
    return found
