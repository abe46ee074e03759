"""Backlogs: the texts that wait for a batch, by kind and tenant, each tenant's in their order.

A kind is a batch key, with ordinary texts apart from those in groups (`hmi.stages.planning.groups`). So a
batch never has texts of two groups, or of a group and others.

It has no locks: only the event loop's thread uses it.
"""

from __future__ import annotations

import heapq
import math
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, KeysView, Sequence
from itertools import count

from hmi.engine.texts.item import Item, Kind, Piece, work_of
from hmi.engine.texts.request import PRIORITIES
from hmi.stages.planning.group import Group, GroupLimits, Member, Price
from hmi.stages.planning.groups import Groups

STEP_S = 60.0
"""Seconds between the places of two neighbouring priorities: twice as much as a deadline can move a text."""
NEAR_S = 30.0
"""A deadline that is further away than this many seconds counts as this far away. So does no deadline."""
MOST_GONE = 64
"""Items that have left stay on a heap until there are more than this many, and more than those that wait."""
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
    """One tenant's waiting items of one kind. Truthy while there are any."""

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


class Grouped(Backlog):
    """One tenant's waiting items that are in groups. They leave in any order; the first always waits."""

    def __init__(self) -> None:
        super().__init__()
        self._gone = 0
        """The number of items on the heap that do not wait any more."""

    def __len__(self) -> int:
        return len(self._heap) - self._gone

    def __iter__(self) -> Iterator[Item]:
        return (item for item in super().__iter__() if item.member is not None)

    def left(self) -> None:
        """One of the items does not wait any more. It is removed when it comes first, or with many others."""
        self._gone += 1
        while self._heap and self.first.member is None:
            self.pop()
            self._gone -= 1
        if self._gone > max(MOST_GONE, len(self)):
            self._heap = [entry for entry in self._heap if entry[2].member is not None]
            heapq.heapify(self._heap)
            self._gone = 0


