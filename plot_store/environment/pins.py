"""Pins and leases: both keep versions from collection for a named owner, across processes and restarts.

A pin stays until it is removed. A lease expires unless it is renewed, so its owner may crash.
"""

from __future__ import annotations

import time
import uuid
from dataclasses import asdict, dataclass, replace
from types import TracebackType
from typing import Final

from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import HoldRecord, parse_hold
from plot_store.catalogue.version_tree import get_node, resolve_id
from plot_store.environment.environment import Environment
from plot_store.ground import names
from plot_store.ground.arguments import check_number

PIN: Final = "pin/"
LEASE: Final = "lease/"
FETCHED: Final = "plot_store:fetched"
"""The owner of versions that were pulled by their id. Such a pin says when the version was last used."""


@dataclass(frozen=True)
class Pin:
    """A version that an owner keeps from collection."""

    version: str
    owner: str
    since: float  # Unix seconds


@dataclass(frozen=True)
class LeaseInfo:
    """A version that an owner keeps from collection until a time."""

    version: str
    owner: str
    since: float  # Unix seconds
    expires: float  # Unix seconds


class Lease:
    """A version kept until the lease expires, is released, or its `with` block ends.

    A lease outlives its process until it expires.
    """

    def __init__(self, environment: Environment, key: str, record: HoldRecord, ttl_s: float) -> None:
        self._environment = environment
        self._key = key
        self._record = record
        self._ttl_s = ttl_s

    @property
    def version(self) -> str:
        """The id of the kept version."""
        return self._record.version

    @property
    def owner(self) -> str:
        """The name of the lease's owner."""
        return self._record.owner

    @property
    def expires(self) -> float:
        """The time of expiry, in Unix seconds."""
        assert self._record.expires is not None
        return self._record.expires

    def renew(self, ttl_s: float | None = None) -> None:
        """Extend the lease to `ttl_s` seconds from now; by default the duration it was created with.

        Also revives an expired lease, as long as its version exists. Raises Collected,
        NotFound, Invalid, StoreFull, StoreIO.
        """
        ttl_s = check_ttl(self._ttl_s if ttl_s is None else ttl_s)
        grown = replace(self._record, expires=time.time() + ttl_s)

        def body(txn: CatalogueTxn) -> None:
            get_node(txn, grown.version)
            txn.put(self._key, asdict(grown))

        self._environment.catalogue.write(body)
        self._record = grown

    def release(self) -> None:
        """End the lease now. Idempotent."""
        self._environment.catalogue.write(lambda txn: txn.delete(self._key))

    def __enter__(self) -> Lease:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()


def check_ttl(ttl_s: float) -> float:
    """Return the duration as a float. Raises Invalid unless it is a positive number of seconds."""
    check_number("ttl_s", ttl_s, "pass the seconds that the lease shall last", least=1e-9, most=1e10)
    return float(ttl_s)


def pin(txn: CatalogueTxn, version: str, owner: str) -> Pin:
    """Pin a version for an owner, or return the existing pin. Raises NotFound, Collected, Invalid."""
    version_id = resolve_id(txn, version)
    get_node(txn, version_id)
    key = f"{PIN}{version_id}/{names.check_owner(owner)}"
    raw = txn.get(key)
    record = HoldRecord(version_id, owner, time.time()) if raw is None else parse_hold(raw)
    if raw is None:
        txn.put(key, asdict(record))
    return Pin(record.version, record.owner, record.at)


def unpin(txn: CatalogueTxn, version: str, owner: str) -> bool:
    """Remove an owner's pin. Returns whether it existed. Raises NotFound, Invalid."""
    return txn.delete(f"{PIN}{resolve_id(txn, version)}/{names.check_owner(owner)}")


def keep_fetched(txn: CatalogueTxn, version_id: str, at: float) -> None:
    """Pin a version as fetched, used at this time, in Unix seconds. Raises NotFound, Collected."""
    get_node(txn, version_id)
    txn.put(f"{PIN}{version_id}/{FETCHED}", asdict(HoldRecord(version_id, FETCHED, at)))


def is_fetched(txn: CatalogueTxn, version_id: str) -> bool:
    """Return whether a version is pinned as fetched."""
    return txn.has(f"{PIN}{version_id}/{FETCHED}")


def pins(txn: CatalogueTxn) -> list[Pin]:
    """Return every pin, sorted by version and owner."""
    return [Pin(record.version, record.owner, record.at) for record in _records(txn, PIN).values()]


def lease(environment: Environment, version: str, ttl_s: float, owner: str) -> Lease:
    """See `Store.lease`."""
    key = f"{LEASE}{uuid.uuid4().hex}"
    now = time.time()

    def body(txn: CatalogueTxn) -> HoldRecord:
        version_id = resolve_id(txn, version)
        get_node(txn, version_id)
        record = HoldRecord(version_id, names.check_owner(owner), now, now + check_ttl(ttl_s))
        txn.put(key, asdict(record))
        return record

    return Lease(environment, key, environment.catalogue.write(body), ttl_s)


def leases(txn: CatalogueTxn, now: float) -> list[LeaseInfo]:
    """Return every lease that has not expired at `now` (Unix seconds)."""
    found = _records(txn, LEASE).values()
    return [
        LeaseInfo(r.version, r.owner, r.at, r.expires)
        for r in found
        if r.expires is not None and r.expires > now
    ]


def held_version(txn: CatalogueTxn, key: str) -> str:
    """Return the id of the version that a pin or lease keeps, expired or not. Raises Damaged."""
    return parse_hold(txn.get(key)).version


def expired(txn: CatalogueTxn, now: float) -> list[str]:
    """Return the keys of all leases that have expired."""
    return [key for key, r in _records(txn, LEASE).items() if r.expires is None or r.expires <= now]


def _records(txn: CatalogueTxn, prefix: str) -> dict[str, HoldRecord]:
    found: dict[str, HoldRecord] = {}
    for key in txn.keys(prefix):
        raw = txn.get(prefix + key)
        assert raw is not None
        found[prefix + key] = parse_hold(raw)
    return found
