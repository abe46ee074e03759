"""Quotas of tenants' own keys. They do not bind administrators.

Streams and changes are counted here; the registry counts jobs and keys itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

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
    _changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each tenant its token bucket: the changes that are left, and the monotonic time of that count."""

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
        at = time.monotonic()
        left, then = self._changes.get(tenant, (float(CHANGES_AT_ONCE), at))
        left = min(float(CHANGES_AT_ONCE), left + (at - then) * CHANGES_PER_S)
        if left < 1:
            raise QuotaExceeded(
                f"tenant {tenant} makes too many changes: it may make {CHANGES_AT_ONCE} in a row, and "
                f"{CHANGES_PER_S:g} a second in the long run; try again in a few seconds",
                limit=CHANGES_AT_ONCE,
            )
        self._changes[tenant] = left - 1, at
