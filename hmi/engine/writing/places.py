"""Places for texts that are written at a time, shared between tenants."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class Places:
    """A tenant's share is the number of places, divided by that of the tenants that have or want one.

    Below its share a tenant gets a place at once, also if others, which came while they were fewer, have
    taken all. Beyond its share it gets a free place. A free place goes to the tenant that has the fewest, of
    several to the one that waits longest. So a tenant alone may have all places, nobody waits for the texts
    of one that has more, and k tenants have at most 1 + 1/2 + ... + 1/k times as many places as there are.

    Used on the event loop's thread only.
    """

    def __init__(self, count: int) -> None:
        self._count = count
        self._taken: Counter[str] = Counter()
        """The places of each tenant that has one, from the moment that it gets it."""
        self._waiting: dict[str, deque[asyncio.Future[None]]] = {}

    @property
    def taken(self) -> int:
        return self._taken.total()

    @property
    def waiting(self) -> int:
        """The number of texts that wait for a place."""
        return sum(map(len, self._waiting.values()))

    async def take(self, tenant: str) -> None:
        """Wait for a place, and hold it until `give_back`."""
        mine = asyncio.get_running_loop().create_future()
        self._waiting.setdefault(tenant, deque()).append(mine)
        self._pass_on()
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                self._leave(tenant, mine)
            else:  # it had got the place already
                self.give_back(tenant)
            raise

    def give_back(self, tenant: str) -> None:
        """End one `take` of this tenant."""
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._pass_on()

    def _leave(self, tenant: str, mine: asyncio.Future[None]) -> None:
        line = self._waiting.get(tenant)
        if line is not None and mine in line:  # else it was passed over already
            line.remove(mine)
            if not line:
                del self._waiting[tenant]
        self._pass_on()  # the shares of the others may have grown

    def _pass_on(self) -> None:
        """Give places to those who wait and may have one."""
        while self._waiting:
            tenant = min(self._waiting, key=lambda name: self._taken[name])
            share = self._count // len(self._waiting.keys() | self._taken.keys())
            if self.taken >= self._count and self._taken[tenant] >= share:
                return
            line = self._waiting[tenant]
            first = line.popleft()
            if not line:
                del self._waiting[tenant]
            if not first.done():
                self._taken[tenant] += 1
                first.set_result(None)
