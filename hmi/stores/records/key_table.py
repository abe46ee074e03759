"""Access keys in the registry, indexed by hash (for requests) and by tenant (for lists).

The key itself is never stored.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress

from hmi.core import KeyRecord, check_name
from hmi.errors import Conflict, Damaged, NotFound, QuotaExceeded
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import KEY, KEY_ID, KEY_OF, KEY_USED, RecordTable

_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def put_key(table: RecordTable, txn: RegistryTxn, record: KeyRecord) -> None:
    assert _SHA256.fullmatch(record.sha256), "a key is stored as its SHA-256"
    assert _KEY_ID.fullmatch(record.key_id), "a key's id is short and plain"
    table.put(txn, KEY + record.sha256, record)
    txn.put(_of(record.tenant) + record.key_id, record.sha256.encode())
    txn.put(KEY_ID + record.key_id, (record.tenant or "").encode())


def find_key(table: RecordTable, txn: RegistryTxn, sha256: str) -> KeyRecord | None:
    return table.get(txn, KEY + sha256, KeyRecord) if _SHA256.fullmatch(sha256) else None


def keys_of(table: RecordTable, txn: RegistryTxn, tenant: str | None) -> list[KeyRecord]:
    found = [table.get(txn, KEY + sha.decode(), KeyRecord) for _, sha in txn.items(_of(tenant))]
    return sorted((k for k in found if k is not None), key=lambda k: (k.created, k.key_id))


def check_count(table: RecordTable, txn: RegistryTxn, tenant: str | None, limit: int | None) -> None:
    """Raise QuotaExceeded if a tenant has `limit` keys. Keys that have expired are deleted first."""
    if limit is None or len(txn.keys(_of(tenant))) < limit:
        return
    for key in keys_of(table, txn, tenant):
        if key.expired:
            revoke_key(table, txn, key.key_id)
    if len(txn.keys(_of(tenant))) >= limit:
        raise QuotaExceeded(
            f"tenant {tenant} has {limit} keys: revoke one that is not used any more",
            quota="keys",
            limit=limit,
            retry_after_s=None,
        )


def revoke_key(table: RecordTable, txn: RegistryTxn, key_id: str) -> KeyRecord:
    record = _key(table, txn, key_id)
    of = _of(record.tenant)
    for key in (KEY + record.sha256, of + key_id, KEY_ID + key_id, KEY_USED + key_id):
        txn.delete(key)
    return record


def rotate_key(
    table: RecordTable,
    txn: RegistryTxn,
    key_id: str,
    ends: str,
    successor: Callable[[KeyRecord], KeyRecord],
    limit: int | None,
) -> tuple[KeyRecord, KeyRecord]:
    """Store the successor of a key, which itself expires at `ends`, or earlier if it would anyway.

    Returns both. Raises NotFound, Conflict (the key has expired or has a successor), QuotaExceeded.
    """
    old = _key(table, txn, key_id)
    if old.expired:
        raise Conflict(f"key {key_id} expired at {old.expires}: issue a new one")
    if old.successor is not None:
        raise Conflict(f"key {key_id} has been rotated already: rotate its successor {old.successor}")
    new = successor(old)
    changes = {"expires": min(ends, old.expires or ends), "successor": new.key_id}
    old = old.model_copy(update=changes)
    table.put(txn, KEY + old.sha256, old)
    check_count(table, txn, old.tenant, limit)
    put_key(table, txn, new)
    return old, new


def reissue_key(table: RecordTable, txn: RegistryTxn, key_id: str, sha256: str) -> KeyRecord:
    """Replace a key by another one of the same id. Raises NotFound."""
    new = revoke_key(table, txn, key_id).model_copy(update={"sha256": sha256})
    put_key(table, txn, new)
    return new


def drop_expired(table: RecordTable, txn: RegistryTxn, before: str) -> int:
    """Delete tenants' keys that expired before that time, and return their number.

    Administrators' keys stay: without any, a server on loopback would admit everybody.
    """
    keys = table.all(txn, KEY, KeyRecord, tolerant=True)
    old = [k for k in keys if k.tenant is not None and k.expires is not None and k.expires < before]
    for key in old:
        revoke_key(table, txn, key.key_id)
    return len(old)


def used_at(txn: RegistryTxn, key_ids: Iterable[str]) -> dict[str, str]:
    """Return the last use of these keys, by id, as `put_used` has stored it. Keys that were never used are
    left out.
    """
    with suppress(Damaged):
        found = ((key_id, txn.get(KEY_USED + key_id)) for key_id in key_ids)
        return {key_id: at.decode() for key_id, at in found if at is not None}
    return {}


def put_used(txn: RegistryTxn, used: Mapping[str, str]) -> None:
    """Store when keys were last used. Keys that have been revoked meanwhile are left out."""
    for key_id, at in used.items():
        if txn.get(KEY_ID + key_id) is not None:
            txn.put(KEY_USED + key_id, at.encode())


def _key(table: RecordTable, txn: RegistryTxn, key_id: str) -> KeyRecord:
    """Raises NotFound."""
    tenant = txn.get(KEY_ID + key_id) if _KEY_ID.fullmatch(key_id) else None
    if tenant is None:
        raise NotFound(f"there is no key {key_id[:80]!r}: see the list of keys")
    sha = txn.get(_of(tenant.decode() or None) + key_id)
    assert sha is not None, "the indexes of keys agree"
    record = table.get(txn, KEY + sha.decode(), KeyRecord)
    assert record is not None, "the indexes of keys agree"
    return record


def any_keys(txn: RegistryTxn) -> bool:
    return next(txn.items(KEY), None) is not None


def _of(tenant: str | None) -> str:
    return f"{KEY_OF}{'' if tenant is None else check_name(tenant, 'tenant')}/"
