"""Fair turns between tenants: the next is the one that has received least.

It has no locks: only the event loop's thread uses it.
"""

from __future__ import annotations

MAX_TENANTS = 4096
"""Tenants remembered before those that no longer matter are dropped."""


class Turns:
    """Seconds of one shared resource that each tenant has received.

    A tenant that comes, or comes back, starts level with the tenant whose turn it is. So no tenant saves up
    turns by staying away, and none gains by leaving for an instant.
    """

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._most = MAX_TENANTS
        self._now = 0.0
        """What the tenant whose turn began last had received then. No waiting tenant has received less."""

    def given(self, tenant: str) -> float:
        """Seconds that the tenant counts as having received."""
        return max(self._given.get(tenant, 0.0), self._now)

    @property
    def now(self) -> float:
        """Seconds that the tenant whose turn began last had received then."""
        return self._now

    def begin(self, tenant: str) -> None:
        """Begin the turn of `tenant`, the waiting tenant that has received least."""
        self._now = self.given(tenant)

    def charge(self, tenant: str, seconds: float) -> None:
        self._given[tenant] = self.given(tenant) + seconds
        if len(self._given) > self._most:
            self._given = {t: given for t, given in self._given.items() if given > self._now}
            self._most = max(MAX_TENANTS, 2 * len(self._given))
