"""The life of keys: rotation, expiry, and when each was last used."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from hmi.core import KeyRecord
from hmi.record import time_text
from hmi.stores.records import key_table
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.table import RecordTable

KEPT_DAYS = 30
"""A tenant's key is deleted this many days after its expiry. Until then its holder learns why it fails."""
COARSE_S = 3600.0
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
        return self._database.write(
            lambda t: key_table.rotate_key(self._table, t, key_id, ends, successor, limit)
        )

    def reissue(self, key_id: str, sha256: str) -> KeyRecord:
        """Replace a key by another one of the same id. Raises NotFound."""
        return self._database.write(lambda t: key_table.reissue_key(self._table, t, key_id, sha256))

    def drop_expired(self) -> int:
        """Delete tenants' keys that expired KEPT_DAYS ago, and return their number."""
        before = time_text(datetime.now(UTC) - timedelta(days=KEPT_DAYS))
        return self._database.write(lambda t: key_table.drop_expired(self._table, t, before))

    def note_use(self, key_id: str) -> None:
        """Note that a key is used now. It costs well below a microsecond."""
        self._used[key_id] = time.time()

    def last_used(self, keys: Sequence[KeyRecord]) -> dict[str, str]:
        """Return the last use of keys, by id: to the hour, or to the second since the last `store_used`."""
        stored = self._database.read(lambda t: key_table.used_at(t, [key.key_id for key in keys]))
        lately = {k.key_id: _text(at) for k in keys if (at := self._used.get(k.key_id)) is not None}
        return {**stored, **lately}

    def store_used(self) -> None:
        """Store when keys were last used, each at most once in COARSE_S. What a killed process had not
        stored is lost."""
        with self._storing:
            used, self._used = self._used, {}
            stored = self._database.read(lambda t: key_table.used_at(t, used))
            later = {
                key_id: _text(at)
                for key_id, at in used.items()
                if key_id not in stored or at - _seconds(stored[key_id]) >= COARSE_S
            }
            if not later:
                return
            try:
                self._database.write(lambda t: key_table.put_used(t, later))
            except BaseException:
                self._used = {**used, **self._used}  # for the next time
                raise


def _text(at: float) -> str:
    return time_text(datetime.fromtimestamp(int(at), UTC))


def _seconds(text: str) -> float:
    return datetime.fromisoformat(text).timestamp()
