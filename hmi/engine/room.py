"""Limits on waiting work: one for all tenants together and a share of it for each. The event loop's thread
owns it."""

from __future__ import annotations

from collections import Counter

from hmi.errors import Unavailable

TENANT_SHARE = 4
"""A tenant may fill one in so many parts of a room, however much it sends."""


class Room:
    """Counts waiting work by tenant, in units such as tokens. A tenant may exceed its share by one large
    call; the excess takes no room from the others."""

    def __init__(self, capacity: int, unit: str) -> None:
        self._capacity, self._unit = capacity, unit
        self._share = max(1, capacity // TENANT_SHARE)
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """By all tenants."""
        return self._taken.total()

    def check(self, wanted: Counter[str]) -> None:
        """Raise Unavailable where a tenant's own would exceed its share, or all tenants' together the whole.

        One call alone is let in, however large.
        """
        taken = sum(min(amount, self._share) for amount in self._taken.values())
        for tenant, amount in wanted.items():
            mine = self._taken[tenant]
            if (mine and mine + amount > self._share) or (
                taken and taken + min(amount, self._share) > self._capacity
            ):
                raise Unavailable(
                    f"overloaded: {self.taken} {self._unit} are waiting; try again shortly", retry_after_s=1
                )

    def take(self, wanted: Counter[str]) -> None:
        """Take place for all of `wanted` or none; raises Unavailable as `check` does."""
        self.check(wanted)
        self._taken.update(wanted)

    def leave(self, tenant: str, amount: int) -> None:
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        self._taken.clear()
