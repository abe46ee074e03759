"""Backlogs: the texts that wait for a batch, by batch key and tenant, each tenant's in their order.

It has no locks: only the event loop's thread uses it.
"""

from __future__ import annotations

import heapq
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from itertools import count

from hmi.engine.item import Item, Piece
from hmi.engine.pace import work_of
from hmi.engine.request import PRIORITIES
from hmi.execution.batch import BatchKey

STEP_S = 60.0
"""Seconds between the places of two neighbouring priorities: twice as much as a deadline can move a text."""
NEAR_S = 30.0
"""A deadline that is further away than this many seconds counts as this far away. So does no deadline."""
_ARRIVAL = count()


def place_of(item: Item) -> float:
    """Return the item's place among its tenant's waiting texts. The least place goes first.

    The order is by priority, then by deadline, then by arrival. A place never changes. So a text goes before
    newer ones of a higher priority once it has waited long enough: for each step of priority, NEAR_S to
    STEP_S + NEAR_S seconds longer. No text waits for ever.
    """
    deadline = item.request.deadline
    near = NEAR_S if deadline is None else min(deadline - item.queued, NEAR_S)
    return item.queued + STEP_S * PRIORITIES.index(item.request.priority) + near


def left_of(item: Item) -> float:
    """The work of the item's windows that are in no batch yet."""
    dim = item.bundle.root.dim
    return sum(work_of(len(window), dim) for window in item.windows[item.cut :])


class Backlog:
    """One tenant's waiting items of one batch key. Truthy while there are any."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Item]] = []
        self.work = 0.0
        """The work of all windows that wait, in the units of `Pace`."""

    def __len__(self) -> int:
        return len(self._heap)

    def __iter__(self) -> Iterator[Item]:
        """All items, in no order."""
        return (item for _, _, item in self._heap)

    @property
    def first(self) -> Item:
        """The item that goes first. It keeps its place until all its windows are in batches."""
        return self._heap[0][2]

    @property
    def place(self) -> float:
        """The place of the first item (`place_of`)."""
        return self._heap[0][0]

    def add(self, item: Item) -> None:
        heapq.heappush(self._heap, (place_of(item), next(_ARRIVAL), item))

    def pop(self) -> Item:
        """Remove the first item."""
        return heapq.heappop(self._heap)[2]

    def remove(self, ids: Collection[int]) -> list[Item]:
        """Remove the items with these `id`s and return them. The first ones cost little."""
        gone = []
        while self._heap and id(self.first) in ids:
            gone.append(self.pop())
        if len(gone) < len(ids):
            gone += [item for item in self if id(item) in ids]
            self._heap = [entry for entry in self._heap if id(entry[2]) not in ids]
            heapq.heapify(self._heap)
        return gone


class Backlogs:
    """The backlogs of all tenants. A key, and a tenant within a key, is listed only while something waits."""

    def __init__(self) -> None:
        self._by_key: dict[BatchKey, dict[str, Backlog]] = {}
        self._work: defaultdict[BatchKey, float] = defaultdict(float)

    def __len__(self) -> int:
        """The number of batch keys that have items waiting."""
        return len(self._by_key)

    def __iter__(self) -> Iterator[Item]:
        """All items, in no order."""
        return (item for tenants in self._by_key.values() for items in tenants.values() for item in items)

    def of(self, key: BatchKey) -> dict[str, Backlog]:
        """The backlogs of a key, by tenant; empty if nothing waits. For reading."""
        return self._by_key.get(key, {})

    @property
    def keys(self) -> Iterable[BatchKey]:
        return self._by_key.keys()

    @property
    def tenants(self) -> set[str]:
        """The tenants that have items waiting."""
        return {tenant for tenants in self._by_key.values() for tenant in tenants}

    @property
    def work(self) -> dict[BatchKey, float]:
        """The work of all windows that wait, by key."""
        return {key: self._work[key] for key in self._by_key}

    def work_of(self, tenant: str) -> dict[BatchKey, float]:
        """The work of one tenant's windows that wait, by key."""
        return {key: mine.work for key, tenants in self._by_key.items() if (mine := tenants.get(tenant))}

    def wanted(self) -> dict[str, tuple[float, BatchKey]]:
        """For each waiting tenant, the place and batch key of its next text; empty if only one key waits."""
        best: dict[str, tuple[float, BatchKey]] = {}
        for key, tenants in self._by_key.items() if len(self._by_key) > 1 else ():
            for tenant, items in tenants.items():
                if tenant not in best or items.place < best[tenant][0]:
                    best[tenant] = items.place, key
        return best

    def add(self, item: Item) -> None:
        mine = self._by_key.setdefault(item.key, {}).setdefault(item.tenant, Backlog())
        mine.add(item)
        self._change(mine, item, left_of(item))

    def advance(self, piece: Piece) -> None:
        """This window, the next of an item that goes first, is in a batch."""
        item = piece.item
        mine = self._by_key[item.key][item.tenant]
        self._change(mine, item, -piece.work)
        item.cut += 1
        if item.cut == len(item.windows):
            mine.pop()
            self._tidy(item)

    def drop(self, items: Sequence[Item]) -> list[Item]:
        """Remove those of the items that still wait, and return them."""
        groups: defaultdict[tuple[BatchKey, str], set[int]] = defaultdict(set)
        for item in items:
            groups[item.key, item.tenant].add(id(item))
        gone: list[Item] = []
        for (key, tenant), ids in groups.items():
            mine = self.of(key).get(tenant)
            removed = mine.remove(ids) if mine else []
            for item in removed:
                assert mine is not None
                self._change(mine, item, -left_of(item))
                self._tidy(item)
            gone += removed
        return gone

    def clear(self) -> None:
        self._by_key.clear()
        self._work.clear()

    def _change(self, mine: Backlog, item: Item, work: float) -> None:
        mine.work += work
        self._work[item.key] += work

    def _tidy(self, item: Item) -> None:
        """Remove the item's tenant, and then its key, if it has no more waiting items."""
        tenants = self._by_key.get(item.key, {})
        if item.tenant in tenants and not tenants[item.tenant]:
            del tenants[item.tenant]
            if not tenants:
                del self._by_key[item.key], self._work[item.key]
