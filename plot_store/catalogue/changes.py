"""What was recorded since a snapshot, so that long analyses need not run under the write lock.

A caller analyses a snapshot in a read transaction. Its write transactions then look only at what differs:
records of the given prefixes whose bytes are new, and versions that did not exist. Finding these compares
bytes and parses nothing. It takes no time if nothing was committed. An unchanged record means what it meant
at the snapshot, or less: time alone only ends what a record keeps (a lease expires, a version ages).
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Final, TypeVar

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.version_tree import VERSION

HOLD_S: Final = 0.005  # a write transaction of a collection begins no further step after so long
T = TypeVar("T")


@dataclass(frozen=True)
class Seen:
    """The records of some prefixes, and which versions there are, as one transaction saw them."""

    prefixes: tuple[str, ...]
    raw: dict[bytes, bytes]  # the stored bytes of each record, by key
    versions: frozenset[bytes]  # keys of the manifests
    commit: int  # the last commit that the transaction saw; its own if it wrote


@dataclass(frozen=True)
class Changes:
    """What a later transaction found that the earlier one had not seen."""

    keys: tuple[str, ...]  # keys of the new and changed records
    versions: tuple[str, ...]  # ids of the versions that are new
    seen: Seen  # what this transaction saw


def look(txn: CatalogueTxn, prefixes: Iterable[str]) -> Seen:
    """Return what this transaction sees of the records with these prefixes, and of versions."""
    prefixes = tuple(prefixes)
    raw = dict(item for prefix in prefixes for item in txn.raw_items(prefix))
    return Seen(prefixes, raw, frozenset(txn.raw_keys(VERSION)), txn.commit)


def since(txn: CatalogueTxn, seen: Seen) -> Changes:
    """Return what changed. Records that were removed count as no change: they keep nothing."""
    if txn.commit == seen.commit:
        return Changes((), (), seen)
    now = look(txn, seen.prefixes)
    keys = tuple(key.decode() for key, value in now.raw.items() if seen.raw.get(key) != value)
    new = tuple(key.decode().removeprefix(VERSION) for key in now.versions - seen.versions)
    return Changes(keys, new, now)


def with_own(txn: CatalogueTxn, seen: Seen, keys: Iterable[str]) -> Seen:
    """Return what this transaction has seen once it has itself written or removed the records of these keys.

    What it wrote is no change later. A version that it removed is one if it comes back. seen: of this
    transaction.
    """
    stored = {key.encode(): txn.raw(key) for key in keys}
    written = {key: raw for key, raw in stored.items() if raw is not None}
    gone = stored.keys() - written.keys()
    # A transaction that changed nothing does not count as a commit.
    commit = txn.commit + 1 if stored else seen.commit
    return replace(seen, raw={**seen.raw, **written}, versions=seen.versions - gone, commit=commit)


def named_since(txn: CatalogueTxn, changes: Changes) -> set[str]:
    """Return the names of the files that new versions and changed builds mention. Raises Damaged."""
    found: set[str] = set()
    for version_id in changes.versions:
        found |= version_tree.segment_names(txn, version_id)
    for key in changes.keys:
        if key.startswith(version_tree.BUILD):
            record = version_tree.get_build(txn, key.removeprefix(version_tree.BUILD))
            assert record is not None
            found |= record.names
    return found


def briefly(steps: Iterable[T]) -> Iterator[T]:
    """Yield steps for HOLD_S seconds, and at least one: the share of them that one write transaction does."""
    end = time.monotonic() + HOLD_S
    for step in steps:
        yield step
        if time.monotonic() >= end:
            return
