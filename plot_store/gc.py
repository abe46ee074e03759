"""Garbage collection by reachability, from metadata alone.

Roots: the newest versions of each ref, those that the caller names, what readers of this process pin, builds in
progress; and all their ancestors. First the records go, in one synced transaction, then the files: a crash between
leaves orphans, never a record without its file. Readers of other processes keep their files mapped, so unlinking
does not hurt them.
"""

from __future__ import annotations

import contextlib
import os
import time
from dataclasses import dataclass

from plot_store import names, promote, version_tree
from plot_store.catalogue import Txn
from plot_store.environment import Environment
from plot_store.files import TEMPORARY
from plot_store.nouns import GcReport, SegmentInfo
from plot_store.records import RefRecord
from plot_store.version_tree import BUILD, COLLECTED, REF, VERSION


@dataclass(frozen=True)
class _Dead:
    """What is no longer reachable."""

    versions: tuple[str, ...]
    builds: tuple[str, ...]
    segments: dict[str, SegmentInfo]  # by name
    refs: dict[str, RefRecord]  # those whose list gets shorter, as it will be


def collect(
    environment: Environment,
    *,
    dry_run: bool,
    orphan_age_s: float,
    build_age_s: float,
    keep_versions: int,
    keep: frozenset[str] = frozenset(),
) -> GcReport:
    """One collection. Raises StoreIO, Damaged."""
    now = time.time()

    def find(txn: Txn) -> _Dead:
        return _unreachable(txn, environment.pins() | keep, keep_versions, now - build_age_s)

    def drop(txn: Txn) -> _Dead:
        dead = find(txn)
        for ref, record in dead.refs.items():
            version_tree.put_ref(txn, ref, record)
        for version_id in dead.versions:
            txn.put(COLLECTED + version_id, {"at": now})
            txn.delete(VERSION + version_id)
        for build in dead.builds:
            txn.delete(BUILD + build)
        return dead

    dead = environment.catalogue.read(find) if dry_run else environment.catalogue.write(drop)
    orphans = _orphans(environment, dead, now - orphan_age_s)
    sizes = {**orphans, **{name: info.bytes for name, info in dead.segments.items()}}
    gone = sorted(sizes) if dry_run else promote.sweep(environment, sorted(sizes))
    return GcReport(
        dry_run,
        dead.versions,
        tuple(name for name in gone if name in dead.segments),
        tuple(name for name in gone if name not in dead.segments),
        dead.builds,
        sum(sizes[name] for name in gone),
    )


def _unreachable(txn: Txn, pins: set[str], keep_versions: int, oldest_build: float) -> _Dead:
    roots = set(pins)
    shorter: dict[str, RefRecord] = {}
    for ref in txn.keys(REF):
        record = version_tree.get_ref(txn, ref)
        assert record is not None
        kept = tuple(v for i, v in enumerate(record.versions) if i < keep_versions or v == record.current)
        roots.update(kept)
        if kept != record.versions:
            shorter[ref] = RefRecord(record.current, kept)
    dead_builds: list[str] = []
    segments: dict[str, SegmentInfo] = {}
    held: set[str] = set()
    for build in txn.keys(BUILD):
        lease = version_tree.get_build(txn, build)
        assert lease is not None
        if lease.touched < oldest_build:
            dead_builds.append(build)
            segments.update({s.name: s for s in lease.segments})
        else:
            roots.update(v for v in (lease.parent, lease.base) if v is not None)
            held.update(s.name for s in lease.segments)
    live = version_tree.closure(txn, roots)
    dead_versions = tuple(v for v in txn.keys(VERSION) if v not in live)
    for version_id in dead_versions:
        segments.update({s.name: s for s in version_tree.get_version(txn, version_id).segments})
    held.update(s.name for version in live.values() for s in version.segments)
    dead_segments = {name: info for name, info in segments.items() if name not in held}
    return _Dead(dead_versions, tuple(dead_builds), dead_segments, shorter)


def _orphans(environment: Environment, dead: _Dead, oldest: float) -> dict[str, int]:
    """Old files of ours that no record names, with their sizes. Files of other names are not ours to touch."""
    named = environment.catalogue.read(version_tree.named_segments)
    found: dict[str, int] = {}
    with os.scandir(environment.folder) as entries:
        for entry in entries:
            ours = names.is_segment(entry.name) or entry.name.endswith(TEMPORARY)
            if not ours or entry.name in named or entry.name in dead.segments:
                continue
            with contextlib.suppress(FileNotFoundError):  # another process may name or remove it meanwhile
                status = entry.stat()
                if status.st_mtime < oldest:
                    found[entry.name] = status.st_size
    return found
