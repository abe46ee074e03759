"""Stored answers for repeated requests (Idempotency-Key) in the registry, with an expiry time."""

from __future__ import annotations

import hashlib
import json
import time
from contextlib import suppress
from typing import Any

from hmi.errors import Damaged
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import ONCE, ONCE_UNTIL


def stored_answer(txn: RegistryTxn, key: str, scope: str) -> dict[str, Any] | None:
    """Return the answer that `keep` stored for this key and scope; None if there is none or it expired."""
    raw = txn.get(ONCE + _once(key, scope))
    found = None if raw is None else json.loads(raw)
    return found["response"] if found is not None and found["until"] > time.time() else None


def keep(txn: RegistryTxn, key: str, scope: str, response: dict[str, Any], ttl_s: float) -> None:
    """Store an answer for `ttl_s` seconds, and delete some that have expired."""
    name, until = _once(key, scope), time.time() + ttl_s
    _drop_expired(txn)
    txn.put(ONCE + name, json.dumps({"until": until, "response": response}).encode())
    txn.put(f"{ONCE_UNTIL}{int(until):012d}/{name}", b"")


def _once(key: str, scope: str) -> str:
    return hashlib.sha256(f"{scope}\0{key}".encode()).hexdigest()


def _drop_expired(txn: RegistryTxn, at_most: int = 64) -> None:
    now = time.time()
    expired: list[str] = []
    # Other callers' records: damaged ones are skipped here, and reported by `Registry.problems`.
    for entry, _ in txn.items(ONCE_UNTIL, tolerant=True):
        if len(expired) == at_most or int(entry.partition("/")[0]) >= now:
            break
        expired.append(entry)
    for entry in expired:
        name = entry.partition("/")[2]
        with suppress(Damaged):
            raw = txn.get(ONCE + name)
            # The same key may have been stored again with a later expiry.
            if raw is not None and json.loads(raw)["until"] <= now:
                txn.delete(ONCE + name)
        txn.delete(ONCE_UNTIL + entry)
