"""The tenants that sent something lately. Used on the event loop's thread only (no locks)."""

from __future__ import annotations

import time
from collections.abc import Container

RECENT_S = 1.0
"""A tenant that sent something within this many seconds is expected to send more at any moment."""


class Recent:
    """The time at which each tenant last sent something. Entries expire after RECENT_S."""

    def __init__(self) -> None:
        self._sent: dict[str, float] = {}
        """`time.monotonic()` by tenant, the latest last."""

    def sent(self, tenant: str) -> None:
        self._sent.pop(tenant, None)
        self._sent[tenant] = time.monotonic()
        self._forget()

    def other_than(self, tenants: Container[str]) -> bool:
        """Return whether a tenant that is not among `tenants` sent something lately."""
        self._forget()
        return any(tenant not in tenants for tenant in self._sent)

    def _forget(self) -> None:
        since = time.monotonic() - RECENT_S
        while self._sent and (first := next(iter(self._sent.items())))[1] < since:
            del self._sent[first[0]]
