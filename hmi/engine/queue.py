"""The batch queue: offers candidates, and cuts batches of a given time. Owned by the event loop's thread (no
locks)."""

from __future__ import annotations

import asyncio
import heapq
import time
from collections import Counter, defaultdict, deque
from collections.abc import Sequence
from dataclasses import dataclass

from hmi.engine.item import Item, Piece
from hmi.engine.pace import BATCH_WORK, Pace
from hmi.engine.recent import Recent
from hmi.engine.room import Room
from hmi.engine.turns import Turns
from hmi.errors import DeadlineExceeded, copy_of
from hmi.execution.batch import BatchKey
from hmi.stages.planner import Candidate

TENANT_PART = 4
"""While somebody who may come back at any moment would have to wait, a tenant has one in so many parts of a
batch."""


@dataclass(frozen=True)
class Cut:
    """How long a batch may become."""

    seconds: float
    tokens: int
    share: float = 1.0
    """Of the work that is left by the stages that are on."""
    guest: bool = False
    """Whether it runs in the middle of another batch: then nothing joins that is not to go before that
    batch's tenant, and one that is too long for it is left out even where it would be the only one."""


class BatchQueue:
    """Waiting items by key and, of one key, by tenant.

    Inside a batch, too, the tenant that has received least goes first, and the others follow in that order, a
    window at a time. Once the first tenant has nothing more waiting, only tenants join that have received no
    more than it: a loud tenant must not fill up the batch of a quiet one. While a tenant is between two
    texts, the others' parts of a batch are small, so that its next text does not wait for a long batch. If
    all tenants wait, or only one is there, batches are as long as they may be.
    """

    def __init__(self, capacity_tokens: int, pace: Pace) -> None:
        self._room = Room(capacity_tokens, "tokens")
        self._pace = pace
        self._turns = Turns()
        self._waiting: dict[BatchKey, dict[str, deque[Item]]] = {}
        self._recent = Recent()
        self._arrived = asyncio.Event()

    @property
    def tokens(self) -> int:
        """All tokens that wait."""
        return self._room.taken

    def check(self, wanted: Counter[str]) -> None:
        """Raise Unavailable where there is no room for so many tokens by tenant."""
        self._room.check(wanted)

    def put(self, items: Sequence[Item]) -> None:
        """Queue all of `items` or none; raises Unavailable (`Room.check`)."""
        new: Counter[str] = Counter()
        for item in items:
            new[item.tenant] += item.tokens
        self._room.take(new)
        for item in items:
            self._waiting.setdefault(item.key, {}).setdefault(item.tenant, deque()).append(item)
        for tenant in new:
            self._recent.sent(tenant)
        self._arrived.set()

    async def wait(self) -> None:
        """Until something waits."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()

    def candidates(self) -> list[Candidate]:
        """One for each key of which something waits."""
        found = []
        for key, tenants in self._waiting.items():
            given, since, tenant = min(
                (self._turns.given(t), items[0].queued, t) for t, items in tenants.items()
            )
            layers = tenants[tenant][0].bundle.executor.layers
            found.append(Candidate(given, since, tenant, key, layers))
        return found

    def guests(self) -> list[Candidate]:
        """The candidates whose tenants were given no more than the one whose batch was cut last had before
        it."""
        return [candidate for candidate in self.candidates() if candidate.given_s <= self._turns.now]

    def cut(self, candidate: Candidate, most: Cut) -> list[Piece]:
        """A batch of the candidate's key, its tenant first; of one window at least unless it is a guest.

        Items that nobody wants any more are dropped, those past their deadline fail with DeadlineExceeded:
        the batch is empty where no others wait.
        """
        if not most.guest:
            self._turns.begin(candidate.tenant)
        tenants = self._waiting[candidate.key]
        line = [(self._turns.given(tenant), items[0].queued, tenant) for tenant, items in tenants.items()]
        heapq.heapify(line)
        batch = _Batch(candidate.key, self._pace, most, TENANT_PART if self._somebody_away() else 1)
        first = candidate.tenant
        while line:
            given, _, tenant = line[0]
            if (most.guest and given > self._turns.now) or (
                batch.pieces and first not in tenants and given > self._turns.given(first)
            ):
                break
            items = tenants[tenant]
            if not _wanted(items[0]):
                self._drop(items)
            else:
                piece = Piece(items[0], items[0].cut)
                full = batch.is_full(piece)
                if full and batch.pieces:
                    break
                if (full and most.guest) or batch.has_its_part(tenant, piece):
                    heapq.heappop(line)  # of the next tenant a window may be shorter
                    continue
                self._turns.charge(tenant, batch.add(tenant, piece))
                self._advance(items)
            if items:
                heapq.heapreplace(line, (self._turns.given(tenant), items[0].queued, tenant))
            else:
                heapq.heappop(line)
                del tenants[tenant]
        if not tenants:
            del self._waiting[candidate.key]
        return batch.pieces

    def fail_all(self, error: Exception) -> None:
        """Answer everything that waits with `error` (shutdown)."""
        for tenants in self._waiting.values():
            for items in tenants.values():
                for item in items:
                    item.sink.fail(copy_of(error))
        self._waiting.clear()
        self._room.clear()

    def _somebody_away(self) -> bool:
        """Whether a tenant that sent something lately has nothing that waits."""
        return self._recent.other_than({tenant for tenants in self._waiting.values() for tenant in tenants})

    def _advance(self, items: deque[Item]) -> None:
        """The first item's next window is in a batch."""
        item = items[0]
        self._room.leave(item.tenant, len(item.windows[item.cut]))
        item.cut += 1
        if item.cut == len(item.windows):
            items.popleft()

    def _drop(self, items: deque[Item]) -> None:
        item = items.popleft()
        self._room.leave(item.tenant, sum(map(len, item.windows[item.cut :])))


class _Batch:
    """A batch as it grows."""

    def __init__(self, key: BatchKey, pace: Pace, most: Cut, parts: int) -> None:
        self.pieces: list[Piece] = []
        self._key, self._pace, self._most = key, pace, most
        self._part_s = most.seconds / parts
        self._seconds, self._tokens = pace.seconds(key, BATCH_WORK), 0
        self._taken: defaultdict[str, float] = defaultdict(float)

    def is_full(self, piece: Piece) -> bool:
        """Whether this one is too much."""
        seconds, tokens = self._seconds + self._takes(piece), self._tokens + len(piece.window)
        return seconds > self._most.seconds or tokens > self._most.tokens

    def has_its_part(self, tenant: str, piece: Piece) -> bool:
        """Whether this one is more than the tenant's part; a tenant has one window in any case."""
        taken = self._taken[tenant]
        return bool(taken) and taken + self._takes(piece) > self._part_s

    def add(self, tenant: str, piece: Piece) -> float:
        """Seconds that it is expected to take."""
        takes = self._takes(piece)
        self.pieces.append(piece)
        self._seconds, self._tokens = self._seconds + takes, self._tokens + len(piece.window)
        self._taken[tenant] += takes
        return takes

    def _takes(self, piece: Piece) -> float:
        return self._pace.seconds(self._key, piece.work * self._most.share)


def _wanted(item: Item) -> bool:
    if not item.sink.wanted:
        return False
    deadline = item.request.deadline
    if deadline is not None and time.monotonic() > deadline:
        item.sink.fail(DeadlineExceeded("the deadline passed before the work began; it was dropped"))
        return False
    return True
