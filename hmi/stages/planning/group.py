"""One group of texts that may run as one batch, and what a planner knows of each text of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from operator import add, sub

FAR_S = 30.0
"""A text without a deadline is placed in the order of deadlines as if it had one after this many seconds."""
BEYOND = 1e-3
"""The factor of the value of texts that a tenant puts beyond its share (`is_beyond`)."""


@dataclass(frozen=True)
class Price:
    """The value and the cost of one text under each setting. Index 0 is off."""

    values: tuple[float, ...]
    """[settings]: utility times the expected accuracy; -inf where the setting is not allowed."""
    seconds: tuple[float, ...]
    """[settings]: predicted seconds that the text adds to a batch, before the correction by measurements."""


@dataclass(eq=False, slots=True)
class Member:
    """One text of a group. Compared by identity."""

    tenant: str
    arrived: float
    """A `time.monotonic()` time, as is `deadline`."""
    deadline: float
    """inf: none."""
    utility: float
    price: Price
    item: object = None
    """The caller's own text. Groups do not look at it."""
    module: Hashable = None
    """The name of its module."""

    @property
    def due(self) -> float:
        """The deadline, or for a text without one the time that stands for it in the order of deadlines."""
        return min(self.deadline, self.arrived + FAR_S)


@dataclass(frozen=True)
class GroupLimits:
    """The bounds of a group. The first four are OTAS's δ, ε, η and μ.

    All but μ have the values of its experiments. There μ is .8, so that a group holds texts of utility 0 and
    .8, of which none can be dropped without the other (docs/design/0015-planner.md has the difference).
    """

    wait_s: float = 0.5
    """The most seconds between the first and the last arrival."""
    texts: int = 64
    deadline_s: float = 0.5
    """The most seconds between two deadlines."""
    utility: float = 0.25
    """The largest difference of two utilities."""
    seconds: float = math.inf
    """The most predicted seconds under the fastest setting: under load a batch then fills its time. A text
    that takes longer has a group of its own."""


@dataclass(eq=False)
class Group:
    """Texts of one batch key that may run together. `Groups` adds and removes them."""

    id: int
    key: Hashable
    beyond: bool
    """True for texts beyond their tenants' shares: their values count `BEYOND` times."""
    members: dict[int, Member] = field(default_factory=dict)
    """The members in order of arrival, by their `id()`."""
    values: list[float] = field(default_factory=list)
    """[settings]: the sums of the members' values."""
    seconds: list[float] = field(default_factory=list)
    """[settings]: the sums of the members' seconds. A batch's fixed costs are not in them."""
    modules: Counter[Hashable] = field(default_factory=Counter)
    arrived: float = math.inf
    """The earliest arrival."""
    deadline: float = math.inf
    """The earliest deadline; inf: no member has one."""
    due: float = math.inf
    """The earliest `Member.due`: the group's place in the order of deadlines."""
    _latest: float = -math.inf
    """At least the latest `Member.due`."""
    _utilities: tuple[float, float] = (math.inf, -math.inf)
    """Bounds of the members' utilities."""

    def __len__(self) -> int:
        return len(self.members)

    def __iter__(self) -> Iterator[Member]:
        """The members, in order of arrival."""
        return iter(self.members.values())

    def takes(self, member: Member, limits: GroupLimits) -> bool:
        """Return whether the member may join, apart from its key and share."""
        due, (low, high) = member.due, self._utilities
        return (
            abs(member.arrived - self.arrived) <= limits.wait_s
            and len(self.members) < limits.texts
            and max(self._latest, due) - min(self.due, due) <= limits.deadline_s
            and max(high, member.utility) - min(low, member.utility) <= limits.utility
            and math.isinf(member.deadline) == math.isinf(self.deadline)
            and min(self.seconds) + min(member.price.seconds) <= limits.seconds
            and len(self.values) == len(member.price.values)
        )

    def is_full(self, limits: GroupLimits) -> bool:
        """Return whether no further text may join, whatever it is."""
        return len(self.members) >= limits.texts or min(self.seconds) >= limits.seconds

    def add(self, member: Member) -> None:
        price, due = member.price, member.due
        values = [BEYOND * value for value in price.values] if self.beyond else price.values
        if self.members:
            self.values = list(map(add, self.values, values))
            self.seconds = list(map(add, self.seconds, price.seconds))
        else:
            self.values, self.seconds = list(values), list(price.seconds)
        self.members[id(member)] = member
        self.modules[member.module] += 1
        self.arrived = min(self.arrived, member.arrived)
        self.deadline, self.due = min(self.deadline, member.deadline), min(self.due, due)
        self._latest = max(self._latest, due)
        low, high = self._utilities
        self._utilities = min(low, member.utility), max(high, member.utility)

    def remove(self, member: Member) -> None:
        """Remove a member. The bounds for later texts stay as they are, which is on the safe side."""
        del self.members[id(member)]
        price = member.price
        self.modules[member.module] -= 1
        if not self.modules[member.module]:
            del self.modules[member.module]
        if math.inf in map(abs, self.values) or not self.members:  # inf - inf would be no number
            self._sum()
        else:
            factor = BEYOND if self.beyond else 1.0
            self.values = [old - factor * value for old, value in zip(self.values, price.values, strict=True)]
            self.seconds = list(map(sub, self.seconds, price.seconds))
        if member.due <= self.due and self.members:
            self.deadline = min(each.deadline for each in self)
            self.due = min(each.due for each in self)

    def _sum(self) -> None:
        """Sum the members' values and seconds afresh."""
        factor, prices = BEYOND if self.beyond else 1.0, [member.price for member in self]
        settings = range(len(self.values))
        self.values = [factor * sum(price.values[s] for price in prices) for s in settings]
        self.seconds = [sum(price.seconds[s] for price in prices) for s in settings]
