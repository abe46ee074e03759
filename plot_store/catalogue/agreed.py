"""The version of a ref on which this store and a remote last agreed, by a push or a pull.

If the remote's ref is still at this version, this store has seen all that a push replaces. If the store's own
ref is still at it, the store has published nothing that a pull would replace. A deletion of the ref removes
the record. The record also says when the ref was last used: pushed, pulled, or read through `Store.fetching`.
"""

from __future__ import annotations

import time
from typing import Final

from plot_store.catalogue import version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.ground.errors import Damaged

AGREED: Final = "agreed/"


def get(txn: CatalogueTxn, ref: str, place: str) -> str | None:
    """Return the id of the version last agreed on with the remote of this id. Raises Damaged."""
    found = _parsed(txn, _key(ref, place))
    return None if found is None else found[0]


def every(txn: CatalogueTxn, place: str) -> dict[str, str]:
    """Return the version last agreed on for each ref, with the remote of this id. Raises Damaged."""
    refs = (key.rpartition("@")[0] for key in txn.keys(AGREED) if key.endswith(f"@{place}"))
    return {ref: version for ref in refs if (version := get(txn, ref, place)) is not None}


def last_use(txn: CatalogueTxn, ref: str, place: str) -> float:
    """Return when the ref was last used, in Unix seconds; 0 if that was not recorded. Raises Damaged."""
    found = _parsed(txn, _key(ref, place))
    return 0.0 if found is None else found[1]


def put(txn: CatalogueTxn, ref: str, place: str, version: str) -> None:
    """Record that both sides have this version."""
    if version_tree.get_ref(txn, ref) is not None:
        txn.put(_key(ref, place), {"version": version, "used": time.time()})


def use(txn: CatalogueTxn, ref: str, at: float) -> None:
    """Record that the ref was used at this time, in Unix seconds. Raises Damaged."""
    for place in txn.keys(f"{AGREED}{ref}@"):
        found = _parsed(txn, _key(ref, place))
        if found is not None and found[1] < at:
            txn.put(_key(ref, place), {"version": found[0], "used": at})


def forget(txn: CatalogueTxn, ref: str) -> None:
    """Remove what was recorded about a ref."""
    for key in txn.keys(f"{AGREED}{ref}@"):
        txn.delete(f"{AGREED}{ref}@{key}")


def since(txn: CatalogueTxn, version: str, agreed: str | None) -> list[str]:
    """Return the ids of a version and of those that it replaced, newest first, back to the one agreed on.

    The one agreed on is left out. The list ends earlier where a version has been collected.
    """
    found: list[str] = []
    known: set[str] = set()
    at: str | None = version
    while at is not None and at != agreed and at not in known:
        found.append(at)
        known.add(at)
        at = version_tree.previous(txn, at)
    return found


def _parsed(txn: CatalogueTxn, key: str) -> tuple[str, float] | None:
    raw = txn.get(key)
    if raw is None:
        return None
    try:
        return str(raw["version"]), float(raw.get("used", 0.0))
    except (TypeError, KeyError, ValueError, AttributeError) as error:
        raise Damaged(
            f"the record {key} of what a ref has in common with a remote is malformed ({error}): restore the "
            "store from an export"
        ) from error


def _key(ref: str, place: str) -> str:
    return f"{AGREED}{ref}@{place}"
