"""The batch queue: offers candidates, and cuts batches to a given time.

It has no locks: only the event loop's thread uses it.
"""

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

BATCH_SHARE = 1 / 4
"""The fraction of a batch that a tenant gets while another tenant may send its next text at any moment."""


@dataclass(frozen=True)
class BatchLimits:
    """The limits of a batch that is to be cut."""

    seconds: float
    tokens: int
    work_left: float = 1.0
    """The fraction of the layers' work that the plan's stages leave (`hmi.stages.planner.work_left`)."""
    interleaved: bool = False
    """Whether the batch is to run between two layers of another, its host. It then admits only tenants that
    have received no more than the host's tenant had before it, and no window that exceeds the limits."""


class BatchQueue:
    """Waiting items, by batch key and tenant.

    Within a batch, the tenant that has received least goes first; the others follow in that order, one window
    at a time. Once the first tenant has nothing more waiting, only tenants that have received no more than it
    may join, so a loud tenant does not fill up a quiet one's batch. While a tenant that sent something lately
    has nothing waiting, every other tenant gets a small part of a batch (BATCH_SHARE), so the absent tenant's
    next text does not wait for a long batch. Otherwise batches are as long as the limits allow.
    """

    def __init__(self, capacity_tokens: int, pace: Pace) -> None:
        self._room = Room(capacity_tokens, "tokens")
        self._pace = pace
        self._turns = Turns()
        self._host_given_s = 0.0
        """What the first tenant of the last batch that was not interleaved had received before it."""
        self._waiting: dict[BatchKey, dict[str, deque[Item]]] = {}
        self._recent = Recent()
        self._arrived = asyncio.Event()

    @property
    def tokens(self) -> int:
        """The number of tokens that wait. It may be read on any thread."""
        return self._room.taken

    def check(self, wanted: Counter[str]) -> None:
        """Raise Unavailable if there is no room for these tokens, given by tenant."""
        self._room.check(wanted)

    def put(self, items: Sequence[Item]) -> None:
        """Queue all of `items`, or none and raise Unavailable (`Room.check`)."""
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
        """Wait until the queue is not empty."""
        while not self._waiting:
            self._arrived.clear()
            await self._arrived.wait()

    def candidates(self) -> list[Candidate]:
        """Return one candidate for each key that has items waiting."""
        found = []
        for key, tenants in self._waiting.items():
            given, since, tenant = min(
                (self._turns.given(t), items[0].queued, t) for t, items in tenants.items()
            )
            layers = tenants[tenant][0].bundle.executor.layers
            found.append(Candidate(given, since, tenant, key, layers))
        return found

    def interleavable(self) -> list[Candidate]:
        """Return the candidates that may run between the layers of a running batch.

        Their tenants have received no more than the first tenant of the last batch had before it. Interleaved
        batches do not count as the last one.
        """
        return [candidate for candidate in self.candidates() if candidate.given_s <= self._host_given_s]

    def cut(self, candidate: Candidate, limits: BatchLimits) -> list[Piece]:
        """Cut a batch of the candidate's key, its tenant first.

        The batch has at least one window, unless it is interleaved, or no item is left. Items whose client
        has gone are dropped; items past their deadline fail with DeadlineExceeded.
        """
        waiting = {tenant for tenants in self._waiting.values() for tenant in tenants}
        if not limits.interleaved:
            self._turns.begin(waiting)
            self._host_given_s = self._turns.given(candidate.tenant)
        tenants = self._waiting[candidate.key]
        line = [(self._turns.given(tenant), items[0].queued, tenant) for tenant, items in tenants.items()]
        heapq.heapify(line)
        somebody_away = self._recent.other_than(waiting)
        batch = _Batch(candidate.key, self._pace, limits, BATCH_SHARE if somebody_away else 1.0)
        first = candidate.tenant
        while line:
            given, _, tenant = line[0]
            if (limits.interleaved and given > self._host_given_s) or (
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
                if (full and limits.interleaved) or batch.exceeds_share(tenant, piece):
                    heapq.heappop(line)  # the next tenant's window may be shorter
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
        """Fail everything that waits with `error`, at a shutdown."""
        for tenants in self._waiting.values():
            for items in tenants.values():
                for item in items:
                    item.sink.fail(copy_of(error))
        self._waiting.clear()
        self._room.clear()

    def _advance(self, items: deque[Item]) -> None:
        """Mark the first item's next window as cut, and remove the item after its last one."""
        item = items[0]
        self._room.release(item.tenant, len(item.windows[item.cut]))
        item.cut += 1
        if item.cut == len(item.windows):
            items.popleft()

    def _drop(self, items: deque[Item]) -> None:
        item = items.popleft()
        self._room.release(item.tenant, sum(map(len, item.windows[item.cut :])))


class _Batch:
    """A batch while it is being cut."""

    def __init__(self, key: BatchKey, pace: Pace, limits: BatchLimits, share: float) -> None:
        self.pieces: list[Piece] = []
        self._key, self._pace, self._limits = key, pace, limits
        self._share_s = limits.seconds * share
        self._seconds, self._tokens = pace.seconds(key, BATCH_WORK), 0
        self._taken: defaultdict[str, float] = defaultdict(float)

    def is_full(self, piece: Piece) -> bool:
        """Return whether the batch would exceed its limits with this window."""
        seconds, tokens = self._seconds + self._takes(piece), self._tokens + len(piece.window)
        return seconds > self._limits.seconds or tokens > self._limits.tokens

    def exceeds_share(self, tenant: str, piece: Piece) -> bool:
        """Return whether the tenant would exceed its share with this window. Its first window never does."""
        taken = self._taken[tenant]
        return bool(taken) and taken + self._takes(piece) > self._share_s

    def add(self, tenant: str, piece: Piece) -> float:
        """Add a window. Returns the seconds that it is predicted to take."""
        takes = self._takes(piece)
        self.pieces.append(piece)
        self._seconds, self._tokens = self._seconds + takes, self._tokens + len(piece.window)
        self._taken[tenant] += takes
        return takes

    def _takes(self, piece: Piece) -> float:
        return self._pace.seconds(self._key, piece.work * self._limits.work_left)


def _wanted(item: Item) -> bool:
    if not item.sink.wanted:
        return False
    deadline = item.request.deadline
    if deadline is not None and time.monotonic() > deadline:
        item.sink.fail(DeadlineExceeded("the deadline passed before the work began; it was dropped"))
        return False
    return True
