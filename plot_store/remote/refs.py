"""A remote's refs: read, changed by compare-and-swap, and marked while a push is under way.

A push first marks its ref, and then looks whether a collection runs. A collection first says that it runs,
and then reads all marks. So if a push and a collection meet, at least one sees the other. A collection may
remove the mark of a push that seems dead. If the push lives after all, its last step finds no mark and
changes nothing.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable

from plot_store.catalogue import records
from plot_store.ground.errors import Conflict, Damaged, NotFound, StoreIO
from plot_store.ground.nouns import VersionInfo
from plot_store.remote import format as fmt
from plot_store.remote.format import RemoteRef
from plot_store.remote.objects import Objects

_TRIES = 100  # of one change; a try fails only if another change came first


def read_ref(objects: Objects, ref: str) -> RemoteRef | None:
    """Return a ref of a remote, or None. Raises Damaged, FormatTooNew, StoreIO."""
    found = objects.get(fmt.ref_name(ref))
    return None if found is None else fmt.parse_ref(found[0], fmt.ref_name(ref))


def need_ref(objects: Objects, ref: str) -> RemoteRef:
    """Return a ref of a remote that was pushed. Raises NotFound, Damaged, FormatTooNew, StoreIO."""
    return _needed(objects, ref, read_ref(objects, ref))[0]


def _needed(objects: Objects, ref: str, found: RemoteRef | None) -> tuple[RemoteRef, str]:
    """Return the ref and the id of its current version. Raises NotFound if it has none."""
    if found is None or found.current is None:
        raise NotFound(f"there is no ref {ref!r} at {objects.place}: look at the list of refs, or push it")
    return found, found.current


def change(
    objects: Objects, ref: str, changed: Callable[[RemoteRef | None], RemoteRef | None]
) -> RemoteRef | None:
    """Change a ref by compare-and-swap, until no other change comes in between. Returns the ref after it.

    changed: gets what is there and returns what is to be there; None leaves the ref as it is. It may raise. A
    library may repeat a request that was done, and then finds the ref changed, so `changed` must recognise
    its own work. Raises Conflict, Damaged, FormatTooNew, StoreIO. After a StoreIO the change may be there, or
    may still come.
    """
    name = fmt.ref_name(ref)
    for _ in range(_TRIES):
        found = objects.get(name)
        old = None if found is None else fmt.parse_ref(found[0], name)
        new = changed(old)
        if new is None or new == old:
            return old
        if objects.swap(name, fmt.dump_ref(new), None if found is None else found[1]):
            return new
    raise Conflict(
        f"{ref} at {objects.place} changes all the time: let fewer processes push it, then try again"
    )


def remove(objects: Objects, ref: str, expect: str | None) -> str:
    """See `Remote.delete`. The object stays until a collection: no store has a removal on a condition that
    can be relied on.
    """
    by, was = uuid.uuid4().hex, ""

    def changed(found: RemoteRef | None) -> RemoteRef | None:
        nonlocal was
        if found is not None and found.by == by:
            return None
        there, was = _needed(objects, ref, found)
        if expect not in (None, was):
            raise Conflict(
                f"{ref} at {objects.place} is at version {was}, not at {expect}: look at it, then delete it "
                f"with expect={was!r}"
            )
        return there.removed(by)

    change(objects, ref, changed)
    return was


def read_version(objects: Objects, version_id: str) -> VersionInfo:
    """Return the manifest of a version. Raises Damaged (also if it is missing), StoreIO."""
    found = objects.get(fmt.version_name(version_id))
    if found is None:
        raise missing(objects, fmt.version_name(version_id))
    return fmt.parse_version(found[0], version_id)


def need_version(objects: Objects, version_id: str) -> VersionInfo:
    """Return the manifest of a version. Raises NotFound, Damaged, StoreIO."""
    if objects.size(fmt.version_name(version_id)) is None:
        raise NotFound(
            f"there is no version {version_id} at {objects.place}: push it from a store that has it"
        )
    return read_version(objects, version_id)


def need_place(objects: Objects) -> str:
    """Return the id of a remote. Raises NotFound (it is none), Damaged, FormatTooNew, StoreIO."""
    found = objects.get(fmt.MARKER)
    if found is None:
        raise NotFound(
            f"{objects.place} is not a remote of a PLOT store: push a ref to it, or fix the address"
        )
    return fmt.parse_marker(found[0])


def make_place(objects: Objects) -> str:
    """Return the id of a remote. If the place is none yet, make it one.

    Raises Damaged, FormatTooNew, StoreIO. Also raises StoreIO if the place ignores the condition of a put, as
    some servers do: two writers would lose each other's versions there.
    """
    found = objects.get(fmt.MARKER)
    if found is None:
        objects.swap(fmt.MARKER, fmt.dump_marker(uuid.uuid4().hex), None)
        found = objects.get(fmt.MARKER)
    if found is None:
        raise StoreIO(f"{objects.place} does not have what was put there a moment ago: use another place")
    place = fmt.parse_marker(found[0])
    for tag in (None, '"00000000000000000000000000000000"'):
        if objects.swap(fmt.MARKER, found[0], tag):
            raise StoreIO(
                f"{objects.place} ignores the condition of a put (If-None-Match, If-Match), so two writers "
                "could lose each other's versions: use a server that keeps it, and a newer botocore"
            )
    return place


def collection(objects: Objects) -> str | None:
    """Return what is known of the collection that runs, or None."""
    found = objects.get(fmt.COLLECTING)
    return None if found is None else found[0][:200].decode(errors="replace")


def begin_collection(objects: Objects, since: str, take_over: bool) -> None:
    """Say that a collection runs. Raises Conflict if one does already, unless it is taken over."""
    if objects.swap(fmt.COLLECTING, records.dump({"since": since}), None) or take_over:
        return
    raise Conflict(
        f"a collection of {objects.place} has not ended ({collection(objects)}): wait for it; if its "
        "process is dead, collect again with take_over=True"
    )


def end_collection(objects: Objects) -> None:
    """Say that the collection has ended."""
    objects.remove([fmt.COLLECTING])


def check_no_collection(objects: Objects) -> None:
    """Raises Conflict while a collection runs."""
    if (found := collection(objects)) is not None:
        raise Conflict(
            f"a collection of {objects.place} runs ({found}): push again when it has ended; if its process "
            "is dead, collect again with take_over=True"
        )


def missing(objects: Objects, name: str) -> Damaged:
    """Return the error for an object that others name and that is not there."""
    return Damaged(f"the object {name} is missing at {objects.place}: {fmt.CURE}")
