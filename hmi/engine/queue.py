"""The batch queue: fair among tenants, batches cut to a time, owned by the event loop's thread (no locks)."""

from __future__ import annotations

import asyncio
import heapq
import threading
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from torch import Tensor

from hmi.engine.bundles import Bundle
from hmi.engine.pace import BATCH_WORK, Pace, work_of
from hmi.engine.recent import Recent
from hmi.engine.request import InferRequest, InferResult
from hmi.engine.room import Room
from hmi.engine.turns import Turns
from hmi.errors import DeadlineExceeded
from hmi.model.batching import Encoded

Group = tuple[str, str, bool, bool]
"""What a batch must share: root, its version, whether [CLS] alone is read, whether it is the exact reference."""


TENANT_PART = 4
"""While somebody who may come back at any moment would have to wait, a tenant has one in so many parts of a batch."""
_ADDING = threading.Lock()
"""Short, and so one for all items."""


@dataclass
class Item:
    """A text waiting for its answer. Its windows may run in several batches."""

    request: InferRequest
    bundle: Bundle
    windows: list[Encoded]
    """The text, tokenised: one, or several where it is long."""
    future: asyncio.Future[InferResult]
    queued: float = field(default_factory=time.monotonic)
    cut: int = 0
    """Windows that are in batches already."""
    outputs: dict[int, Tensor] = field(default_factory=dict)
    """What the head gave for each window that ran."""
    hits: Counter[str] = field(default_factory=Counter)
    timing: defaultdict[str, float] = field(default_factory=lambda: defaultdict(float))
    """Seconds, under the names that an answer gives in milliseconds."""

    @property
    def group(self) -> Group:
        v = self.bundle.version
        return v.root, v.root_version, self.bundle.task.reads == "cls", self.request.exact

    @property
    def tokens(self) -> int:
        return sum(map(len, self.windows))

    def add(self, index: int, output: Tensor, hits: dict[str, int]) -> bool:
        """Keep what a window gave; whether it was the last that was missing. Streams may bring two at once."""
        with _ADDING:
            if index not in self.outputs:
                self.hits.update(hits)
            self.outputs[index] = output
            return len(self.outputs) == len(self.windows)


@dataclass(frozen=True)
class Piece:
    """One window of an item: what a batch is made of."""

    item: Item
    index: int

    @property
    def bundle(self) -> Bundle:
        return self.item.bundle

    @property
    def window(self) -> Encoded:
        return self.item.windows[self.index]

    @property
    def work(self) -> float:
        return work_of(len(self.window), self.item.bundle.root.dim)


def work_in(pieces: Sequence[Piece]) -> float:
    return sum(piece.work for piece in pieces)


