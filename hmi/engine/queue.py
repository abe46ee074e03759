"""The batch queue: fair among tenants, budgeted in tokens, owned by the event loop's thread (no locks)."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict, deque
from dataclasses import dataclass, field

from hmi.engine.bundles import Bundle
from hmi.engine.request import InferRequest, InferResult
from hmi.errors import DeadlineExceeded, Unavailable
from hmi.model.batching import Encoded
from hmi.model.heads import reads_cls_only

Group = tuple[str, str, bool, bool]
"""What a batch must share: root, its version, whether [CLS] alone is read, whether it is the exact reference."""


@dataclass
class Item:
    """A request waiting for its answer."""

    request: InferRequest
    bundle: Bundle
    encoded: Encoded
    future: asyncio.Future[InferResult]
    queued: float = field(default_factory=time.monotonic)

    @property
    def group(self) -> Group:
        v = self.bundle.version
        return v.root, v.root_version, reads_cls_only(v.task), self.request.exact


class BatchQueue:
    """Waiting items by group and, inside a group, by tenant: each turn takes one item of each tenant."""

    def __init__(self, capacity_tokens: int) -> None:
        self._capacity = capacity_tokens
        self._waiting: dict[Group, OrderedDict[str, deque[Item]]] = {}
        self._arrived = asyncio.Event()
        self.tokens = 0

    def put(self, items: list[Item]) -> None:
        """Queue all of `items` or none; raises Unavailable when they would exceed the capacity."""
        new = sum(len(i.encoded) for i in items)
        if self.tokens and self.tokens + new > self._capacity:
            raise Unavailable(f"overloaded: {self.tokens} tokens are waiting; try again shortly", retry_after_s=1)
        for item in items:
            tenants = self._waiting.setdefault(item.group, OrderedDict())
            tenants.setdefault(item.request.model.tenant, deque()).append(item)
        self.tokens += new
        self._arrived.set()

    async def take(self, budget_tokens: int) -> list[Item]:
        """Wait for work, then return a batch of one group of at most `budget_tokens` (at least one item).

        Items whose client has gone are dropped; items past their deadline fail with DeadlineExceeded.
        """
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            batch = self._cut(min(self._waiting, key=self._oldest), budget_tokens)
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
        self.tokens = 0

    def _oldest(self, group: Group) -> float:
        return min(items[0].queued for items in self._waiting[group].values())

    def _cut(self, group: Group, budget: int) -> list[Item]:
        tenants, used = self._waiting[group], 0
        batch: list[Item] = []
        while tenants:
            tenant, items = next(iter(tenants.items()))
            if batch and used + len(items[0].encoded) > budget:
                break
            item = items.popleft()
            self.tokens -= len(item.encoded)
            if _wanted(item):
                batch.append(item)
                used += len(item.encoded)
            # To the back of the line: a tenant with many texts waits for the others' turn.
            tenants.move_to_end(tenant)
            if not items:
                del tenants[tenant]
        if not tenants:
            del self._waiting[group]
        return batch


def _wanted(item: Item) -> bool:
    if item.future.done():
        return False
    deadline = item.request.deadline
    if deadline is not None and time.monotonic() > deadline:
        item.future.set_exception(DeadlineExceeded("the deadline passed before the work began; it was dropped"))
        return False
    return True
