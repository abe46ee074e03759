"""Tags: names "ref@tag" for versions of a ref. A tagged version is kept until the tag is removed."""

from __future__ import annotations

import time
from dataclasses import asdict

from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import TagRecord
from plot_store.catalogue.version_tree import TAG, get_node, get_tag, resolve_id
from plot_store.ground import names
from plot_store.ground.errors import Conflict, Invalid


def put(txn: CatalogueTxn, ref: str, tag: str, version: str | None) -> str:
    """Name a version of the ref, by default its current one. Idempotent. Returns the version's id.

    Raises NotFound, Collected, Invalid (another ref's version), Conflict (the tag names another version).
    """
    key = TAG + names.check_tagged(ref, tag)
    current = resolve_id(txn, ref)
    version_id = current if version is None else resolve_id(txn, version)
    owner = get_node(txn, version_id).ref
    if owner != ref:
        raise Invalid(f"version {version_id} is of {owner}, not of {ref}: take one from the history of {ref}")
    found = get_tag(txn, ref, tag)
    if found is not None and found.version != version_id:
        raise Conflict(
            f"{ref}@{tag} already names version {found.version}: untag it first, or choose another name"
        )
    if found is None:
        txn.put(key, asdict(TagRecord(version_id, time.time())))
    return version_id


def remove(txn: CatalogueTxn, ref: str, tag: str) -> bool:
    """Remove a tag. Returns whether it existed. Raises Invalid."""
    return txn.delete(TAG + names.check_tagged(ref, tag))


def listed(txn: CatalogueTxn, ref: str | None = None) -> dict[str, str]:
    """Return {"ref@tag": version id} for one ref or for all."""
    found: dict[str, str] = {}
    for key in txn.keys(TAG if ref is None else f"{TAG}{names.check_ref(ref)}@"):
        text = key if ref is None else f"{ref}@{key}"
        record = get_tag(txn, *text.split("@", 1))
        assert record is not None
        found[text] = record.version
    return found
