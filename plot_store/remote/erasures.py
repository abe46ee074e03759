"""Erasures at a remote: for a version from which n-grams were erased, an object lists what stands for its
segments. The manifest stays as it is. A version without such an object has all that was published.

Only the version's own list counts. So a version that another store pushed stays whole, although it shares a
segment with one from which n-grams were erased.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from plot_store.catalogue import erased
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.ground import names
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import VersionInfo
from plot_store.remote import format as fmt
from plot_store.remote.objects import Objects


def listed(objects: Objects) -> frozenset[str]:
    """Return the ids of the versions that have such an object."""
    found = (one.name.rpartition("/")[2].removesuffix(".json") for one in objects.listed(fmt.ERASED))
    return frozenset(name for name in found if names.is_id(name))


def applied(objects: Objects, ids: frozenset[str], version: VersionInfo) -> VersionInfo:
    """Return a version with what stands for its segments at the remote. ids: as `listed` returns them.

    Raises Damaged, FormatTooNew, StoreIO.
    """
    return _read(objects, version)[0] if version.id in ids else _published(version)


class Erasing:
    """What a push is to say of the erasures in a store's versions."""

    def __init__(self, objects: Objects, versions: Iterable[VersionInfo]) -> None:
        """Raises Damaged, FormatTooNew, StoreIO."""
        self._objects = objects
        ids, every = listed(objects), {version.id: version for version in versions}
        self.there = {
            version_id: _read(objects, version) if version_id in ids else (_published(version), None)
            for version_id, version in every.items()
        }
        """By id, each version as the remote has it, and the tag of its object."""
        self.news = [mine for mine in every.values() if _differ(mine, self.there[mine.id][0])]
        """The versions from which the store, or the remote, erased n-grams that the other one has."""

    def check(self, txn: CatalogueTxn) -> None:
        """Raises Conflict unless all that was erased at the remote was erased in the store, too."""
        for version in self.news:
            for segment, theirs in self.there[version.id][0].erased:
                mine = dict(version.erased).get(segment, segment)
                if mine != (None if theirs is None else erased.stands_for(txn, theirs)):
                    raise Conflict(
                        f"n-grams were erased from version {version.id} at {self._objects.place}: pull "
                        f"{version.ref} first"
                    )

    def put(self) -> None:
        """Say what stands for the segments now. Raises Conflict if another store does so meanwhile."""
        for version in self.news:
            tag = self.there[version.id][1]
            if not self._objects.swap(fmt.erased_name(version.id), fmt.dump_erased(version), tag):
                raise Conflict(
                    f"another store erases from version {version.id} at {self._objects.place}: push again"
                )


def _read(objects: Objects, version: VersionInfo) -> tuple[VersionInfo, str | None]:
    found = objects.get(fmt.erased_name(version.id))
    if found is None:  # a collection has removed it with the version
        return _published(version), None
    return fmt.parse_erased(found[0], version), found[1]


def _published(version: VersionInfo) -> VersionInfo:
    return replace(version, segments=version.published, erased=())


def _differ(mine: VersionInfo, theirs: VersionInfo) -> bool:
    return (mine.segments, mine.erased) != (theirs.segments, theirs.erased)
