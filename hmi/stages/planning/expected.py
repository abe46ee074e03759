"""The texts that are expected to arrive soon: those that arrived a short while ago, once more.

A plan that looks only at what waits runs each text under its best setting as long as all of them fit, and
finds out too late that there is no time left for the next ones. It has no locks: only the event loop's
thread uses it.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from operator import add

from hmi.stages.planning.group import Group, Member

BIN_S = 0.125
"""Texts that arrived within BIN_S seconds are expected as one group for each class of utilities."""
BINS = 2
"""Arrivals of the last BINS · BIN_S seconds are expected again, each as much later."""
CLASSES = 4
"""The classes of utilities, of equal width."""
NEVER = 0
"""The id of groups that are expected. No group that waits has it."""


@dataclass(slots=True)
class _Bin:
    """The texts of one class that arrived within BIN_S seconds."""

    texts: int = 0
    values: list[float] = field(default_factory=list)
    seconds: list[float] = field(default_factory=list)
    modules: dict[Hashable, int] = field(default_factory=dict)
    slack: float = 0.0
    """The sum of the times from each text's arrival to its deadline."""

    def add(self, member: Member) -> None:
        price = member.price
        if len(self.values) != len(price.values):  # the first, or the settings have changed
            self.texts, self.slack, self.modules = 0, 0.0, {}
            self.values, self.seconds = list(price.values), list(price.seconds)
        else:
            self.values = list(map(add, self.values, price.values))
            self.seconds = list(map(add, self.seconds, price.seconds))
        self.texts += 1
        self.modules[member.module] = 1
        self.slack += member.deadline - member.arrived


class RecentArrivals:
    """The recent arrivals of one batch key."""

    def __init__(self) -> None:
        self._bins: deque[tuple[int, dict[int, _Bin]]] = deque()
        """The bins, each with the number of BIN_S at which it begins, the oldest first."""
        self._made: tuple[int, list[Group]] = (-1, [])
        """The groups that were expected at a number of BIN_S."""

    def arrived(self, member: Member) -> None:
        """Take note of a text with a deadline."""
        if math.isinf(member.deadline):
            return
        at = int(member.arrived / BIN_S)
        if not self._bins or self._bins[-1][0] < at:
            self._bins.append((at, {}))
            self._drop(at)
        of = min(int(member.utility * CLASSES), CLASSES - 1)
        self._bins[-1][1].setdefault(of, _Bin()).add(member)

    def groups(self, key: Hashable, now: float) -> Sequence[Group]:
        """Return a group for each class of each bin that ended within the last SPAN_S seconds."""
        at = int(now / BIN_S)
        if self._made[0] != at:
            self._drop(at)
            self._made = at, [_group(key, b, one) for b, of in self._bins if b < at for one in of.values()]
        return self._made[1]

    def _drop(self, at: int) -> None:
        while self._bins and self._bins[0][0] < at - BINS:
            self._bins.popleft()


def _group(key: Hashable, at: int, one: _Bin) -> Group:
    group = Group(NEVER, key, beyond=False)
    group.values, group.seconds = one.values, one.seconds
    group.modules.update(one.modules)
    group.arrived = (at + BINS) * BIN_S
    group.deadline = group.due = group.arrived + one.slack / one.texts
    return group
