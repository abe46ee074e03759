"""`Remote`: what lies in object storage, beside any store."""

from __future__ import annotations

import os
from collections.abc import Collection
from typing import Final

from plot_store.ground import names
from plot_store.ground.arguments import check_number
from plot_store.ground.errors import Invalid
from plot_store.remote import format as fmt
from plot_store.remote import refs
from plot_store.remote.collect import RemoteGcReport, all_refs, collect
from plot_store.remote.objects import open_objects

DAY_S: Final = 86400.0


class Remote:
    """A place to which stores push refs, and from which they pull them. `Store.push` makes it.

    url: a folder, "s3://bucket/prefix" or "memory://…". Credentials come from the environment or from the
    files that the protocol's library reads; a URL that has some is refused. Raises Invalid.
    """

    def __init__(self, url: str | os.PathLike[str]) -> None:
        self._objects = open_objects(url)

    @property
    def place(self) -> str:
        """The address, without credentials."""
        return self._objects.place

    def refs(self) -> dict[str, str]:
        """Return the id of every ref's current version. Raises NotFound, Damaged, FormatTooNew, StoreIO."""
        refs.need_place(self._objects)
        return {ref.ref: ref.current for ref in all_refs(self._objects) if ref.current is not None}

    def has(self, version_id: str) -> bool:
        """Return whether a version is there, whether or not a ref has it. Raises Invalid, StoreIO."""
        if not names.is_id(version_id):
            raise Invalid(f"{version_id!r} is not a version id: take ids of versions")
        return self._objects.size(fmt.version_name(version_id)) is not None

    def collecting(self) -> bool:
        """Return whether a collection runs, which refuses pushes. Raises StoreIO."""
        return refs.collection(self._objects) is not None

    def delete(self, ref: str, *, expect: str | None = None) -> str:
        """Remove a ref. `collect` frees its objects. Returns the id of the version that it was at.

        expect: the version at which it must be. A push under way makes the ref anew, and so does a later one.
        Raises NotFound, Conflict (it is at another version), Invalid, Damaged, FormatTooNew, StoreIO. After a
        StoreIO the ref may be gone: look at `refs`.
        """
        names.check_ref(ref)
        refs.need_place(self._objects)
        return refs.remove(self._objects, ref, expect)

    def collect(
        self,
        *,
        age_s: float = DAY_S,
        dry_run: bool = False,
        take_over: bool = False,
        keep: Collection[str] = (),
    ) -> RemoteGcReport:
        """Remove all objects that no ref needs and that are older than age_s seconds.

        Each ref needs its current version, the seven pushed before it, and all their ancestors. keep: ids of
        versions that stay with their ancestors, too; those that are not there count for nothing. Pushes are
        refused meanwhile. A push that began longer ago than age_s counts as dead; if it lives, it begins
        anew. take_over: another collection has not ended, and its process is dead. Raises Conflict (a push or
        a collection is under way), NotFound, Invalid, Damaged, FormatTooNew, StoreIO.
        """
        check_number("age_s", age_s, "pass seconds, 0 or more", least=0)
        for version in keep:
            if not names.is_id(version):
                raise Invalid(f"keep holds {version!r}, which is not a version id: take ids of versions")
        return collect(self._objects, age_s, dry_run, take_over, keep)
