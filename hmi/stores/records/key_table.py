"""Access keys in the registry, indexed by hash (for requests) and by tenant (for lists), and their life.

The key itself is never stored.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime, timedelta

from hmi.core import KeyRecord, check_name
from hmi.errors import Conflict, Damaged, NotFound, QuotaExceeded
from hmi.record import time_text
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import KEY, KEY_ID, KEY_OF, KEY_USED, RecordTable

KEPT_DAYS = 30
"""A tenant's key is deleted this many days after its expiry. Until then its holder learns why it fails."""
_COARSE_S = 3600.0
"""A key's last use is stored once in this time, so that no key causes many writes."""


class KeyRing:
    """The keys of a registry, beyond `Registry.put_key` and its like. Thread-safe."""

    def __init__(self, database: RegistryDatabase, table: RecordTable) -> None:
        self._database, self._table = database, table
        self._used: dict[str, float] = {}
        """The last use of each key since the last `store_used`, in seconds since 1970."""
        self._storing = threading.Lock()

    def rotate(
        self, key_id: str, ends: str, successor: Callable[[KeyRecord], KeyRecord], limit: int | None = None
    ) -> tuple[KeyRecord, KeyRecord]:
        """Let `successor` follow a key, which itself expires at `ends`, in one transaction. Returns both.

        Raises NotFound, Conflict (the key has expired), QuotaExceeded (the tenant would have more than
        `limit` keys).
        """
        return self._database.write(lambda t: rotate_key(self._table, t, key_id, ends, successor, limit))

    def reissue(self, key_id: str, sha256: str) -> KeyRecord:
        """Replace a key by another one of the same id. Raises NotFound."""
        return self._database.write(lambda t: reissue_key(self._table, t, key_id, sha256))

    def drop_expired(self) -> int:
        """Delete tenants' keys that expired KEPT_DAYS ago, and return their number."""
        before = time_text(datetime.now(UTC) - timedelta(days=KEPT_DAYS))
        return self._database.write(lambda t: drop_expired(self._table, t, before))

    def note_use(self, key_id: str) -> None:
        """Note that a key is used now. It costs well below a microsecond."""
        self._used[key_id] = time.time()

    def last_used(self, keys: Sequence[KeyRecord]) -> dict[str, str]:
        """Return the last use of keys, by id: to the hour, or to the second since the last `store_used`."""
        stored = self._database.read(lambda t: used_at(t, [key.key_id for key in keys]))
        lately = {k.key_id: _text(at) for k in keys if (at := self._used.get(k.key_id)) is not None}
        return {**stored, **lately}

    def store_used(self) -> None:
        """Store when keys were last used, each at most once in _COARSE_S. What a killed process had not
        stored is lost."""
        with self._storing:
            used, self._used = self._used, {}
            stored = self._database.read(lambda t: used_at(t, used))
            later = {
                key_id: _text(at)
                for key_id, at in used.items()
                if key_id not in stored or at - _seconds(stored[key_id]) >= _COARSE_S
            }
            if not later:
                return
            try:
                self._database.write(lambda t: put_used(t, later))
            except BaseException:
                self._used = {**used, **self._used}  # for the next time
                raise


def _text(at: float) -> str:
    return time_text(datetime.fromtimestamp(int(at), UTC))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()


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
