"""Garbage collection by reachability, in short write transactions. It reads only small records.

It keeps each ref's current version and its newest or youngest ones; versions that are tagged, pinned, leased,
held by readers of this process, extended by builds in progress, or named by the caller; and all their
ancestors.

What is unreachable is found in a snapshot, without the write lock. Write transactions of a few milliseconds
then remove it. Each first looks at what was recorded since the snapshot (`catalogue.changes`): whatever a new
or changed ref, tag, pin, lease or build keeps, new versions, and all their ancestors stay. Versions go before
their ancestors, each together with its place in its ref's list. So wherever a collection ends, no version
lacks an ancestor, and no list names a version that is gone.

Files go last, if no record names them. So a crash in between leaves orphaned files, never a record without
its file. Readers of other processes keep their files mapped, so unlinking does not affect them. To keep a
version for another process, pin or lease it.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import ClassVar, Final

from plot_store.catalogue import changes, creation, places, tags, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.changes import Changes, Seen
from plot_store.catalogue.records import Node, RefRecord
from plot_store.catalogue.version_tree import BUILD, MAX_DEPTH, REF, TAG, VERSION
from plot_store.database.database import give_way
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.files import TEMPORARY
from plot_store.ground.nouns import GcReport
from plot_store.writing import builds, promote

DAY_S: Final = 86400.0
ROOTS: Final = (REF, TAG, pins.PIN, pins.LEASE, BUILD)  # the records that keep versions
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
class _Obsolete:
    """A record to remove, of an abandoned build say, if its bytes are still those that were judged."""

    key: str
    raw: bytes
    dead: ClassVar[bool] = True


@dataclass(frozen=True)
class _Leaving:
    """A version that leaves its ref's list. Its records go too, unless one that stays descends from it."""

    version: str
    ref: str | None  # the ref whose list has it
    dead: bool


_Step = _Obsolete | _Leaving


@dataclass(frozen=True)
class _Plan:
    """What a snapshot showed."""

    steps: tuple[_Step, ...]  # what to remove from the catalogue, in order
    segments: frozenset[str]  # names of the segments of dead versions and builds
    strays: frozenset[str]  # names of other segments that no record names any more
    doomed: frozenset[str]  # names of the recorded files that no segment needs any more
    needed: frozenset[str]  # names of the files of all others
    kept: dict[str, tuple[str, ...]]  # the reasons for each version that stays
    seen: Seen


@dataclass(frozen=True)
class _Progress:
    """How far the removal of records has come."""

    steps: tuple[_Step, ...]  # those to come
    seen: Seen
    revived: frozenset[str] = frozenset()  # ids of the versions kept by what was recorded meanwhile
    gone: tuple[str, ...] = ()  # ids of removed versions, keys of other removed records


@dataclass
class _Builds:
    """The builds: which are abandoned, and which segments are held or no longer held."""

    dead: list[str] = field(default_factory=list)  # ids of abandoned builds
    segments: set[str] = field(default_factory=set)  # names of the segments of abandoned builds
    held: set[str] = field(default_factory=set)  # names of the segments of the other builds


def collect(environment: Environment, policy: GcPolicy, *, dry_run: bool) -> GcReport:
    """Run one collection. Raises StoreIO, Damaged."""
    now = time.time()
    plan = environment.catalogue.read(lambda txn: _plan(txn, environment.held(), policy, now))
    oldest = now - policy.orphan_age_s
    sizes, orphans = _files(environment, plan, oldest)
    unfinished = creation.unfinished(environment.path, oldest)
    kept = dict(plan.kept)
    if dry_run:
        removed = [
            step.key if isinstance(step, _Obsolete) else step.version for step in plan.steps if step.dead
        ]
        swept = promote.Swept((*plan.segments, *plan.strays), (*sizes,))
        cleared = [*unfinished]
    else:
        end = drop_records(environment, plan, policy, now)
        removed = list(end.gone)
        kept.update(dict.fromkeys(end.revived - kept.keys(), ("named since the collection began",)))
        swept = promote.sweep(environment, sorted(plan.segments | plan.strays), sorted(sizes))
        cleared = [name for name in unfinished if creation.remove(environment.path / name)]
        environment.keep_reserve()
    sizes.update(unfinished)
    return GcReport(
        dry_run,
        tuple(sorted(filter(names.is_id, removed))),
        tuple(sorted(plan.segments.intersection(swept.segments))),
        tuple(sorted([*orphans.intersection(swept.files), *cleared])),
        tuple(sorted(key.removeprefix(BUILD) for key in removed if key.startswith(BUILD))),
        sum(sizes[name] for name in (*swept.files, *cleared) if name in sizes),
        kept,
    )


