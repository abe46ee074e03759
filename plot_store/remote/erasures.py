"""Erasures at a remote: for a version from which n-grams were erased, an object lists what stands for its
segments. The manifest stays as it is. A version without such an object has all that was published.

Only the version's own list counts. So a version that another store pushed stays whole, although it shares a
segment with one from which n-grams were erased.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

from plot_store.care.archive_format import Stands
from plot_store.catalogue import erased
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.errors import Conflict
from plot_store.ground.nouns import VersionInfo
from plot_store.remote import format as fmt
from plot_store.remote import refs
from plot_store.remote.objects import Objects


def listed(objects: Objects) -> frozenset[str]:
    """Return the ids of the versions that have such an object."""
    found = (one.name.rpartition("/")[2].removesuffix(".json") for one in objects.listed(fmt.ERASED))
    return frozenset(name for name in found if names.is_id(name))


def applied(objects: Objects, ids: frozenset[str], version: VersionInfo) -> tuple[VersionInfo, Stands]:
    """Return a version with what stands for its segments at the remote, and all that its object names.

    ids: as `listed` returns them. Raises Damaged, FormatTooNew, StoreIO.
    """
    found, stands, _ = _read(objects, ids, version)
    return found, stands


def is_news(txn: CatalogueTxn, version: VersionInfo) -> bool:
    """Return whether n-grams were erased from a version at the remote that this store has not erased.

    version: as the remote has it. Raises Damaged.
    """
    return any(
        erased.stands_for(txn, segment) != (None if now is None else erased.stands_for(txn, now))
        for segment, now in version.erased
    )


class Erasing:
    """Compares the erasures of a store with those of a remote, and sends them in a push."""

    def __init__(self, objects: Objects, versions: Iterable[VersionInfo], replaced: str | None) -> None:
        """replaced: the id of a version at the remote that the push builds on, although this store may have
        it no more. Raises Damaged, FormatTooNew, StoreIO.
        """
        self._objects = objects
        ids, every = listed(objects), {version.id: version for version in versions}
        self._lost: list[VersionInfo] = []  # it and its ancestors, as far as this store lacks them
        while ids and replaced is not None and replaced not in every:
            version = applied(objects, ids, refs.read_version(objects, replaced))[0]
            self._lost.append(version)
            replaced = version.parent
        found = {version.id: _read(objects, ids, version) for version in every.values()}
        self._tags = {version_id: tag for version_id, (_, _, tag) in found.items()}
        self.there = {version_id: version for version_id, (version, _, _) in found.items()}
        """Each version as the remote has it, by id."""
        self.news = [mine for mine in every.values() if _differ(mine, self.there[mine.id])]
        """The versions from which the store, or the remote, erased n-grams that the other one has."""

    def check(self, txn: CatalogueTxn) -> None:
        """Raises Conflict unless all that was erased at the remote was erased in the store, too."""
        for version in (*(self.there[version.id] for version in self.news), *self._lost):
            if is_news(txn, version):
                raise Conflict(
                    f"n-grams were erased from version {version.id} at {self._objects.place}, and this "
                    f"store has them, or had them: delete {version.ref} here, collect, pull it, and "
                    "change it again"
                )

    def put(self, environment: Environment) -> None:
        """Say what stands for the segments. Raises Conflict if more is erased meanwhile, here or there."""

        def behind(txn: CatalogueTxn) -> Stands:
            if erased.applied(txn, version) != version:
                raise changed(version)
            return erased.behind(txn, version)

        for version in self.news:
            stands = environment.catalogue.read(behind)
            name, data = fmt.erased_name(version.id), fmt.dump_erased(stands)
            if self._objects.swap(name, data, self._tags[version.id]):
                continue
            found = self._objects.get(name)
            if found is None or found[0] != data:  # otherwise a library has repeated a request that was done
                raise Conflict(
                    f"another store erases from version {version.id} at {self._objects.place}: push again"
                )


def changed(version: VersionInfo) -> Conflict:
    """Return the error for a push during which n-grams were erased from what it sends."""
    return Conflict(f"n-grams were erased from {version.ref} while it was pushed: push it again")


def _read(
    objects: Objects, ids: frozenset[str], version: VersionInfo
) -> tuple[VersionInfo, Stands, str | None]:
    """Return what `applied` does, and the object's tag."""
    found = objects.get(fmt.erased_name(version.id)) if version.id in ids else None
    if found is None:
        return replace(version, segments=version.published, erased=()), {}, None
    return *fmt.parse_erased(found[0], version), found[1]


def _differ(mine: VersionInfo, theirs: VersionInfo) -> bool:
    return (mine.segments, mine.erased) != (theirs.segments, theirs.erased)
