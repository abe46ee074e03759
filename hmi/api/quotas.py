"""Quotas on a tenant's keys: streams at once and changes in a row. They do not bind administrators.

The registry counts a tenant's jobs and keys itself.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from hmi.errors import QuotaExceeded

TENANT_JOBS = 100
"""Queued and running jobs that a tenant may have."""
TENANT_KEYS = 100
"""Keys that a tenant may hold."""
TENANT_STREAMS = 32
"""Jobs that a tenant may follow at once."""
CHANGES_AT_ONCE = 200
CHANGES_PER_S = 2.0
"""A tenant may change things so many times in a row, and so many times a second in the long run."""


@dataclass
class Quotas:
    """The quotas of one server, in memory. Used by the event loop only."""

    _streams: Counter[str] = field(default_factory=Counter)
    _changes: dict[str, tuple[float, float]] = field(default_factory=dict)
    """For each tenant the changes that it has left, and the time of that count."""

    @contextmanager
    def stream(self, tenant: str | None) -> Iterator[None]:
        """Count a stream for the block; raises QuotaExceeded."""
        if tenant is None:
            yield
            return
        if self._streams[tenant] >= TENANT_STREAMS:
            raise QuotaExceeded(
                f"tenant {tenant} already follows {TENANT_STREAMS} jobs at once: end one, or ask GET "
                "/manage/jobs",
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
        """Count a call that creates, changes or deletes; raises QuotaExceeded."""
        if tenant is None:
            return
        at = time.monotonic()
        left, then = self._changes.get(tenant, (float(CHANGES_AT_ONCE), at))
        left = min(float(CHANGES_AT_ONCE), left + (at - then) * CHANGES_PER_S)
        if left < 1:
            raise QuotaExceeded(
                f"tenant {tenant} makes too many changes: at most {CHANGES_AT_ONCE} calls in a row, and "
                f"{CHANGES_PER_S:g} a second in the long run; try again in a few seconds",
                limit=CHANGES_AT_ONCE,
            )
        self._changes[tenant] = left - 1, at