def drop_records(environment: Environment, plan: _Plan, policy: GcPolicy, now: float) -> _Progress:
    """Remove the records of what is to be removed, except for what has come to be needed."""
    done = _Progress(plan.steps, plan.seen)

    def some(txn: CatalogueTxn) -> _Progress:
        return _drop_some(txn, done, environment.held() - plan.kept.keys(), policy, now)

    while done.steps:
        done = environment.write_freeing(some)
        if done.steps:
            give_way()
    return done


def _drop_some(
    txn: CatalogueTxn, before: _Progress, in_use: set[str], policy: GcPolicy, now: float
) -> _Progress:
    """Do one transaction's share of the steps. It may run again, so it changes nothing but the catalogue."""
    changed = changes.since(txn, before.seen)
    revived = before.revived | _revived(txn, changed, in_use, policy)
    done, gone, leaving, own = 0, list(before.gone), defaultdict[str, set[str]](set), list[str]()
    for step in changes.briefly(before.steps):
        done += 1
        if isinstance(step, _Obsolete):
            if txn.raw(step.key) == step.raw:
                txn.delete(step.key)
                gone.append(step.key)
        elif step.version not in revived:
            if step.ref is not None:
                leaving[step.ref].add(step.version)
            if step.dead and txn.has(VERSION + step.version):
                version_tree.drop_version(txn, step.version, now)
                gone.append(step.version)
                own.append(VERSION + step.version)
    seen = changes.with_own(txn, changed.seen, [*_shorten(txn, leaving), *own])
    return _Progress(before.steps[done:], seen, revived, tuple(gone))


def _shorten(txn: CatalogueTxn, leaving: Mapping[str, set[str]]) -> list[str]:
    """Take versions off the lists of their refs. Returns the keys of the records written."""
    written = []
    for ref, ids in leaving.items():
        record = version_tree.get_ref(txn, ref)
        if record is not None:  # otherwise the ref was deleted meanwhile
            kept = tuple(version_id for version_id in record.versions if version_id not in ids)
            version_tree.put_ref(txn, ref, RefRecord(record.current, kept))
            written.append(REF + ref)
    return written


def _revived(txn: CatalogueTxn, changed: Changes, in_use: set[str], policy: GcPolicy) -> frozenset[str]:
    """Return the versions that new and changed records keep, ancestors included.

    A version of a changed ref that is neither new nor current nor among the newest keeps its verdict.
    """
    ids = {*changed.versions, *in_use}
    for key in changed.keys:
        if key.startswith(REF):
            record = version_tree.need_ref(txn, key.removeprefix(REF))
            ids |= {record.current, *record.versions[: policy.keep_versions]}
        elif key.startswith(BUILD):
            build = version_tree.get_build(txn, key.removeprefix(BUILD))
            assert build is not None
            ids |= {version_id for version_id in (build.parent, build.base) if version_id is not None}
        elif key.startswith(TAG):
            ids.add(version_tree.resolve_id(txn, key.removeprefix(TAG)))
        else:
            ids.add(pins.held_version(txn, key))
    return frozenset(version_tree.closure(txn, ids))


