"""The records that say which nodes share a registry: which one may change it, and which ones answer."""

from __future__ import annotations

import secrets
from collections.abc import Mapping
from typing import Final

from hmi.errors import Unavailable
from hmi.record import Record
from hmi.stores.records.sealed import RegistryTxn

NODE: Final = "node"
"""The key of the record with the random id of this data folder. Other nodes do not get it."""
PRIMARY: Final = "primary"
SERVER: Final = "server/"  # + the id of a node whose server answers calls to infer
SECRET: Final = "serverkey"
"""The key of the record with what servers show each other: a random text. The first primary makes it."""


class Primary(Record):
    """The node that changes the registry. The others only read."""

    node: str
    url: str
    """The address under which the others reach it."""


class Server(Record):
    """A node whose server answers calls to infer that other servers pass on."""

    node: str
    url: str
    job_workers: int = 1
    """The number of jobs that it runs at once while it is the primary."""
    replica_jobs: int = 1
    """The number of jobs that it runs at once while it is a replica."""


def new_node(txn: RegistryTxn) -> None:
    """Give the data folder an id, unless it has one."""
    if txn.get(NODE) is None:
        txn.put(NODE, secrets.token_hex(8).encode())


def primary_in(txn: RegistryTxn) -> Primary | None:
    """The primary; None if no node has become it yet. Then all nodes may change the registry."""
    found = txn.get(PRIMARY)
    return None if found is None else Primary.model_validate_json(found)


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
    if before != after:
        txn.put(PRIMARY, after.model_dump_json().encode())
    if txn.get(SECRET) is None:
        txn.put(SECRET, secrets.token_urlsafe(32).encode())
    return before is None or before.node != after.node


def servers_in(txn: RegistryTxn) -> list[Server]:
    """The servers that answer calls to infer, by the ids of their nodes."""
    return [Server.model_validate_json(body) for _, body in txn.items(SERVER)]


def job_places(txn: RegistryTxn) -> int:
    """The number of jobs that the listed servers run at once, all together."""
    primary = primary_in(txn)
    leads = "" if primary is None else primary.node
    return sum(one.job_workers if one.node == leads else one.replica_jobs for one in servers_in(txn))


def enter(txn: RegistryTxn, url: str, jobs: Mapping[str, int]) -> None:
    """Let this node answer calls that other servers pass on, under this address. Another node that had the
    address has it no more: its server would seem to live, since this one answers there. jobs: the `Server`'s
    numbers of jobs, by field."""
    node = txn.get(NODE)
    assert node is not None, "a registry that is shared has the id of its node"
    entered = Server(node=node.decode(), url=url, **jobs)
    for other in servers_in(txn):
        if other.url == url and other.node != entered.node:
            txn.delete(SERVER + other.node)
    record = entered.model_dump_json().encode()
    if txn.get(SERVER + entered.node) != record:
        txn.put(SERVER + entered.node, record)