class BatchQueue:
    """Waiting items by group and, inside a group, by tenant.

    The tenant that was given least goes first, and says which group the batch is of; others follow in the same order,
    a window at a time. Once it has nothing more that waits, only those join who stand no later than it does: the one
    text of a quiet tenant is not to take as long as what a loud one could fill the batch up with. Nor is it to wait
    that long when it comes next: while a tenant is between two texts, the others' parts of a batch are small. Where all
    wait together, and where one is alone, batches are as long as they may be.
    """

    def __init__(self, capacity_tokens: int, pace: Pace, batch_s: float) -> None:
        self._room = Room(capacity_tokens, "tokens")
        self._pace, self._batch_s = pace, batch_s
        self._turns = Turns()
        self._waiting: dict[Group, dict[str, deque[Item]]] = {}
        self._recent = Recent()
        self._arrived = asyncio.Event()

    @property
    def tokens(self) -> int:
        """All tokens that wait."""
        return self._room.taken

    def check(self, wanted: Counter[str]) -> None:
        """Raise Unavailable where there is no room for so many tokens by tenant."""
        self._room.check(wanted)

    def put(self, items: list[Item]) -> None:
        """Queue all of `items` or none; raises Unavailable (`Room.check`)."""
        new: Counter[str] = Counter()
        for item in items:
            new[item.request.model.tenant] += item.tokens
        self._room.take(new)
        for item in items:
            tenants = self._waiting.setdefault(item.group, {})
            tenants.setdefault(item.request.model.tenant, deque()).append(item)
        for tenant in new:
            self._recent.sent(tenant)
        self._arrived.set()

    async def take(self, most_tokens: int) -> list[Piece]:
        """Wait for work, then return a batch of one group: what takes `batch_s` at most, and has at most `most_tokens`
        tokens, or one window that exceeds either.

        Items whose client has gone are dropped; items past their deadline fail with DeadlineExceeded.
        """
        while True:
            while not self._waiting:
                self._arrived.clear()
                await self._arrived.wait()
            batch = self._cut(self._next(), most_tokens, self._batch_s)
            if batch:
                return batch

    def take_guest(self, most_tokens: int, most_s: float) -> list[Piece]:
        """A batch that takes `most_s` at most, of tenants that were given no more than whose batch was taken last had
        before it; empty where there is none. It may run in the middle of that one."""
        if not self._waiting:
            return []
        tenant, group = self._first()
        if self._turns.given(tenant) > self._turns.now:
            return []
        return self._cut(group, most_tokens, most_s, guest=True)

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with `error` (shutdown)."""
        for tenants in self._waiting.values():
            for items in tenants.values():
                for item in items:
                    if not item.future.done():
                        item.future.set_exception(error)
        self._waiting.clear()
        self._room.clear()

    def _next(self) -> Group:
        """The group whose turn begins."""
        tenant, group = self._first()
        self._turns.begin(tenant)
        return group

    def _first(self) -> tuple[str, Group]:
        """Whose turn it is, the tenant's that was given least, and the group of what waits longest there."""
        *_, tenant, group = min(
            (self._turns.given(tenant), items[0].queued, tenant, group)
            for group, tenants in self._waiting.items()
            for tenant, items in tenants.items()
        )
        return tenant, group

    def _cut(self, group: Group, most_tokens: int, most_s: float, guest: bool = False) -> list[Piece]:
        tenants = self._waiting[group]
        line = [(self._turns.given(tenant), items[0].queued, tenant) for tenant, items in tenants.items()]
        heapq.heapify(line)
        *_, first = line[0]
        seconds, tokens = self._pace.seconds(group, BATCH_WORK), 0
        part = most_s / (TENANT_PART if self._somebody_away() else 1)
        parts: defaultdict[str, float] = defaultdict(float)
        batch: list[Piece] = []
        while line:
            given, _, tenant = line[0]
            if (guest and given > self._turns.now) or (
                batch and first not in tenants and given > self._turns.given(first)
            ):
                break
            items = tenants[tenant]
            item = items[0]
            if not _wanted(item):
                self._drop(items)
            else:
                piece = Piece(item, item.cut)
                takes = self._pace.seconds(group, piece.work)
                full = seconds + takes > most_s or tokens + len(piece.window) > most_tokens
                if batch and full:
                    break
                if guest and full:  # maybe the next one's is shorter
                    heapq.heappop(line)
                    continue
                if parts[tenant] and parts[tenant] + takes > part:
                    heapq.heappop(line)
                    continue
                batch.append(piece)
                seconds, tokens = seconds + takes, tokens + len(piece.window)
                parts[tenant] += takes
                self._turns.charge(tenant, takes)
                self._advance(items)
            if items:
                heapq.heapreplace(line, (self._turns.given(tenant), items[0].queued, tenant))
            else:
                heapq.heappop(line)
                del tenants[tenant]
        if not tenants:
            del self._waiting[group]
        return batch

    def _somebody_away(self) -> bool:
        """Whether a tenant that sent something lately has nothing that waits."""
        return self._recent.other_than({tenant for tenants in self._waiting.values() for tenant in tenants})

    def _advance(self, items: deque[Item]) -> None:
        """The first item's next window is in a batch."""
        item = items[0]
        self._room.leave(item.request.model.tenant, len(item.windows[item.cut]))
        item.cut += 1
        if item.cut == len(item.windows):
            items.popleft()

    def _drop(self, items: deque[Item]) -> None:
        item = items.popleft()
        self._room.leave(item.request.model.tenant, sum(map(len, item.windows[item.cut :])))


def _wanted(item: Item) -> bool:
    if item.future.done():
        return False
    deadline = item.request.deadline
    if deadline is not None and time.monotonic() > deadline:
        item.future.set_exception(DeadlineExceeded("the deadline passed before the work began; it was dropped"))
        return False
    return True
