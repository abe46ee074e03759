"""The operations on all records of a registry at once."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from hmi.core import JobRecord, ModelRecord, RootRecord
from hmi.stores.records import claims, job_table, model_table, nodes
from hmi.stores.records.nodes import SECRET, Primary, Server
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import MODEL, ROOT, RecordTable


@dataclass(frozen=True)
class RegistryContents:
    """The records of one snapshot that refer to files outside the registry."""

    roots: list[RootRecord]
    models: list[ModelRecord]
    jobs: list[JobRecord]
    """Queued and running jobs."""


class WholeRegistry:
    """The part of `Registry` that treats it as a whole."""

    def __init__(self, database: RegistryDatabase) -> None:
        self._database, self._table = database, RecordTable()

    def generation(self) -> int:
        """A number that grows with each change. While it stays the same, cached reads are still valid."""
        return self._database.generation()

    def catch_up(self) -> bool:
        """Take over what other nodes changed, if nodes share the registry. Returns whether anything changed.

        Raises Unavailable, Damaged.
        """
        return self._database.catch_up()

    def lead(self, url: str) -> bool:
        """Become the node that changes the shared registry, under this address. Returns whether another node
        was it, or none. Raises Unavailable, Damaged."""
        return self._database.write(lambda txn: nodes.lead(txn, url))

    def primary(self) -> Primary | None:
        """The node that changes the shared registry; None if it is not shared, or no node has begun."""
        return self._database.read(nodes.primary_in)

    def is_primary(self) -> bool:
        """Return whether this node may change the registry, as far as it knows."""
        return self._database.read(nodes.is_primary)

    def leads(self) -> bool:
        """Return whether this node may change the registry, beyond doubt. Raises Unavailable, Damaged."""
        self.catch_up()
        return self.is_primary()

    def primary_kinds(self) -> frozenset[str]:
        """The kinds of jobs that the primary knows and shares with replicas; none if it has an earlier
        release."""
        return self._database.read(nodes.primary_kinds)

    def position(self) -> int:
        """How far this node has followed the others: grows with each change that it makes or takes over."""
        return self._database.position()

    def node(self) -> str:
        """The id of this node; "" if the registry is not shared."""
        return self._database.node()

    def secret(self) -> str:
        """What servers that share this registry show each other; "" if no node has been the primary."""
        found = self._database.read(lambda txn: txn.get(SECRET))
        return "" if found is None else found.decode()

    def servers(self) -> list[Server]:
        """The servers that answer calls to infer for each other."""
        return self._database.read(nodes.servers_in)

    def job_places(self) -> int:
        """The number of jobs that the listed servers run at once, all together; 0 if none is listed."""
        return self._database.read(nodes.job_places)

    def enter(self, url: str, places: nodes.Places | None = None) -> None:
        """Answer calls to infer that other servers pass on, under this address. A node that had the address
        leaves. places: for jobs; None: one.

        Raises Unavailable.
        """
        self._database.write(lambda txn: nodes.enter(txn, url, places or nodes.Places()), claims.anyone)

    def leave(self, node: str) -> None:
        """Let a node get no more calls of others: this one, or at the primary any. Raises Unavailable."""
        fence = claims.anyone if node == self.node() else None
        self._database.write(lambda txn: nodes.leave(txn, node), fence)

    def leave_journal(self) -> None:
        """Make a copy of a shared registry one of its own."""
        self._database.leave_journal()

    def problems(self) -> list[str]:
        """Check all records; returns one sentence for each that is damaged or lost."""
        return self._database.problems()

    def artefacts(self) -> set[str]:
        """The artefacts that some version of a model uses. Raises Damaged."""
        return self._database.read(model_table.artefacts)

    def copy(self, folder: Path) -> RegistryContents:
        """Write a copy of one snapshot into the empty `folder`, and return what that snapshot refers to.

        Damaged records are copied, and not counted among the references. Raises Damaged, Unavailable.
        """

        def look(txn: RegistryTxn) -> RegistryContents:
            return RegistryContents(
                roots=self._table.all(txn, ROOT, RootRecord, tolerant=True),
                models=self._table.all(txn, MODEL, ModelRecord, tolerant=True),
                jobs=job_table.live_jobs(self._table, txn, tolerant=True),
            )

        return self._database.copy(folder, look)
