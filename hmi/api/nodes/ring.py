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
from typing import Final

import xxhash

FULL_S: Final = 0.25
"""A server is full for a tenant while a text of that tenant would wait there for longer than this."""
AWAY_S: Final = 5.0
"""A server that could not be reached is not asked for this many seconds, and for twice as many each further
time in a row: a call that finds out costs its caller seconds if a machine has vanished."""
MOST_AWAY_S: Final = 60.0


def ranked(tenant: str, servers: Collection[str]) -> list[str]:
    """Return the servers, given by id, in the order in which they should answer a tenant."""
    return sorted(
        servers, key=lambda one: (xxhash.xxh3_64_intdigest(f"{tenant}/{one}".encode()), one), reverse=True
    )


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
        self._failures: dict[str, int] = {}
        """The number of failures in a row, by server."""
        self._free_at: dict[tuple[str, str | None], float] = {}
        """When a server is no longer full, by server and tenant; or reachable, for the tenant None."""

    @property
    def servers(self) -> Mapping[str, str]:
        """The URLs of all servers that answer, by id. This one is among them if it does."""
        return self._servers

    def set(self, servers: Mapping[str, str]) -> None:
        """These are the servers from now on."""
        if servers != self._servers:
            self._servers = dict(servers)
            self._failures = {one: n for one, n in self._failures.items() if one in servers}
            self._orders.clear()

    def choose(self, tenant: str, waits_s: float, at: float) -> str:
        """Return the id of the server that should answer a call: the first of the tenant's order that is
        neither full nor away. If none is, this one.

        waits_s: how long a text of the tenant would wait on this server.
        """
        if len(self._servers) < 2 and self._me in self._servers:
            return self._me
        for server in self._order(tenant):
            if server == self._me:
                if waits_s <= FULL_S:
                    return server
            elif not self._is_full(server, tenant, at):
                return server
        return self._me

    def heard(self, server: str, tenant: str, waits_s: float, at: float) -> None:
        """A server has said how long a text of the tenant would wait there."""
        self._failures.pop(server, None)
        if waits_s > FULL_S:
            self._free_at[server, tenant] = at + waits_s - FULL_S
            self._forget(at)
        else:
            self._free_at.pop((server, tenant), None)

    def failed(self, server: str, at: float) -> None:
        """A server could not be reached."""
        before = self._failures.get(server, 0)
        self._failures[server] = before + 1
        self._free_at[server, None] = at + min(AWAY_S * 2.0 ** min(before, 10), MOST_AWAY_S)
        self._forget(at)

    def _is_full(self, server: str, tenant: str, at: float) -> bool:
        if not self._free_at:
            return False
        return self._free_at.get((server, tenant), at) > at or self._free_at.get((server, None), at) > at

    def _order(self, tenant: str) -> list[str]:
        order = self._orders.get(tenant)
        if order is None:
            if len(self._orders) >= _MOST_ORDERS:
                self._orders.clear()
            order = self._orders[tenant] = ranked(tenant, self._servers)
        return order

    def _forget(self, at: float) -> None:
        if len(self._free_at) > _MOST_FULL:
            self._free_at = {key: until for key, until in self._free_at.items() if until > at}


_MOST_ORDERS: Final = 65536
_MOST_FULL: Final = 4096
