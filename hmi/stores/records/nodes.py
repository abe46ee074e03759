"""The records that say which nodes share a registry: which one may change it, and which ones answer."""

from __future__ import annotations

import secrets
from typing import Final, get_args

from pydantic import ConfigDict

from hmi.core import JobKind
from hmi.errors import Unavailable
from hmi.record import Record
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import parsed

NODE: Final = "node"
"""The key of the record with the random id of this data folder. Other nodes do not get it."""
PRIMARY: Final = "primary"
SERVER: Final = "server/"  # + the id of a node whose server answers calls to infer
PLACES: Final = "jobplaces/"  # + the id of such a node
KINDS: Final = "jobkinds"
"""The key of the record with the kinds of jobs that the primary's release knows."""
SECRET: Final = "serverkey"
"""The key of the record with what servers show each other: a random text. The first primary makes it."""


class NodeRecord(Record):
    """What all nodes must be able to read, at every call, while some of them have another release already.

    So fields that a newer release has added are ignored. What must not be ignored gets a key of its own, or
    raises the journal's format.
    """

    model_config = ConfigDict(extra="ignore")


class Primary(NodeRecord):
    """The node that changes the registry. The others only read."""

    node: str
    url: str
    """The address under which the others reach it."""


class Kinds(NodeRecord):
    """The kinds of jobs that a primary knows. Earlier releases lead without such a record."""

    node: str
    kinds: tuple[str, ...]


class Server(NodeRecord):
    """A node whose server answers calls to infer that other servers pass on."""

    node: str
    url: str


class Places(NodeRecord):
    """How many jobs a node runs at once. An entry of an earlier release has no such record."""

    primary: int = 1
    """While it is the primary."""
    replica: int = 1


def new_node(txn: RegistryTxn) -> None:
    """Give the data folder an id, unless it has one."""
    if txn.get(NODE) is None:
        txn.put(NODE, secrets.token_hex(8).encode())


def primary_in(txn: RegistryTxn) -> Primary | None:
    """The primary; None if no node has become it yet. Then all nodes may change the registry."""
    found = txn.get(PRIMARY)
    return None if found is None else parsed(PRIMARY, found, Primary)


def is_primary(txn: RegistryTxn) -> bool:
    """Return whether this node may change the registry. True for a registry that is not shared."""
    primary, node = primary_in(txn), txn.get(NODE)
    return primary is None or primary.node.encode() == node


def check_primary(txn: RegistryTxn) -> None:
    """Raise Unavailable unless this node may change the registry."""
    primary = primary_in(txn)
    if primary is not None and not is_primary(txn):
        raise not_primary()


def not_primary() -> Unavailable:
    """The error of a change at a node while another one is the primary."""
    return Unavailable(
        "another server is the primary, so this one changes nothing: send changes there, or start this one "
        "with role=primary, which takes over"
    )


def lead(txn: RegistryTxn, url: str) -> bool:
    """Make this node the primary. Returns whether another one was it, or none."""
    node = txn.get(NODE)
    assert node is not None, "a registry that is shared has the id of its node"
    before, after = primary_in(txn), Primary(node=node.decode(), url=url)
    kinds = Kinds(node=after.node, kinds=get_args(JobKind)).model_dump_json().encode()
    if before != after:
        txn.put(PRIMARY, after.model_dump_json().encode())
    if txn.get(KINDS) != kinds:
        txn.put(KINDS, kinds)
    if txn.get(SECRET) is None:
        txn.put(SECRET, secrets.token_urlsafe(32).encode())
    return before is None or before.node != after.node


def primary_kinds(txn: RegistryTxn) -> frozenset[str]:
    """The kinds of jobs that the primary knows and shares with replicas; none if it has an earlier release,
    which might not be able to read the record of a job at a replica."""
    primary, found = primary_in(txn), txn.get(KINDS)
    known = None if found is None else parsed(KINDS, found, Kinds)
    if primary is None or known is None or known.node != primary.node:
        return frozenset()
    return frozenset(known.kinds)


def servers_in(txn: RegistryTxn) -> list[Server]:
    """The servers that answer calls to infer, by the ids of their nodes."""
    return [parsed(SERVER + node, body, Server) for node, body in txn.items(SERVER)]


def job_places(txn: RegistryTxn) -> int:
    """The number of jobs that the listed servers run at once, all together; 0 if none is listed."""
    primary, places = primary_in(txn), 0
    for server in servers_in(txn):
        found = txn.get(PLACES + server.node)
        here = Places() if found is None else parsed(PLACES + server.node, found, Places)
        places += here.primary if primary and server.node == primary.node else here.replica
    return places


def enter(txn: RegistryTxn, url: str, places: Places) -> None:
    """Let this node answer calls that other servers pass on, under this address. Another node that had the
    address has it no more: its server would seem to live, since this one answers there."""
    node = txn.get(NODE)
    assert node is not None, "a registry that is shared has the id of its node"
    entered = Server(node=node.decode(), url=url)
    for other in servers_in(txn):
        if other.url == url and other != entered:
            leave(txn, other.node)
    for key, record in ((SERVER, entered), (PLACES, places)):
        body = record.model_dump_json().encode()
        if txn.get(key + entered.node) != body:
            txn.put(key + entered.node, body)


def leave(txn: RegistryTxn, node: str) -> None:
    """Let a node answer no calls of others."""
    for key in (SERVER, PLACES):
        txn.delete(key + node)
