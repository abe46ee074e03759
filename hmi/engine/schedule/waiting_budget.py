"""A limit on waiting work, for all tenants together and for each. Used on the event loop's thread only."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable
from typing import NoReturn

from hmi.errors import QuotaExceeded, Unavailable

ROOM_SHARE = 1 / 4
"""The fraction of a room that one tenant may fill."""
LONGEST_RETRY_S = 60
"""The most seconds after which a refused caller is told to try again."""


class WaitingBudget:
    """Waiting work by tenant, in units such as tokens.

    A tenant may exceed its share by one large call. The excess takes no room from other tenants. `wait_s`
    predicts the seconds until what waits is done: one tenant's work, or with None everybody's.
    """

    def __init__(
        self, capacity: int, unit: str, wait_s: Callable[[str | None], float] = lambda tenant: 1.0
    ) -> None:
        self._capacity, self._unit, self._wait_s = capacity, unit, wait_s
        self._share = max(1, int(capacity * ROOM_SHARE))
        self._taken: Counter[str] = Counter()
        self._counted = 0
        """The amount taken by all tenants, each counted up to its share."""
        self.taken = 0
        """The waiting work of all tenants. It may be read on any thread."""

    def check(self, wanted: Counter[str]) -> None:
        """Raise if there is no room for these amounts. If nothing waits, a call of any size is accepted.

        Raises QuotaExceeded if a tenant would exceed its share, Unavailable if all together would exceed the
        capacity.
        """
        for tenant, amount in wanted.items():
            if self._taken[tenant] and self._taken[tenant] + amount > self._share:
                self.refuse_tenant(tenant)
        added = sum(min(amount, self._share) for amount in wanted.values())
        if self._counted and self._counted + added > self._capacity:
            self.refuse_all()

    def refuse_tenant(self, tenant: str) -> NoReturn:
        """Raise QuotaExceeded: the tenant itself has too much waiting."""
        raise QuotaExceeded(
            f"tenant {tenant} has {self._taken[tenant]} {self._unit} waiting, and with this call more than "
            "one tenant may have: wait for the answers to its calls under way, then try again",
            retry_after_s=self._retry_s(tenant),
        )

    def refuse_all(self) -> NoReturn:
        """Raise Unavailable: all tenants together have too much waiting."""
        raise Unavailable(
            f"overloaded: {self.taken} {self._unit} are waiting; try again shortly",
            retry_after_s=self._retry_s(None),
        )

    def take(self, wanted: Counter[str]) -> None:
        """Add `wanted`, or raise as `check` does and add nothing."""
        self.check(wanted)
        for tenant, amount in wanted.items():
            self._add(tenant, amount)

    def release(self, tenant: str, amount: int) -> None:
        """Take less: what is done, or was not as much as it was taken for. Less than 0 takes more, as what is
        under way has turned out to be."""
        self._add(tenant, -amount)
        if not self._taken[tenant]:
            del self._taken[tenant]

    def clear(self) -> None:
        self._taken.clear()
        self.taken = self._counted = 0

    def _add(self, tenant: str, amount: int) -> None:
        before = self._taken[tenant]
        self._taken[tenant] = after = before + amount
        self.taken += amount
        self._counted += min(after, self._share) - min(before, self._share)

    def _retry_s(self, tenant: str | None) -> int:
        """Whole seconds, at least 1, until what waits is predicted to be done."""
        return max(1, math.ceil(min(self._wait_s(tenant), LONGEST_RETRY_S)))
