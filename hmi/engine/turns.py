"""Turns: the next tenant is the one that has received least. Owned by the event loop's thread (no locks)."""

from __future__ import annotations

KEPT = 4096


class Turns:
    """The seconds of one shared thing that each tenant has received.

    A tenant that comes, or comes back, starts level with the tenant whose turn it is. So nobody saves up
    turns by being away, and nobody gains by going away for an instant.
    """

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._most = KEPT
        self._now = 0.0
        """Where the tenant stood whose turn began last: of those that wait nobody stands before it."""

    def given(self, tenant: str) -> float:
        """The least goes first."""
        return max(self._given.get(tenant, 0.0), self._now)

    @property
    def now(self) -> float:
        """Where the tenant stood whose turn began last."""
        return self._now

    def begin(self, tenant: str) -> None:
        """The turn of `tenant` begins, the first of all that wait."""
        self._now = self.given(tenant)

    def charge(self, tenant: str, seconds: float) -> None:
        self._given[tenant] = self.given(tenant) + seconds
        if len(self._given) > self._most:
            self._given = {t: given for t, given in self._given.items() if given > self._now}
            self._most = max(KEPT, 2 * len(self._given))
