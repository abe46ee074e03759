"""A limit on waiting work, for all tenants together and for each. Used on the event loop's thread only."""

from __future__ import annotations

from collections import Counter

from hmi.errors import Unavailable

ROOM_SHARE = 1 / 4
"""The fraction of a room that one tenant may fill."""


class Room:
    """Waiting work by tenant, in units such as tokens.

    A tenant may exceed its share by one large call. The excess takes no room from other tenants.
    """

    def __init__(self, capacity: int, unit: str) -> None:
        self._capacity, self._unit = capacity, unit
        self._share = max(1, int(capacity * ROOM_SHARE))
        self._taken: Counter[str] = Counter()
        self.taken = 0
        """The waiting work of all tenants. It may be read on any thread."""

    def check(self, wanted: Counter[str]) -> None:
        """Raise Unavailable if a tenant would exceed its share, or all tenants together the capacity.

        If nothing else waits, a call of any size is accepted.
        """
        mine = self._taken
        over_share = any(mine[t] and mine[t] + amount > self._share for t, amount in wanted.items())
        waiting, added = self._counted(self._taken), self._counted(wanted)
        if over_share or (waiting and waiting + added > self._capacity):
            raise Unavailable(
                f"overloaded: {self.taken} {self._unit} are waiting; try again shortly", retry_after_s=1
            )

    def take(self, wanted: Counter[str]) -> None:
        """Add `wanted`, or raise Unavailable as `check` does and add nothing."""
        self.check(wanted)
        self._taken.update(wanted)
        self.taken += wanted.total()

    def release(self, tenant: str, amount: int) -> None:
        self._taken[tenant] -= amount
        self.taken -= amount
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        self._taken.clear()
        self.taken = 0

    def _counted(self, amounts: Counter[str]) -> int:
        """The sum of these amounts, without what exceeds each tenant's share."""
        return sum(min(amount, self._share) for amount in amounts.values())
