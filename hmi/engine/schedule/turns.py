"""Fair turns between tenants: the next is the one that has received least for its weight.

It has no locks: each `Turns` is used on one thread, such as the event loop's.
"""

from __future__ import annotations

from collections.abc import Collection

MAX_TENANTS = 4096
"""The number of remembered tenants above which those that no longer matter are dropped."""


class Turns:
    """Seconds of one shared resource that each tenant has received, divided by the tenant's weight.

    So of two tenants that always wait, one with twice the weight receives twice as much. A tenant that comes,
    or comes back, starts at the level: what a tenant has received that always waited. So no tenant saves up
    turns by staying away, and none gains by leaving for an instant. The level rises with every turn, also
    while new tenants come all the time. Else they would all go before those that had a turn a moment ago.
    """

    def __init__(self) -> None:
        self._given: dict[str, float] = {}
        self._weights: dict[str, float] = {}
        """The weights that are not 1."""
        self._most = self._most_weights = MAX_TENANTS
        self._level = 0.0
        """As it was when the last turn began."""
        self._starts: dict[str, float] = {}
        """The level at which each tenant came that waited then, and has waited since."""
        self._served, self._shares = 0.0, 1.0
        """Seconds charged since then, and the weights of all that waited then."""

    def given(self, tenant: str) -> float:
        """Seconds, divided by its weight, that the tenant counts as having received."""
        return max(self._given.get(tenant, 0.0), self._starts.get(tenant, self._level))

    def begin(self, waiting: Collection[str]) -> None:
        """Begin a turn, given the tenants that wait, at least one. Those that do not get it lose nothing."""
        stayed = [self.given(tenant) for tenant in waiting if tenant in self._starts]
        # What was charged may be given back later, so the level could exceed all that tenants received.
        most = max(map(self.given, waiting))
        # If nobody has waited since the last turn, all got what they wanted, and start anew.
        least = min(stayed, default=most)
        self._starts = {tenant: self._starts.get(tenant, self._level) for tenant in waiting}
        self._level = min(max(self._level + self._served / self._shares, least), most)
        self._served, self._shares = 0.0, self.weight_of_others(waiting)
        if len(self._weights) > self._most_weights:
            self._weights = {t: self._weights[t] for t in waiting if t in self._weights}
            self._most_weights = max(MAX_TENANTS, 2 * len(self._weights))

    def leave(self, tenant: str) -> None:
        """Let a tenant that has got all it wanted come back at the level, even before the next turn.

        Else one that wants little in every turn would save up the rest of its share.
        """
        self._starts.pop(tenant, None)

    def weigh(self, tenant: str, weight: float) -> None:
        """Set a tenant's weight for what it receives until it no longer waits. Then it may be forgotten."""
        if weight == 1.0:
            self._weights.pop(tenant, None)
        else:
            self._weights[tenant] = weight

    def weight(self, tenant: str) -> float:
        """The tenant's weight while it waits."""
        return self._weights.get(tenant, 1.0)

    def weight_of_others(self, waiting: Collection[str], tenant: str | None = None) -> float:
        """The sum of the weights of the tenants that wait, apart from this one. Cheap for many tenants."""
        weights = [w for other, w in self._weights.items() if other != tenant and other in waiting]
        of_one = len(waiting) - len(weights) - (tenant in waiting)
        return of_one + sum(weights)

    def give_back(self, tenant: str, seconds: float) -> None:
        """Take back a part of what a tenant was charged. `given` keeps one that does not wait from saving it
        up."""
        self._served -= seconds
        if tenant in self._given:
            self._given[tenant] -= seconds / self.weight(tenant)

    def charge(self, tenant: str, seconds: float) -> None:
        self._served += seconds
        self._given[tenant] = self.given(tenant) + seconds / self.weight(tenant)
        if len(self._given) > self._most:
            self._given = {t: g for t, g in self._given.items() if g > self._level or t in self._starts}
            self._most = max(MAX_TENANTS, 2 * len(self._given))
