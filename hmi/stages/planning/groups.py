"""Groups of texts that may run as one batch: Algorithm 1 of OTAS, with each bound kept for every pair.

It has no locks: only the event loop's thread uses it.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Hashable, Iterator, Sequence
from itertools import count

from hmi.stages.planning.expected import RecentArrivals
from hmi.stages.planning.group import Group, GroupLimits, Member

OPEN = 32
"""The number of newest groups of a key that a text may join. It bounds the cost of `Groups.add`."""

FLOOD = 4
"""A tenant whose waiting texts take less than this many batches does not flood the queue."""


def is_beyond(mine_s: float, others_s: float, others: float, batch_s: float) -> bool:
    """Return whether a text of a tenant is beyond the tenant's share when it is put.

    mine_s: predicted seconds of the tenant's waiting texts, this one included. others_s: those of all other
    tenants' texts. others: the weights of the other tenants that wait, by this tenant's, which is their
    number if all weigh the same. batch_s: the target time of a batch. The tenant itself is not in the mean
    that it is compared with: beside one other it could never exceed twice that mean.
    """
    return others > 0 and mine_s > FLOOD * batch_s and mine_s > 2 * others_s / others


class Groups:
    """The groups of the texts that wait, by batch key.

    A text joins the newest group that it may join, or opens one. The paper's Algorithm 1 compares a text's
    deadline with the earliest of a group, so that each text that lowers it makes room for the next: deadlines
    within a group may lie as far apart as one likes. Here no two texts of a group violate a bound.
    """

    def __init__(self, limits: GroupLimits | None = None) -> None:
        self.limits = limits or GroupLimits()
        self._by_key: dict[Hashable, dict[int, Group]] = {}
        self._open: dict[tuple[Hashable, bool], deque[Group]] = {}
        """The groups that may still take texts, the newest last, by key and share."""
        self._expected: defaultdict[Hashable, RecentArrivals] = defaultdict(RecentArrivals)
        self._ids = count(1)

    def __len__(self) -> int:
        """The number of groups."""
        return sum(map(len, self._by_key.values()))

    def __iter__(self) -> Iterator[Group]:
        """All groups, in no order."""
        return (group for groups in self._by_key.values() for group in groups.values())

    def of(self, key: Hashable) -> Sequence[Group]:
        """The groups of a key, in the order in which they were opened."""
        return tuple(self._by_key.get(key, {}).values())

    def expected(self, key: Hashable, now: float) -> Sequence[Group]:
        """The groups of texts that are expected to arrive soon (`RecentArrivals`)."""
        return self._expected[key].groups(key, now) if key in self._expected else ()

    def find(self, key: Hashable, id: int) -> Group | None:
        """The group with this id; None if all its texts are gone."""
        return self._by_key.get(key, {}).get(id)

    def add(self, key: Hashable, member: Member, *, beyond: bool = False) -> Group:
        """Add a text to the newest group that it may join, or to a new one. Returns the group."""
        if not beyond:
            self._expected[key].arrived(member)
        line = self._open.setdefault((key, beyond), deque(maxlen=OPEN))
        while line and line[0].arrived + self.limits.wait_s < member.arrived:
            line.popleft()
        alone = min(member.price.seconds) >= self.limits.seconds
        group = next((g for g in reversed(line) if g.takes(member, self.limits)), None) if not alone else None
        if group is None:
            group = Group(next(self._ids), key, beyond)
            self._by_key.setdefault(key, {})[group.id] = group
            line.append(group)
        group.add(member)
        if group.is_full(self.limits):
            line.remove(group)
        return group

    def remove(self, group: Group, member: Member) -> None:
        """Remove a text that is in a batch, or that nobody wants any more. An empty group goes with it."""
        group.remove(member)
        if not group.members:
            groups = self._by_key[group.key]
            del groups[group.id]
            line = self._open[group.key, group.beyond]
            if group in line:
                line.remove(group)
            if not groups:
                del self._by_key[group.key]
                for share in (False, True):
                    self._open.pop((group.key, share), None)

    def close(self, group: Group) -> None:
        """Let no more texts join: a part of the group is in a batch."""
        line = self._open.get((group.key, group.beyond))
        if line is not None and group in line:
            line.remove(group)

    def clear(self) -> None:
        self._by_key.clear()
        self._open.clear()
        self._expected.clear()
