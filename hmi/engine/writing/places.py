"""Places for texts that are written at a time, given to tenants in fair order."""

from __future__ import annotations

import asyncio
from collections import Counter, deque


class Places:
    """A free place goes to the tenant that has the fewest, of several to the one that waits longest.

    Used on the event loop's thread only.
    """

    def __init__(self, count: int) -> None:
        self._free = count
        self._taken: Counter[str] = Counter()
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
        if self._free:  # then nobody waits
            self._free -= 1
        else:
            await self._wait(tenant)
        self._taken[tenant] += 1

    def give_back(self, tenant: str) -> None:
        """End one `take` of this tenant."""
        self._taken[tenant] -= 1
        if not self._taken[tenant]:
            del self._taken[tenant]
        self._pass_on()

    async def _wait(self, tenant: str) -> None:
        mine = asyncio.get_running_loop().create_future()
        line = self._waiting.setdefault(tenant, deque())
        line.append(mine)
        try:
            await mine
        except asyncio.CancelledError:
            if mine.cancelled():
                line.remove(mine)
                if not line and self._waiting.get(tenant) is line:
                    del self._waiting[tenant]
            else:  # it had got the place already
                self._pass_on()
            raise

    def _pass_on(self) -> None:
        """Give a place that became free to the next who waits."""
        while self._waiting:
            tenant = min(self._waiting, key=lambda name: self._taken[name])
            line = self._waiting[tenant]
            first = line.popleft()
            if not line:
                del self._waiting[tenant]
            if not first.done():
                first.set_result(None)
                return
        self._free += 1
