"""Chooses the server that answers a tenant's calls: rendezvous hashing with bounded load.

Any server can answer any tenant. Calls of one tenant go to one server, so that the others need not hold its
modules in memory. Only a tenant for which that server has too much waiting is answered by further ones, and
always by the same.

Thaler and Ravishankar 1998 rank servers by a hash of key and server: one that comes or goes moves only its
own tenants. Mirrokni, Thorup and Zadimoghaddam 2018 bound loads by the mean of all servers. Here the bound is
in seconds of waiting: callers feel those, and no server needs to know the loads of all others.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import Final

import xxhash

FULL_S: Final = 0.25
"""A server is full for a tenant while a call of that tenant would wait there for longer than this."""
WIDEN_S: Final = 0.25
"""A further server answers a tenant when its calls have waited too long for this many seconds: not only for a
moment, and although the server that joined last had time to help."""
NARROW_S: Final = 30.0
"""One server less answers a tenant after this many seconds without much waiting."""


def ranked(tenant: str, servers: Collection[str]) -> list[str]:
    """Return the servers, given by id, in the order in which they should answer a tenant."""
    return sorted(
        servers, key=lambda one: (xxhash.xxh3_64_intdigest(f"{tenant}/{one}".encode()), one), reverse=True
    )


@dataclass(slots=True)
class _Wide:
    """How many servers answer a tenant, and since when so many are not needed, or are too few."""

    count: int
    since: float
    turns: int = 0
    """The number of calls that they have shared."""


class Ring:
    """The servers as one of them sees them. It has no locks: only the event loop's thread uses it.

    Times are seconds on any one clock that does not go back.
    """

    def __init__(self, me: str) -> None:
        """me: the id of the server that asks."""
        self._me = me
        self._servers: Mapping[str, str] = {}
        self._orders: dict[str, list[str]] = {}
        """`ranked` by tenant. Emptied when the servers change, and when it is large."""
        self._wide: dict[str, _Wide] = {}
        """Tenants whose calls have waited too long."""
        self._free_at: dict[tuple[str, str], float] = {}
        """When a server is no longer full, by server and tenant."""
        self._away: set[str] = set()
        self._pruned_at = 0.0

    @property
    def servers(self) -> Mapping[str, str]:
        """The URLs of all servers that answer, by id. This one is among them if it does."""
        return self._servers

    @property
    def away(self) -> Collection[str]:
        """The servers that could not be reached when they were last asked."""
        return self._away

    def set(self, servers: Mapping[str, str]) -> None:
        """These are the servers from now on."""
        if servers != self._servers:
            self._servers = dict(servers)
            self._away &= servers.keys()
            self._orders.clear()

    def choose(self, tenant: str, waits_s: float, at: float) -> str:
        """Return the id of the server that should answer a call: the first of the tenant's order that is
        neither full nor away. If none is, this one. If several answer the tenant, they take turns.

        waits_s: how long a call of the tenant would wait on this server, which has it already. How late the
        event loop is does not count here: to pass a call on takes the loop as long as to answer it.
        """
        if len(self._servers) < 2 and self._me in self._servers:
            return self._me
        for server in self._turn(tenant):
            if server == self._me:
                self._spread(tenant, waits_s, at)
                if waits_s <= FULL_S:
                    return server
            elif server not in self._away and self._free_at.get((server, tenant), at) <= at:
                return server
        return self._me

    def heard(self, server: str, tenant: str, waits_s: float, at: float) -> None:
        """A server has said how long a call of the tenant would wait there."""
        self._away.discard(server)
        if waits_s > FULL_S:
            self._free_at[server, tenant] = at + waits_s - FULL_S
        else:
            self._free_at.pop((server, tenant), None)
        self._spread(tenant, waits_s, at)

    def failed(self, server: str) -> None:
        """A server could not be reached. No call is passed to it until it is `found`."""
        if server in self._servers:
            self._away.add(server)

    def found(self, server: str) -> None:
        """A server answers again."""
        self._away.discard(server)

    def _spread(self, tenant: str, waits_s: float, at: float) -> None:
        """Let one server more answer a tenant, or one less, by what its calls wait at one of them."""
        wide = self._wide.get(tenant)
        if wide is None:
            if waits_s > FULL_S:
                self._wide[tenant] = _Wide(1, at)
                self._prune(at)
            return
        wide.count = min(wide.count, len(self._servers))
        if waits_s > FULL_S:
            if at - wide.since >= WIDEN_S:
                wide.count, wide.since = min(wide.count + 1, len(self._servers)), at
        elif waits_s > FULL_S / 2:  # as many as are needed
            wide.since = at
        elif wide.count < 2 or at - wide.since >= NARROW_S:
            wide.count, wide.since = wide.count - 1, at
            if wide.count < 2:
                del self._wide[tenant]

    def _turn(self, tenant: str) -> list[str]:
        """The tenant's order. Of those that answer it, another one is first each time."""
        order, wide = self._order(tenant), self._wide.get(tenant)
        count = min(wide.count, len(order)) if wide is not None else 1
        if wide is None or count < 2:
            return order
        wide.turns += 1
        at = wide.turns % count
        return [*order[at:count], *order[:at], *order[count:]]

    def _prune(self, at: float) -> None:
        """Forget what is past, when there is much of it."""
        if len(self._wide) > _MOST_WIDE and at - self._pruned_at >= 1.0:
            self._pruned_at = at
            self._free_at = {key: until for key, until in self._free_at.items() if until > at}
            self._wide = {tenant: one for tenant, one in self._wide.items() if at - one.since < NARROW_S}

    def _order(self, tenant: str) -> list[str]:
        order = self._orders.get(tenant)
        if order is None:
            if len(self._orders) >= _MOST_ORDERS:
                self._orders.clear()
            order = self._orders[tenant] = ranked(tenant, self._servers)
        return order


_MOST_ORDERS: Final = 65536
_MOST_WIDE: Final = 4096
