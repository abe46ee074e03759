"""A limit on waiting work, for all tenants together and for each. Used on the event loop's thread only."""

from __future__ import annotations

from collections import Counter

from hmi.errors import Unavailable

TENANT_SHARE = 4
"""A tenant may fill this fraction (1/4) of a room."""


class Room:
    """Waiting work by tenant, in units such as tokens.

    A tenant may exceed its share by one large call. The excess takes no room from other tenants.
    """

    def __init__(self, capacity: int, unit: str) -> None:
        self._capacity, self._unit = capacity, unit
        self._share = max(1, capacity // TENANT_SHARE)
        self._taken: Counter[str] = Counter()

    @property
    def taken(self) -> int:
        """The waiting work of all tenants."""
        return self._taken.total()

    def check(self, wanted: Counter[str]) -> None:
        """Raise Unavailable if a tenant would exceed its share, or all tenants together the capacity.

        If nothing else waits, a call of any size is accepted.
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
        """Add `wanted`, or raise Unavailable as `check` does and add nothing."""
        self.check(wanted)
        self._taken.update(wanted)

    def release(self, tenant: str, amount: int) -> None:
        self._taken[tenant] -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        self._taken.clear()
