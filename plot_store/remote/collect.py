"""Collection of what no ref of a remote needs. Collections and pushes do not overlap; see `refs`."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import partial

from plot_store.care.attachments import is_digest
from plot_store.ground import names
from plot_store.ground.errors import Conflict, Damaged
from plot_store.ground.files import TEMPORARY
from plot_store.ground.nouns import VersionInfo
from plot_store.remote import erasures, refs
from plot_store.remote import format as fmt
from plot_store.remote.format import RemoteRef
from plot_store.remote.objects import Listed, Objects, threaded


@dataclass(frozen=True)
class RemoteGcReport:
    """What a collection of a remote removed, or would remove with `dry_run`."""

    dry_run: bool
    objects: tuple[str, ...]  # their names
    bytes: int
    pushes: int  # pushes that were taken for dead


def collect(
    objects: Objects, age_s: float, dry_run: bool, take_over: bool, keep: Collection[str] = ()
) -> RemoteGcReport:
    """See `Remote.collect`."""
    refs.need_place(objects)
    now = time.time()
    if dry_run:
        _, dead = _marks(objects, now - age_s)
        return _report(_unneeded(objects, now - age_s, keep), dead, dry_run=True)
    refs.begin_collection(objects, datetime.fromtimestamp(now, UTC).isoformat(timespec="seconds"), take_over)
    try:
        alive, dead = _marks(objects, now - age_s)
        if alive:
            raise Conflict(
                f"a push of {alive[0]} to {objects.place} began less than {age_s:g} s ago: collect later, or "
                "with a shorter age if it is dead"
            )
        for ref in dead:
            refs.change(objects, ref, lambda found: _without_marks(found, now - age_s))
        unneeded = _unneeded(objects, now - age_s, keep)
    except BaseException:
        refs.end_collection(objects)
        raise
    # A failed removal may still be done later. Then the place stays marked, and pushes are refused.
    objects.remove(one.name for one in unneeded)
    refs.end_collection(objects)
    return _report(unneeded, dead, dry_run=False)


def all_refs(objects: Objects) -> list[RemoteRef]:
    """Return every ref of a remote, those without a current version included."""
    listed = [one.name for one in objects.listed(fmt.REFS)]
    there = [name.removeprefix(f"{fmt.REFS}/").removesuffix(".json") for name in listed]
    ours = [
        ref
        for name, ref in zip(listed, there, strict=True)
        if name == fmt.ref_name(ref) and names.is_ref(ref)
    ]
    return [ref for ref in threaded(partial(refs.read_ref, objects), ours) if ref is not None]


def _marks(objects: Objects, before: float) -> tuple[list[str], list[str]]:
    """Return the refs with pushes that began after a time, and those with pushes that began before it."""
    found = all_refs(objects)
    alive = [ref.ref for ref in found if any(push.since > before for push in ref.pushing)]
    return alive, [ref.ref for ref in found if any(push.since <= before for push in ref.pushing)]


def _without_marks(found: RemoteRef | None, before: float) -> RemoteRef | None:
    if found is None:
        return None
    return found.without({push.push for push in found.pushing if push.since <= before})


def _unneeded(objects: Objects, before: float, keep: Collection[str]) -> list[Listed]:
    """Return the objects that are older than a time and that neither a ref nor a version in `keep` needs,
    manifests first. A ref without a version, which is not being pushed, needs no object either.

    Younger manifests stay, with what they need. Raises Damaged if a manifest that a ref needs cannot be read,
    since what it needs is not known then.
    """
    manifests = {one.name: one for one in objects.listed(fmt.VERSIONS)}
    refs_there = {one.name: one for one in objects.listed(fmt.REFS)}
    found = all_refs(objects)
    wanted = {version for ref in found for version in ref.versions}
    wanted |= {version for version in keep if fmt.version_name(version) in manifests}
    young = [_id(one.name) for one in manifests.values() if one.modified > before]
    live = _closure(objects, wanted)
    live |= _closure(objects, young, lenient=True)
    kept = {fmt.version_name(version) for version in live}
    kept |= {fmt.segment_name(info) for version in live.values() for info in version.segments}
    kept |= {fmt.erased_name(version) for version in live}
    kept |= {fmt.attachment_name(one) for ref in found for listed in ref.attached.values() for one in listed}
    left = [*manifests.values()]
    left += (one for folder in (fmt.ERASED, fmt.SEGMENTS, fmt.ATTACHED) for one in objects.listed(folder))
    ours = [one for one in left if one.name not in kept and _is_ours(one.name)]
    empty = {fmt.ref_name(ref.ref) for ref in found if ref.current is None and not ref.pushing}
    ours += [one for one in refs_there.values() if one.name in empty or one.name.endswith(TEMPORARY)]
    return [one for one in ours if one.modified <= before]


def _is_ours(name: str) -> bool:
    """Return whether the store puts objects of such names. Others are left alone."""
    folder, _, file = name.partition("/")
    if file.endswith(TEMPORARY):  # a folder's file that a killed process left half-written
        return True
    if folder == fmt.ATTACHED:
        return is_digest(file)
    if folder == fmt.ERASED:
        return names.is_id(file.removesuffix(".json"))
    return names.is_segment(file) if folder == fmt.SEGMENTS else names.is_id(_id(name))


def _closure(objects: Objects, ids: Iterable[str], *, lenient: bool = False) -> dict[str, VersionInfo]:
    """Return these versions and their ancestors, by id.

    lenient: leave out what is missing or damaged. Raises Damaged, StoreIO.
    """
    changed = erasures.listed(objects)

    def read(version_id: str) -> VersionInfo | None:
        try:
            return erasures.applied(objects, changed, refs.read_version(objects, version_id))[0]
        except Damaged:
            if not lenient:
                raise
            return None

    found: dict[str, VersionInfo] = {}
    waiting = set(ids)
    while waiting:
        new = [version for version in threaded(read, waiting) if version is not None]
        found |= {version.id: version for version in new}
        waiting = {version.parent for version in new if version.parent is not None} - found.keys()
    return found


def _id(name: str) -> str:
    return name.removeprefix(f"{fmt.VERSIONS}/").removesuffix(".json.zst")


def _report(removed: list[Listed], dead: list[str], *, dry_run: bool) -> RemoteGcReport:
    size = sum(one.bytes for one in removed)
    return RemoteGcReport(dry_run, tuple(one.name for one in removed), size, len(dead))
