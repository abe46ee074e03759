"""All refs at once: their current versions, which have moved, and which fall back on one of them.

A ref's record names the current version at a fixed place, so a second look at all refs parses only those that
have moved. Versions never change, so a ref's current version alone decides on which refs it falls back.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from plot_store.catalogue import agreed, tags, version_tree
from plot_store.catalogue.catalogue import CatalogueTxn
from plot_store.catalogue.records import Node
from plot_store.catalogue.version_tree import MAX_DEPTH, REF
from plot_store.database.checksum import SUM_BYTES
from plot_store.ground.errors import Damaged, InUse

_HEAD: Final = slice(SUM_BYTES, SUM_BYTES + len('{"current":"v0123456789abcdef0123456789abcdef"'))
"""Where a ref's record names its current version: behind the checksum, since its JSON has sorted keys."""
_SHOWN: Final = 20


def heads(txn: CatalogueTxn, prefix: str = "") -> dict[str, str]:
    """Return the id of each ref's current version. prefix: only of refs that begin so. Raises Damaged."""
    refs = (prefix + rest for rest in txn.keys(REF + prefix))
    return {ref: version_tree.need_ref(txn, ref).current for ref in refs}


def moved(txn: CatalogueTxn, seen: Mapping[str, str]) -> dict[str, str | None]:
    """Return the refs whose current version is not the one in `seen`: its id, or None for a ref that is gone.

    seen: version ids by ref. Raises Damaged.
    """
    found: dict[str, str | None] = {}
    there = set()
    for key, raw in txn.raw_items(REF):
        ref = key[len(REF) :].decode()
        there.add(ref)
        known = seen.get(ref)
        if known is None or raw[_HEAD] != f'{{"current":"{known}"'.encode():
            current = version_tree.need_ref(txn, ref).current
            if current != known:
                found[ref] = current
    return found | dict.fromkeys(seen.keys() - there)


@dataclass(frozen=True)
class Dependants:
    """Which refs fall back on one ref, as a transaction saw it."""

    commit: int  # the last commit that the transaction saw
    heads: dict[str, str]  # the current version of every ref
    refs: frozenset[str]


def dependants(txn: CatalogueTxn, ref: str, before: Dependants | None = None) -> Dependants:
    """Return the refs whose current version falls back, at any distance, on a version of this ref.

    before: what an earlier transaction saw. With it, only refs that have moved since are looked at. Raises
    Damaged, NotFound, Invalid (no such ref).
    """
    version_tree.need_ref(txn, ref)
    if before is None:
        before = Dependants(-1, {}, frozenset())
    news = moved(txn, before.heads)
    now = {name: version_id for name, version_id in news.items() if version_id is not None}
    others = {name: version_id for name, version_id in now.items() if name != ref}
    kept = {name: version_id for name, version_id in before.heads.items() if name not in news}
    below = before.refs - news.keys() | _falling_back(txn, others, ref)
    return Dependants(txn.commit, kept | now, frozenset(below))


def check_unused(txn: CatalogueTxn, ref: str, before: Dependants | None = None) -> Dependants:
    """Return the `dependants` of a ref that may be deleted.

    Raises InUse if other refs fall back on it or tags name its versions; otherwise as `dependants` does.
    """
    found = dependants(txn, ref, before)
    if found.refs and (outside := sorted(found.refs - _ancestors(txn, ref))):
        raise InUse(f"{ref} is a parent of {_listed(outside)}: delete those first")
    if tagged := list(tags.listed(txn, ref)):
        raise InUse(f"{ref} has the tags {_listed(tagged)}: untag those first")
    return found


def delete(txn: CatalogueTxn, ref: str, found: Dependants, *, anew: bool) -> bool:
    """Remove a ref after `check_unused`. Returns False, and does nothing, if there was a commit since then.

    anew: look again at the refs that have moved, instead of returning False. Raises InUse, NotFound, Damaged.
    """
    if anew:
        check_unused(txn, ref, found)
    elif txn.commit != found.commit:
        return False
    agreed.forget(txn, ref)
    return txn.delete(REF + ref)


def _falling_back(txn: CatalogueTxn, versions: Mapping[str, str], ref: str) -> set[str]:
    """Return those of the refs, given with their versions, that fall back on a version of `ref`."""
    on: dict[str | None, bool] = {None: False}  # whether a version or one of its ancestors is of `ref`

    def falls_back(version_id: str | None) -> bool:
        path: list[tuple[str, Node]] = []
        while version_id not in on:
            assert version_id is not None
            if len(path) >= MAX_DEPTH:
                raise Damaged(f"the ancestors of {path[0][0]} do not end: restore the store from an export")
            node = version_tree.get_node(txn, version_id)
            path.append((version_id, node))
            version_id = node.parent
        for version_id, node in reversed(path):
            on[version_id] = node.ref == ref or on[node.parent]
        return on[path[0][0] if path else version_id]

    return {
        name
        for name, version_id in versions.items()
        if falls_back(version_tree.get_node(txn, version_id).parent)
    }


def _ancestors(txn: CatalogueTxn, ref: str) -> set[str]:
    """Return the refs on whose versions this ref's current version falls back, transitively.

    The set contains the ref itself if rollbacks or imports have made refs fall back on each other's
    older versions. Raises Damaged.
    """
    found: set[str] = set()
    waiting = [ref]
    while waiting:
        record = version_tree.get_ref(txn, waiting.pop())
        ids = () if record is None else (record.current,)  # a deleted ref has no current version
        nodes = version_tree.closure(txn, ids)
        below = {node.ref for version_id, node in nodes.items() if version_id not in ids}
        waiting += below - found
        found |= below
    return found


def _listed(names: Iterable[str]) -> str:
    every = list(names)
    more = f" and {len(every) - _SHOWN} more" if len(every) > _SHOWN else ""
    return ", ".join(every[:_SHOWN]) + more
