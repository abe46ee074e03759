"""Access keys in the registry, indexed by hash (for requests) and by tenant (for lists).

The key itself is never stored.
"""

from __future__ import annotations

import re

from hmi.core import KeyRecord, check_name
from hmi.errors import NotFound, QuotaExceeded
from hmi.stores.sealed import RegistryTxn
from hmi.stores.table import KEY, KEY_ID, KEY_OF, Table

_SHA256 = re.compile(r"[0-9a-f]{64}")
_KEY_ID = re.compile(r"[A-Za-z0-9_-]{1,64}")


def put_key(table: Table, txn: RegistryTxn, record: KeyRecord) -> None:
    assert _SHA256.fullmatch(record.sha256), "a key is stored as its SHA-256"
    assert _KEY_ID.fullmatch(record.key_id), "a key's id is short and plain"
    table.put(txn, KEY + record.sha256, record)
    txn.put(_of(record.tenant) + record.key_id, record.sha256.encode())
    txn.put(KEY_ID + record.key_id, (record.tenant or "").encode())


def find_key(table: Table, txn: RegistryTxn, sha256: str) -> KeyRecord | None:
    return table.get(txn, KEY + sha256, KeyRecord) if _SHA256.fullmatch(sha256) else None


def keys_of(table: Table, txn: RegistryTxn, tenant: str | None) -> list[KeyRecord]:
    found = [table.get(txn, KEY + sha.decode(), KeyRecord) for _, sha in txn.items(_of(tenant))]
    return sorted((k for k in found if k is not None), key=lambda k: (k.created, k.key_id))


def check_count(txn: RegistryTxn, tenant: str | None, limit: int | None) -> None:
    """Raise QuotaExceeded if a tenant has `limit` keys."""
    if limit is not None and len(txn.keys(_of(tenant))) >= limit:
        raise QuotaExceeded(
            f"tenant {tenant} has {limit} keys: revoke one that is not used any more",
            quota="keys",
            limit=limit,
            retry_after_s=None,
        )


def revoke_key(table: Table, txn: RegistryTxn, key_id: str) -> KeyRecord:
    tenant = txn.get(KEY_ID + key_id) if _KEY_ID.fullmatch(key_id) else None
    if tenant is None:
        raise NotFound(f"there is no key {key_id[:80]!r}: see the list of keys")
    of = _of(tenant.decode() or None)
    sha = txn.get(of + key_id)
    assert sha is not None, "the indexes of keys agree"
    record = table.get(txn, KEY + sha.decode(), KeyRecord)
    assert record is not None, "the indexes of keys agree"
    for key in (KEY + record.sha256, of + key_id, KEY_ID + key_id):
        txn.delete(key)
    return record


def any_keys(txn: RegistryTxn) -> bool:
    return next(txn.items(KEY), None) is not None


def _of(tenant: str | None) -> str:
    return f"{KEY_OF}{'' if tenant is None else check_name(tenant, 'tenant')}/"
