"""The part of `Store` that reads and changes records: refs, history, tags, pins and leases."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod

from plot_store.catalogue import tags, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import RefRecord
from plot_store.environment import pins
from plot_store.environment.environment import Environment
from plot_store.environment.pins import Lease, LeaseInfo, Pin
from plot_store.ground import names
from plot_store.ground.errors import InUse, Invalid
from plot_store.ground.nouns import VersionInfo


class Branches(ABC):
    """The methods of `Store` that only read and change records.

    A parameter `ref` takes a ref's name. A parameter `version` takes a ref (meaning its current version), a
    version id, or a tag "ref@tag".
    """

    @abstractmethod
    def _env(self) -> Environment:
        """The open environment. Raises Closed."""

    def refs(self) -> dict[str, VersionInfo]:
        """Return the current version of every ref."""

        def body(txn: CatalogueTxn) -> dict[str, VersionInfo]:
            return {ref: version_tree.resolve(txn, ref) for ref in txn.keys(version_tree.REF)}

        return self._env().catalogue.read(body)

    def version(self, version: str) -> VersionInfo:
        """Resolve a ref, an id or a tag to its version. Raises NotFound, Collected, Invalid."""
        return self._env().catalogue.read(lambda txn: version_tree.resolve(txn, version))

    def history(self, ref: str) -> list[VersionInfo]:
        """Return a ref's retained versions, newest publication first. A rollback does not reorder them."""

        def body(txn: CatalogueTxn) -> list[VersionInfo]:
            return [version_tree.get_version(txn, v) for v in version_tree.need_ref(txn, ref).versions]

        return self._env().catalogue.read(body)

    def chain(self, version: str) -> list[VersionInfo]:
        """Return a version and its ancestors, nearest first, the root last."""
        return self._env().catalogue.read(
            lambda txn: version_tree.chain(txn, version_tree.resolve(txn, version))
        )

    def children(self, ref: str) -> list[str]:
        """Return the refs whose current version descends, at any distance, from a version of this ref."""

        def body(txn: CatalogueTxn) -> list[str]:
            version_tree.need_ref(txn, ref)
            return version_tree.descendants(txn, ref)

        return self._env().catalogue.read(body)

    def rollback(self, ref: str, version: str) -> VersionInfo:
        """Make one of a ref's own versions current, older or newer. `version` is an id or a tag.

        Raises NotFound, Collected, Invalid (another ref's version).
        """

        def body(txn: CatalogueTxn) -> VersionInfo:
            record = version_tree.need_ref(txn, ref)
            if not names.is_id(version) and names.split_tag(version) is None:
                raise Invalid(f"{version!r} is not a version id or tag: take one from the history of {ref}")
            found = version_tree.resolve(txn, version)
            if found.ref != ref:
                raise Invalid(
                    f"version {found.id} is of {found.ref}, not of {ref}: take one from the history of {ref}"
                )
            known = record.versions if found.id in record.versions else (*record.versions, found.id)
            version_tree.put_ref(txn, ref, RefRecord(found.id, known))
            return found

        return self._env().catalogue.write(body)

    def delete(self, ref: str) -> None:
        """Remove a ref; `gc` frees its bytes.

        Raises NotFound, and InUse while other refs descend from it or tags name its versions; the message
        lists them. Versions that are pinned or leased, or that others fall back on, stay readable by their
        id. Two refs that, after rollbacks, fall back on each other's older versions do not block each other.
        """

        def body(txn: CatalogueTxn) -> None:
            version_tree.need_ref(txn, ref)
            dependants = version_tree.descendants(txn, ref)
            if dependants:
                mutual = version_tree.ancestor_refs(txn, ref)
                dependants = [other for other in dependants if other not in mutual]
            if dependants:
                raise InUse(f"{ref} is a parent of {', '.join(dependants)}: delete those first")
            tagged = tags.listed(txn, ref)
            if tagged:
                raise InUse(f"{ref} has the tags {', '.join(tagged)}: untag those first")
            txn.delete(version_tree.REF + ref)

        self._env().write_freeing(body)

    def tag(self, ref: str, name: str, version: str | None = None) -> str:
        """Name a version of the ref "ref@name" and keep it from gc. Returns the version's id.

        The default is the ref's current version. Raises NotFound, Collected, Invalid (another ref's version),
        Conflict (the tag already names another version).
        """
        return self._env().catalogue.write(lambda txn: tags.put(txn, ref, name, version))

    def untag(self, ref: str, name: str) -> bool:
        """Remove a tag. Returns whether it existed."""
        return self._env().write_freeing(lambda txn: tags.remove(txn, ref, name))

    def tags(self, ref: str | None = None) -> dict[str, str]:
        """Return {"ref@name": version id} for one ref or for all."""
        return self._env().catalogue.read(lambda txn: tags.listed(txn, ref))

    def pin(self, version: str, owner: str) -> Pin:
        """Keep a version and its ancestors from gc, in every process, until `unpin`. Idempotent.

        Raises NotFound, Collected, Invalid.
        """
        return self._env().catalogue.write(lambda txn: pins.pin(txn, version, owner))

    def unpin(self, version: str, owner: str) -> bool:
        """Remove an owner's pin. Returns whether it existed."""
        return self._env().write_freeing(lambda txn: pins.unpin(txn, version, owner))

    def pins(self) -> list[Pin]:
        """Return every pin."""
        return self._env().catalogue.read(pins.pins)

    def lease(self, version: str, ttl_s: float, owner: str = "anonymous") -> Lease:
        """Pin a version for `ttl_s` seconds, unless renewed. Returns a context manager. Raises as `pin`."""
        return pins.lease(self._env(), version, ttl_s, owner)

    def leases(self) -> list[LeaseInfo]:
        """Return every lease that has not expired."""
        return self._env().catalogue.read(lambda txn: pins.leases(txn, time.time()))
