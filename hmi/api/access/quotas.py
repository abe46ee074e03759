"""Quotas of tenants' own keys, the same for all tenants. They do not bind administrators.

Streams and changes are counted here; the registry counts jobs and keys itself. Limits that a tenant may have
of its own are elsewhere: `hmi.api.access.rates` counts calls and tokens, `hmi.stores.records.tenant_room`
models and bytes."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hmi.api.access.buckets import Buckets, Rate
from hmi.errors import QuotaExceeded

TENANT_JOBS = 100
"""Most queued and running jobs of a tenant."""
TENANT_KEYS = 100
"""Most keys of a tenant."""
TENANT_STREAMS = 32
"""Most jobs that a tenant may follow at once."""
CHANGES_AT_ONCE = 200
"""Capacity of a tenant's token bucket: the changes that it may make in a row."""
CHANGES_PER_S = 2.0
"""Refill rate of the bucket: the changes a second that a tenant may make in the long run."""


@dataclass
class Quotas:
    """Counts what tenants use of their quotas, in memory. For the event loop only."""

    _streams: Counter[str] = field(default_factory=Counter)
    _changes: Buckets = field(default_factory=Buckets)

    @contextmanager
    def stream(self, tenant: str | None) -> Iterator[None]:
        """Context manager: a stream of the tenant is open in the block. Raises QuotaExceeded."""
        if tenant is None:
            yield
            return
        if self._streams[tenant] >= TENANT_STREAMS:
            raise QuotaExceeded(
                f"tenant {tenant} already follows {TENANT_STREAMS} jobs at once: end one, or call GET "
                "/manage/jobs instead",
                quota="streams",
                limit=TENANT_STREAMS,
            )
        self._streams[tenant] += 1
        try:
            yield
        finally:
            self._streams[tenant] -= 1
            if not self._streams[tenant]:
                del self._streams[tenant]

    def change(self, tenant: str | None) -> None:
        """Count a call that creates, changes or deletes something. Raises QuotaExceeded."""
        if tenant is None:
            return
        rate = Rate(CHANGES_PER_S, CHANGES_AT_ONCE)
        wait_s = math.ceil(self._changes.wait_s(tenant, rate, 1))
        if wait_s:
            raise QuotaExceeded(
                f"tenant {tenant} makes too many changes: it may make {CHANGES_AT_ONCE} in a row, and "
                f"{CHANGES_PER_S:g} a second in the long run; try again in {wait_s} s",
                quota="changes",
                limit=CHANGES_AT_ONCE,
                retry_after_s=wait_s,
            )
        self._changes.take(tenant, rate, 1)