def _plan(txn: CatalogueTxn, in_use: set[str], policy: GcPolicy, now: float) -> _Plan:
    """Find what is unreachable. in_use: ids of versions that readers of this process hold."""
    seen = changes.look(txn, ROOTS)
    reasons: Reasons = defaultdict(list)
    _held_by_name(txn, reasons, now)
    leaving = _retained(txn, reasons, policy, now)
    for version_id in in_use:
        reasons[version_id].append("a reader of this process")
    for version_id in policy.keep:
        reasons[version_id].append("named by the caller")
    found = _builds(txn, reasons, policy, now)
    live = version_tree.closure(txn, reasons)
    for version_id, node in live.items():
        if node.parent in live:
            reasons[node.parent].append(f"the parent of {version_id}")
    versions = txn.keys(VERSION)
    dead = [version_id for version_id in versions if version_id not in live]
    of_live, of_dead = set(found.held), set(found.segments)
    for version_id in versions:
        (of_live if version_id in live else of_dead).update(version_tree.segment_names(txn, version_id))
    obsolete = (
        *(BUILD + build for build in found.dead),
        *pins.expired(txn, now),
        *version_tree.old_tombstones(txn, now - policy.orphan_age_s),
    )
    steps: list[_Step] = [_Obsolete(key, raw) for key in obsolete if (raw := txn.raw(key)) is not None]
    steps += _in_order(txn, leaving, dead, live)
    kept = {version_id: tuple(dict.fromkeys(reasons[version_id])) for version_id in live}
    lie_in = places.recorded(txn)
    lost, strays = of_dead - of_live, lie_in.keys() - of_live - of_dead
    needed = {lie_in.get(name, name) for name in of_live}
    # Nor is a file needed whose segments were published again and now lie elsewhere.
    doomed = {*txn.keys(places.FILE), *lie_in, *(lie_in.get(name, name) for name in lost | strays)} - needed
    return _Plan(
        tuple(steps), frozenset(lost), frozenset(strays), frozenset(doomed), frozenset(needed), kept, seen
    )


def _in_order(
    txn: CatalogueTxn, leaving: dict[str, str], dead: Sequence[str], live: Mapping[str, Node]
) -> list[_Leaving]:
    """Return the versions that go, descendants first. Those of one depth go in the order of `leaving`."""
    parents = {version_id: node.parent for version_id, node in live.items()}
    parents |= {version_id: version_tree.get_node(txn, version_id).parent for version_id in dead}

    def depth(version_id: str) -> int:
        found, parent = 0, parents.get(version_id)
        while parent is not None and found < MAX_DEPTH:
            found, parent = found + 1, parents.get(parent)
        return found

    return [
        _Leaving(version_id, leaving.get(version_id), version_id not in live)
        for version_id in sorted(dict.fromkeys([*leaving, *dead]), key=depth, reverse=True)
    ]


def _held_by_name(txn: CatalogueTxn, reasons: Reasons, now: float) -> None:
    """Add the versions that are tagged, pinned or leased to `reasons`."""
    for tag, version_id in tags.listed(txn).items():
        reasons[version_id].append(f"tag {tag}")
    for pin in pins.pins(txn):
        reasons[pin.version].append(f"pinned by {pin.owner}")
    for lease in pins.leases(txn, now):
        reasons[lease.version].append(f"leased by {lease.owner}")


def _retained(txn: CatalogueTxn, reasons: Reasons, policy: GcPolicy, now: float) -> dict[str, str]:
    """Add each ref's retained versions to `reasons`. Returns {id: ref} of those that leave their ref's list,
    oldest first. Versions that are already in `reasons` stay in it.
    """
    leaving: dict[str, str] = {}
    for ref in txn.keys(REF):
        record = version_tree.get_ref(txn, ref)
        assert record is not None
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
        leaving.update({v: ref for v in reversed(record.versions) if v not in reasons})
    return leaving


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
            found.segments |= record.names
            continue
        found.held |= record.names
        for version_id in (record.parent, record.base):
            if version_id is not None:
                reasons[version_id].append(f"the base of build {build}")
    return found


def _files(environment: Environment, plan: _Plan, oldest: float) -> tuple[dict[str, int], set[str]]:
    """Return the sizes of the files that go, by name, and the names of the orphans among them.

    An orphan is old, and no record names it. Files whose names the store does not use are never touched.
    """
    found, orphans = dict[str, int](), set[str]()
    with os.scandir(environment.folder) as entries:
        for entry in entries:
            ours = names.is_file(entry.name) or entry.name.endswith(TEMPORARY)
            if not ours or entry.name in plan.needed:
                continue
            with contextlib.suppress(FileNotFoundError):  # another process may rename or remove it meanwhile
                status = entry.stat()
                if entry.name in plan.doomed:
                    found[entry.name] = status.st_size
                elif status.st_mtime < oldest:
                    found[entry.name] = status.st_size
                    orphans.add(entry.name)
    # A shared file that is not there, after a crash say: its record goes.
    found |= {name: 0 for name in plan.doomed - found.keys() if not names.is_segment(name)}
    return found, orphans