class Backlogs:
    """The backlogs of all tenants. A kind, and a tenant of a kind, is listed only while something waits."""

    def __init__(
        self, price: Callable[[Item], Price | None] = lambda item: None, limits: GroupLimits | None = None
    ) -> None:
        """price: gives what the windows that still wait of an item in a group cost. limits: of groups."""
        self._price = price
        self.groups = Groups(limits)
        """For reading."""
        self._by_kind: dict[Kind, dict[str, Backlog]] = {}
        self._work: defaultdict[Kind, float] = defaultdict(float)
        self._kinds_of: Counter[str] = Counter()
        """The number of kinds that a tenant's waiting items have, by tenant."""

    def __len__(self) -> int:
        """The number of kinds that have items waiting."""
        return len(self._by_kind)

    def __iter__(self) -> Iterator[Item]:
        """All items, in no order."""
        return (item for tenants in self._by_kind.values() for items in tenants.values() for item in items)

    def of(self, kind: Kind) -> dict[str, Backlog]:
        """The backlogs of a kind, by tenant; empty if nothing waits. For reading."""
        return self._by_kind.get(kind, {})

    @property
    def kinds(self) -> Iterable[Kind]:
        return self._by_kind.keys()

    @property
    def tenants(self) -> KeysView[str]:
        """The tenants that have items waiting: not a copy, so that it costs nothing."""
        return self._kinds_of.keys()

    @property
    def work(self) -> dict[Kind, float]:
        """The work of all windows that wait, by kind."""
        return {kind: self._work[kind] for kind in self._by_kind}

    def work_in(self, kind: Kind) -> float:
        """The work of all windows of a kind that wait."""
        return self._work.get(kind, 0.0)

    def work_of(self, tenant: str) -> dict[Kind, float]:
        """The work of one tenant's windows that wait, by kind."""
        return {kind: mine.work for kind, tenants in self._by_kind.items() if (mine := tenants.get(tenant))}

    def wanted(self) -> dict[str, tuple[float, Kind]]:
        """For each waiting tenant, the place and kind of its next text; empty if only one kind waits."""
        best: dict[str, tuple[float, Kind]] = {}
        for kind, tenants in self._by_kind.items() if len(self._by_kind) > 1 else ():
            for tenant, items in tenants.items():
                if tenant not in best or items.place < best[tenant][0]:
                    best[tenant] = items.place, kind
        return best

    def add(self, item: Item, *, beyond: bool = False) -> None:
        """Add an item; one with a price to a group. beyond: it is beyond its tenant's share."""
        tenants, kind = self._by_kind.setdefault(item.kind, {}), item.kind
        mine = tenants.get(item.tenant)
        if mine is None:
            mine = tenants[item.tenant] = Grouped() if kind[1] else Backlog()
            self._kinds_of[item.tenant] += 1
        if item.price is not None:
            item.member = _member(item, item.price)
            item.group = self.groups.add(item.key, item.member, beyond=beyond)
        mine.add(item)
        self._change(mine, item, left_of(item))

    def advance(self, piece: Piece) -> None:
        """This window, the next of an item, is in a batch. An ordinary item must be its tenant's first."""
        item = piece.item
        mine = self._by_kind[item.kind][item.tenant]
        self._change(mine, item, -piece.work)
        item.cut += 1
        if item.cut < len(item.windows):
            self._reprice(item)
            return
        self._leave(mine, item) if isinstance(mine, Grouped) else mine.pop()
        self._tidy(item)

    def drop(self, items: Sequence[Item]) -> list[Item]:
        """Remove those of the items that still wait, and return them."""
        ordinary: defaultdict[tuple[Kind, str], set[int]] = defaultdict(set)
        gone: list[Item] = []
        for item in items:
            if item.price is None:
                ordinary[item.kind, item.tenant].add(id(item))
            elif item.member is not None:
                mine = self._by_kind[item.kind][item.tenant]
                assert isinstance(mine, Grouped)
                self._leave(mine, item)
                self._dropped(mine, item)
                gone.append(item)
        for (kind, tenant), ids in ordinary.items():
            found = self.of(kind).get(tenant)
            removed = found.remove(ids) if found else []
            for item in removed:
                assert found is not None
                self._dropped(found, item)
            gone += removed
        return gone

    def clear(self) -> None:
        for item in self:
            item.member = None
        self._by_kind.clear()
        self._work.clear()
        self._kinds_of.clear()
        self.groups.clear()

    def _dropped(self, mine: Backlog, item: Item) -> None:
        self._change(mine, item, -left_of(item))
        self._tidy(item)

    def _leave(self, mine: Grouped, item: Item) -> None:
        """Take an item out of its group."""
        assert item.group is not None
        assert item.member is not None
        self.groups.remove(item.group, item.member)
        item.member = None
        mine.left()

    def _reprice(self, item: Item) -> None:
        """Let the windows that still wait stand for an item in its group."""
        price = None if item.member is None else self._price(item)
        if price is None or item.group is None or item.member is None:
            return
        if len(price.values) == len(item.group.values):
            item.group.remove(item.member)
            item.member = _member(item, price)
            item.group.add(item.member)

    def _change(self, mine: Backlog, item: Item, work: float) -> None:
        mine.work += work
        self._work[item.kind] += work

    def _tidy(self, item: Item) -> None:
        """Remove the item's tenant, and then its kind, if it has no more waiting items."""
        kind = item.kind
        tenants = self._by_kind.get(kind, {})
        if item.tenant in tenants and not tenants[item.tenant]:
            del tenants[item.tenant]
            self._kinds_of[item.tenant] -= 1
            if not self._kinds_of[item.tenant]:
                del self._kinds_of[item.tenant]
            if not tenants:
                del self._by_kind[kind], self._work[kind]


def by_tenant(group: Group) -> dict[str, Backlog]:
    """A group's items by tenant, each tenant's in their order."""
    found: dict[str, Backlog] = {}
    for member in group:
        assert isinstance(member.item, Item)
        found.setdefault(member.tenant, Backlog()).add(member.item)
    return found


def _member(item: Item, price: Price) -> Member:
    request = item.request
    deadline = math.inf if request.deadline is None else request.deadline
    module = item.bundle.version.artefact
    return Member(item.tenant, item.queued, deadline, request.utility, price, item, module)
