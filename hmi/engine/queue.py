"""The batch queue: fair among tenants, budgeted in tokens, owned by the event loop's thread (no locks)."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict, deque
from dataclasses import dataclass, field

from hmi.engine.bundles import Bundle
from hmi.engine.request import InferRequest, InferResult
from hmi.errors import DeadlineExceeded, Unavailable
from hmi.model.batching import Encoded

TENANT_SHARE = 4
"""A tenant may fill one in so many parts of the queue, however much it sends."""
EXACT_COST = 8
"""The exact reference computes every trigram: its batches are smaller, so that nobody waits long behind one."""

Group = tuple[str, str, bool, bool]
"""What a batch must share: root, its version, whether [CLS] alone is read, whether it is the exact reference."""


@dataclass
class Item:
    """A request waiting for its answer."""

    request: InferRequest
    bundle: Bundle
    windows: list[Encoded]
    """The text, tokenised: one, or several where it is long."""
    future: asyncio.Future[InferResult]
    queued: float = field(default_factory=time.monotonic)

    @property
    def group(self) -> Group:
        v = self.bundle.version
        return v.root, v.root_version, self.bundle.task.reads == "cls", self.request.exact

    @property
    def tokens(self) -> int:
        return sum(map(len, self.windows))


class BatchQueue:
    """Waiting items by group and, inside a group, by tenant. Groups take turns, and so do the tenants inside one."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._share = max(1, capacity_tokens // TENANT_SHARE)
        self._waiting: OrderedDict[Group, OrderedDict[str, deque[Item]]] = OrderedDict()
        self._tokens: Counter[str] = Counter()
        self._arrived = asyncio.Event()

    @property
    def tokens(self) -> int:
        """All tokens that wait."""
        return self._tokens.total()

    def put(self, items: list[Item]) -> None:
        """Queue all of `items` or none.

        Raises Unavailable where a tenant's own tokens would exceed its share of the capacity, or all tenants'
        together the whole. What one has beyond its share (one large call) is not counted against the others.
        """
        new: Counter[str] = Counter()
        for item in items:
            new[item.request.model.tenant] += item.tokens
        taken = sum(min(waiting, self._share) for waiting in self._tokens.values())
        for tenant, tokens in new.items():
            mine = self._tokens[tenant]
            if (mine and mine + tokens > self._share) or (taken and taken + min(tokens, self._share) > self._capacity):
                raise Unavailable(f"overloaded: {self.tokens} tokens are waiting; try again shortly", retry_after_s=1)
        for item in items:
            tenants = self._waiting.setdefault(item.group, OrderedDict())
            tenants.setdefault(item.request.model.tenant, deque()).append(item)
        self._tokens.update(new)
        self._arrived.set()

    async def take(self, budget_tokens: int) -> list[Item]:
        """Wait for work, then return a batch of one group of at most `budget_tokens` (at least one item).

        Items whose client has gone are dropped; items past their deadline fail with DeadlineExceeded.
        """
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            group = next(iter(self._waiting))
            exact = group[3]
            batch = self._cut(group, budget_tokens // EXACT_COST if exact else budget_tokens)
            if group in self._waiting:
                self._waiting.move_to_end(group)
            if batch:
                return batch

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with `error` (shutdown)."""
        for tenants in self._waiting.values():
            for items in tenants.values():
                for item in items:
                    if not item.future.done():
                        item.future.set_exception(error)
        self._waiting.clear()
        self._tokens.clear()

    def _cut(self, group: Group, budget: int) -> list[Item]:
        tenants, used = self._waiting[group], 0
        batch: list[Item] = []
        while tenants:
            tenant, items = next(iter(tenants.items()))
            if batch and used + items[0].tokens > budget:
                break
            item = items.popleft()
            self._forget(tenant, item.tokens)
            if _wanted(item):
                batch.append(item)
                used += item.tokens
            # To the back of the line: a tenant with many texts waits for the others' turn.
            tenants.move_to_end(tenant)
            if not items:
                del tenants[tenant]
        if not tenants:
            del self._waiting[group]
        return batch

    def _forget(self, tenant: str, tokens: int) -> None:
        self._tokens[tenant] -= tokens
        if not self._tokens[tenant]:
            del self._tokens[tenant]


def _wanted(item: Item) -> bool:
    if item.future.done():
        return False
    deadline = item.request.deadline
    if deadline is not None and time.monotonic() > deadline:
        item.future.set_exception(DeadlineExceeded("the deadline passed before the work began; it was dropped"))
        return False
    return True
