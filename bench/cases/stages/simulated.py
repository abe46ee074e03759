"""A simulation of arrivals, groups, a planner and batches, with a table of cost and accuracy for the models.

It compares ways to plan under loads that a busy machine could not measure twice alike. There is one stream.
Batches take their predicted time but for lognormal noise. A text earns its utility times the accuracy of its
setting if its batch ends before its deadline. Expected accuracies are counted, not drawn.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from bench.cases.stages.otas import INITIAL_S, otas, profiled
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Batch, Effect, Setting, Shape
from hmi.stages.planner import Candidate, Measured, Plan, Terms, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import Group, GroupLimits, Member, Price
from hmi.stages.planning.groups import Groups
from hmi.stages.planning.labels import Job, Option
from hmi.stages.planning.pareto import ParetoPlanner

KEY = BatchKey(("simulated", "1"), "cls", False)
TYPES = ((0.6, 0.3), (1.0, 0.01), (0.6, 1.0), (1.0, 0.2), (0.6, 0.3), (1.0, 0.01))
"""Table II of OTAS: the deadline in seconds after the arrival, and the utility, of each type of query."""
WINDOW_S = 1.0
"""The seconds over which Algorithm 3 takes the arriving rate."""


@dataclass(frozen=True)
class Table:
    """The cost of texts and the accuracy of their answers, by setting. The first is off."""

    fixed_s: float = 1e-3
    """The fixed seconds of a batch."""
    text_s: float = 9e-4
    saved: tuple[float, ...] = (0.0, 0.15, 0.28, 0.42)
    accuracy: tuple[float, ...] = (1.0, 0.995, 0.985, 0.96)
    noise: float = 0.1
    """The standard deviation of the logarithm of measured by predicted seconds."""

    @property
    def names(self) -> tuple[str, ...]:
        return ("off", *(f"setting {s}" for s in range(1, len(self.saved))))

    def seconds(self, texts: int, setting: int) -> float:
        return self.fixed_s + texts * self.text_s * (1 - self.saved[setting])

    def rate(self, texts: int, setting: int) -> float:
        """Texts a second in batches of `texts`."""
        return texts / self.seconds(texts, setting)


@dataclass(frozen=True)
class Text:
    """One text that arrives."""

    arrival: float
    deadline: float
    utility: float
    tenant: str = "t"


def texts_of(arrivals: NDArray[np.float64], seed: int) -> list[Text]:
    """Texts of random types of TYPES."""
    kinds = np.random.default_rng(seed).integers(len(TYPES), size=len(arrivals)).tolist()
    pairs = zip(arrivals.tolist(), kinds, strict=True)
    return [Text(at, at + TYPES[kind][0], TYPES[kind][1]) for at, kind in pairs]


def fluctuating(mean: float, seconds: float, seed: int) -> NDArray[np.float64]:
    """Poisson arrivals whose rate changes each second, evenly between 4/9 and 14/9 of the mean: OTAS's trace,
    where it lies between 200 and 700 a second."""
    rng, found = np.random.default_rng(seed), []
    for second in range(math.ceil(seconds)):
        count = rng.poisson(mean * rng.uniform(4 / 9, 14 / 9))
        found.append(second + np.sort(rng.uniform(0, 1, count)))
    return np.concatenate(found)


def bursty(mean: float, seconds: float, seed: int, ratio: float = 4.0) -> NDArray[np.float64]:
    """Arrivals of a Markov-modulated Poisson process: calm spells of 2 s and busy ones of 1 s. The busy
    rate is `ratio` times the calm one."""
    rng, at, busy, found = np.random.default_rng(seed), 0.0, False, []
    calm = 3 * mean / (2 + ratio)
    while at < seconds:
        spell = float(rng.exponential(1.0 if busy else 2.0))
        count = rng.poisson(spell * calm * (ratio if busy else 1.0))
        found.append(at + np.sort(rng.uniform(0, spell, count)))
        at, busy = at + spell, not busy
    times = np.concatenate(found)
    return times[times < seconds]


@dataclass(frozen=True)
class Seen:
    """The facts that a policy knows beside the groups that wait."""

    now: float
    rate: float
    """Arrivals a second during the last WINDOW_S."""
    coming: Sequence[Group] = ()
    """See `Candidate.expected`."""


class Policy(Protocol):
    """Chooses what runs next."""

    def choose(self, groups: Sequence[Group], seen: Seen) -> tuple[Group, int] | None:
        """Return the group that runs now and its setting; None: nothing does until a text
        arrives."""
        ...

    def ran(self, group: Group, setting: int, predicted: Sequence[float], seconds: float) -> None:
        """Take note of what a batch took. predicted: [settings]."""
        ...


class Fixed:
    """One setting for all, groups in the order of deadlines."""

    def __init__(self, setting: int) -> None:
        self._setting = setting

    def choose(self, groups: Sequence[Group], seen: Seen) -> tuple[Group, int] | None:
        return min(groups, key=lambda group: group.due), self._setting

    def ran(self, group: Group, setting: int, predicted: Sequence[float], seconds: float) -> None:
        """Learn nothing."""


class Otas:
    """Algorithms 2 and 3 of OTAS."""

    def __init__(self, table: Table, texts: int, *, corrected: bool = True) -> None:
        """texts: of the batches by which f(q) is profiled."""
        settings = range(len(table.saved))
        self._f = profiled([table.rate(texts, setting) for setting in settings])
        self._fixed_s, self._corrected = table.fixed_s, corrected

    def choose(self, groups: Sequence[Group], seen: Seen) -> tuple[Group, int] | None:
        jobs = [
            Job(g.deadline, [Option(s + self._fixed_s, v) for s, v in zip(g.seconds, g.values, strict=True)])
            for g in groups
        ]
        utilities = [sum(member.utility for member in group) / len(group) for group in groups]
        initial = seen.now < INITIAL_S
        chosen = otas(
            seen.now, jobs, utilities, self._f(seen.rate), initial=initial, corrected=self._corrected
        )
        for j in sorted(range(len(jobs)), key=lambda j: jobs[j].deadline):
            if (setting := chosen[j]) is not None:
                return groups[j], setting
        return None

    def ran(self, group: Group, setting: int, predicted: Sequence[float], seconds: float) -> None:
        """Learn nothing."""


class Exact:
    """The planner of the server."""

    def __init__(self, table: Table, *, foresees: bool = True) -> None:
        self._foresees = foresees
        cost = Cost(table.fixed_s, 0.0, table.text_s, 0.0, 0.0)
        self.now = 0.0
        self.planner = ParetoPlanner([TableStage(table)], lambda key: cost, clock=lambda: self.now)

    def choose(self, groups: Sequence[Group], seen: Seen) -> tuple[Group, int] | None:
        self.now = seen.now
        coming = seen.coming if self._foresees else ()
        plan = self.planner.plan([self._candidate(groups, coming)], seen.now)
        chosen = next(group for group in groups if group.id == plan.group)
        return None if plan.kind == "late" else (chosen, plan.index)

    def ran(self, group: Group, setting: int, predicted: Sequence[float], seconds: float) -> None:
        plan = Plan(self._candidate(()), index=setting)
        self.planner.learn(plan, Measured(len(group), len(group), seconds, 0, predicted))

    def _candidate(self, groups: Sequence[Group], coming: Sequence[Group] = ()) -> Candidate:
        return Candidate(0.0, 0.0, "t", KEY, 1, tuple(groups), coming, grouped=True)


class TableStage:
    """A stage with the settings of a table. Every text of one token may use them all."""

    name = "tokens"

    def __init__(self, table: Table) -> None:
        self._table = table

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, *map(Setting, self._table.names[1:]))

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect((1 - self._table.saved[self._table.names.index(setting.name)],))

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        return ()

    def terms(self, text: Waiting) -> Sequence[Terms]:
        table = self._table
        each = zip(table.saved, table.accuracy, table.names, strict=True)
        return [Terms((1 - saved,), accuracy, name) for saved, accuracy, name in each]


@dataclass
class Outcome:
    """The earnings of a policy."""

    utility: float = 0.0
    in_time: int = 0
    texts: int = 0
    batches: int = 0
    settings: list[int] = field(default_factory=list)
    """[settings]: texts answered in time under each."""


def simulate(
    texts: Sequence[Text],
    policy: Policy,
    table: Table,
    limits: GroupLimits,
    *,
    drop: bool = True,
    seed: int = 0,
) -> Outcome:
    """Run texts through groups, a policy and batches.

    drop: texts that cannot be answered in time do not run.
    """
    noise = np.random.default_rng(seed)
    groups, outcome = Groups(limits), Outcome(texts=len(texts), settings=[0] * len(table.saved))
    now, at = 0.0, 0
    since = 0
    while at < len(texts) or len(groups):
        while at < len(texts) and texts[at].arrival <= now:
            groups.add(KEY, _member(texts[at], table))
            at += 1
        if drop:
            _expire(groups, now + table.seconds(1, 0))
        waiting = groups.of(KEY)
        while since < at and texts[since].arrival <= now - WINDOW_S:
            since += 1
        seen = Seen(now, (at - since) / WINDOW_S, groups.expected(KEY, now))
        chosen = policy.choose(waiting, seen) if waiting else None
        if chosen is None:
            soonest = min((group.deadline for group in waiting), default=math.inf)
            following = texts[at].arrival if at < len(texts) else math.inf
            now = min(following, max(soonest, now + 1e-3))
            if math.isinf(now):
                break
            continue
        group, setting = chosen
        seconds = table.seconds(len(group), setting) * math.exp(table.noise * noise.standard_normal())
        now += seconds
        policy.ran(group, setting, list(group.seconds), seconds)
        _earn(outcome, group, setting, table, now)
        for member in list(group):
            groups.remove(group, member)
    return outcome


def _member(text: Text, table: Table) -> Member:
    values = tuple(text.utility * accuracy for accuracy in table.accuracy)
    price = Price(values, tuple(table.text_s * (1 - saved) for saved in table.saved))
    return Member(text.tenant, text.arrival, text.deadline, text.utility, price)


def random_groups(count: int, texts: int, load: float, table: Table, seed: int) -> list[Group]:
    """Groups that wait at second 0. load: their work with the stage off, by the time to the last deadline."""
    rng, made = np.random.default_rng(seed), []
    last = count * table.seconds(texts, 0) / load
    for place in range(count):
        utility = TYPES[int(rng.integers(len(TYPES)))][1]
        deadline = last * (place + 1) / count if load < 1 else float(rng.uniform(0.02, last))
        group = Group(place, KEY, beyond=False)
        for _ in range(texts):
            group.add(_member(Text(0.0, deadline, utility), table))
        made.append(group)
    return made


def _expire(groups: Groups, before: float) -> None:
    """Remove the texts whose deadlines are too near."""
    for group in list(groups):
        if group.deadline <= before:
            for member in [member for member in group if member.deadline <= before]:
                groups.remove(group, member)


def _earn(outcome: Outcome, group: Group, setting: int, table: Table, end: float) -> None:
    outcome.batches += 1
    for member in group:
        if end < member.deadline:
            outcome.utility += member.utility * table.accuracy[setting]
            outcome.in_time += 1
            outcome.settings[setting] += 1
