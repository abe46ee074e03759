"""The planner of all stages: the exact label program over groups, settings by load for all other texts."""

from __future__ import annotations

import math
import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from operator import itemgetter

import numpy as np

from hmi.core import Cascade, Objective
from hmi.execution.batch import BatchKey
from hmi.stages.base import OFF, Setting, Shape, Stage
from hmi.stages.planner import Adaptive, BatchCost, Candidate, Plan, SettingEffect, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.expected import NEVER
from hmi.stages.planning.group import Group, Price
from hmi.stages.planning.labels import chosen_of
from hmi.stages.planning.measured import Ratios

_TYPICAL = 32
"""The tokens of the text by which settings are compared before any is priced."""


@dataclass(frozen=True)
class _StageSettings:
    """One setting of each adaptive stage. The other stages run under the last of theirs."""

    settings: dict[str, Setting]
    """The settings of all stages, by stage."""
    name: str
    """The names of those that are not off; "off" if all are."""


@dataclass(frozen=True)
class _Effects:
    """The effect of one step on the texts of one model."""

    name: str
    total: float
    """The sum over the layers of the fraction of a text's rows that enter each."""
    squares: float
    """The sum of the squares of these fractions."""
    accuracy: float
    """The accuracy relative to that with all of them off, so that no tenant comes later because its task is
    hard."""
    shortest: int
    """Texts with fewer tokens stay off."""
    whole: bool
    """True if texts of several windows stay off, too."""


class _Ladder:
    """The steps of a batch key. Step 0 has all adaptive stages off.

    A step may be priced above off: prompts take time and gain accuracy.
    """

    def __init__(self, stages: Sequence[Stage], shape: Shape, cost: Cost) -> None:
        self.shape, self.cost = shape, cost
        self._adaptive = [stage for stage in stages if isinstance(stage, Adaptive)]
        adaptive: list[Stage] = [stage for stage in stages if isinstance(stage, Adaptive)]
        others = {s.name: s.settings(shape.key)[-1] for s in stages if not isinstance(s, Adaptive)}
        self.steps: list[_StageSettings] = []
        seconds = []
        for chosen in product(*(stage.settings(shape.key) for stage in adaptive)):
            pairs = list(zip(adaptive, chosen, strict=True))
            name = ", ".join(setting.name for setting in chosen if setting != OFF) or "off"
            self.steps.append(
                _StageSettings({**others, **{stage.name: setting for stage, setting in pairs}}, name)
            )
            rows = [stage.effect(setting, shape).rows for stage, setting in pairs if setting != OFF]
            seconds.append(cost.text_s(_TYPICAL, _multiplied(rows, shape.layers), name))
        self.fixed = [cost.fixed_s(0, step.name) for step in self.steps]
        """[steps]: the seconds of a batch apart from its windows and modules."""
        self.faster = sorted(
            (s for s in range(1, len(seconds)) if seconds[s] < seconds[0]), key=lambda s: -seconds[s]
        )
        """The steps that are faster than off for a typical text, the fastest last."""

    def effects(self, text: Waiting) -> list[_Effects]:
        """[steps]: what each does to texts of the text's model. The stages are asked."""
        terms = [
            [(each, _relative(each, mine[0])) for each in mine]
            for stage in self._adaptive
            for mine in (stage.terms(text),)
        ]
        return [self._together(each) for each in product(*terms)]

    def price(self, text: Waiting, effects: Sequence[_Effects], least: float = 0.0) -> Price:
        """Return the text's value and seconds under each step. A step whose accuracy is below `least` is not
        allowed."""
        cost, values, seconds = self.cost, [], []
        for effect in effects:
            stall = cost.stalls.get(effect.name, (0.0, 0.0))[1]
            each, square = stall + cost.row * effect.total, cost.square * effect.squares
            accuracy, total = 1.0, 0.0
            for n in text.windows:
                if n < effect.shortest or (effect.whole and not text.whole):
                    total += cost.text + n * (cost.row + cost.square * n) * self.shape.layers
                else:
                    total += cost.text + n * (each + square * n)
                    accuracy = effect.accuracy
            seconds.append(total)
            values.append(text.utility * accuracy if accuracy >= least else -math.inf)
        return Price(tuple(values), tuple(seconds))

    def _together(self, terms: Sequence[tuple[SettingEffect, float]]) -> _Effects:
        rows = _multiplied([each.rows for each, _ in terms], self.shape.layers)
        name = ", ".join(each.name for each, _ in terms if each.name != OFF.name) or OFF.name
        accuracy = prod(relative for _, relative in terms)
        shortest = min((each.shortest for each, _ in terms if each.name != OFF.name), default=0)
        squares, whole = sum(share * share for share in rows), any(each.whole for each, _ in terms)
        return _Effects(name, sum(rows), squares, accuracy, shortest, whole)


def _relative(terms: SettingEffect, off: SettingEffect) -> float:
    return terms.accuracy / off.accuracy if off.accuracy > 0 else 1.0


def _multiplied(rows: Sequence[Sequence[float]], layers: int) -> list[float]:
    """[layers]: the fraction of the rows that several stages leave together."""
    return [prod(each[layer] for each in rows) for layer in range(layers)]


CALM_S, FULL_S = 0.1, 0.5
"""Ordinary texts run with stages off while less than CALM_S seconds of work wait, and under the fastest
setting that their models allow from FULL_S on. In between, settings grow bolder in equal steps."""
REFRESH_S = 1.0
"""Seconds after which a model's effects are asked for again: audits may have revoked a setting."""
MODELS = 8192
"""The number of models whose effects are remembered."""
UNKNOWN = Cost(batch=8e-3, text=6e-4, row=3e-5, square=2e-8, module=8e-4)
"""The cost that is assumed until one is measured: too high for most machines, so that deadlines hold."""


@dataclass(frozen=True, slots=True)
class _Key:
    """The facts that the groups of one candidate's key have in common."""

    candidate: Candidate
    ladder: _Ladder
    factors: Sequence[float]
    """[steps]: the factor of the predicted seconds."""
    margin: float
    """The factor, less 1, by which a batch may take longer than it is expected to."""

    def seconds(self, group: Group, step: int) -> float:
        """Expected seconds of a batch of the group."""
        ladder = self.ladder
        fixed = ladder.fixed[step] + ladder.cost.module * len(group.modules)
        return (group.seconds[step] + fixed) * self.factors[step]

    def all_seconds(self, group: Group) -> list[float]:
        """[steps]"""
        return [self.seconds(group, step) for step in range(len(self.factors))]

    def fastest(self, group: Group) -> int:
        """The fastest step that is worth something; off if none is."""
        steps = [step for step, value in enumerate(group.values) if value > 0.0]
        return min(steps, key=self.all_seconds(group).__getitem__, default=0)


@dataclass(frozen=True, slots=True)
class _Known:
    """The effects of the steps on one version's texts, and when they were asked for."""

    at: float
    objective: Objective
    cascade: Cascade | None
    effects: list[_Effects]

    def holds_for(self, text: Waiting) -> bool:
        """Return whether nothing that the effects depend on has changed. Records are rarely copied."""
        same = self.objective is text.objective and self.cascade is text.cascade
        return same or (self.objective == text.objective and self.cascade == text.cascade)


_Ready = tuple[float, int, Group, _Key]
"""A group that may run: its place in the order of deadlines, its id, itself, and what its key has."""


def _merged(ready: Sequence[_Ready], coming: Sequence[_Ready]) -> Sequence[_Ready]:
    """Both in the order of deadlines."""
    return sorted([*ready, *coming], key=itemgetter(0)) if coming else ready


def _groups_to_run(ready: Sequence[_Ready], starts: Sequence[float]) -> list[tuple[Group, _Key, int]]:
    """The groups that are here and that the label program runs, in their order, each with its step."""
    # The order of true deadlines: the program is exact in no other. Those without one come last.
    ready = sorted(ready, key=lambda each: (each[2].deadline, each[0]))
    width = max(len(key.factors) for _, _, _, key in ready)
    seconds, values = np.zeros((len(ready), width)), np.full((len(ready), width), -math.inf)
    for g, (_, _, group, key) in enumerate(ready):
        seconds[g, : len(key.factors)] = key.all_seconds(group)
        values[g, : len(key.factors)] = group.values
    margins = np.array([key.margin for _, _, _, key in ready])
    deadlines = np.array([group.deadline for _, _, group, _ in ready])
    with np.errstate(invalid="ignore"):  # a step that is not used takes for ever
        latest = deadlines[:, None] - seconds * margins[:, None]
    steps, _, _ = chosen_of(starts, seconds, values, latest)
    of = zip(ready, steps, strict=True)
    return [(group, key, step) for (_, _, group, key), step in of if step >= 0 and group.id != NEVER]


class ParetoPlanner:
    """Chooses among all groups by the exact label program; between groups and ordinary texts turns decide.

    Used on the event loop's thread only.
    """

    def __init__(
        self,
        stages: Sequence[Stage] = (),
        cost_of: Callable[[BatchKey], Cost | None] = lambda key: None,
        *,
        streams: int = 1,
        least: float = 0.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """cost_of: the measured cost of a key's batches; None: UNKNOWN, corrected by what is measured.

        least: the lowest accuracy, relative to that with all stages off, that a setting may have for a text.
        """
        self.stages = stages
        self.decisions: Counter[str] = Counter()
        """Plans by kind: fits, loaded, overdue, late, ordinary, hurried; and the groups `dropped` by them."""
        self.ratios = Ratios()
        self._cost_of, self._streams, self._least, self._clock = cost_of, streams, least, clock
        self._ladders: dict[BatchKey, _Ladder] = {}
        self._effects: dict[tuple[object, ...], _Known] = {}
        self._overdue_ran = False
        """True if the last plan among groups was of an overdue one: every second is left to the others."""
        self._ends: list[float] = []
        """The expected ends of the batches planned last, one for each other stream."""

    def ladder(self, key: BatchKey, layers: int) -> _Ladder:
        """The settings that the planner chooses among for batches with this key."""
        found = self._ladders.get(key)
        if found is None:
            cost = self._cost_of(key) or UNKNOWN
            found = self._ladders[key] = _Ladder(self.stages, Shape(key, layers), cost)
        return found

    def renew(self, key: BatchKey) -> None:
        """Ask for the key's cost again, since it was measured. Prices of waiting texts stay as they are."""
        self._ladders.pop(key, None)
        self.ratios.forget(key)

    def price(self, text: Waiting) -> Price:
        """Return the text's value and cost under each step of `ladder(text.key, text.layers)`."""
        ladder = self.ladder(text.key, text.layers)
        bounds = text.objective.agreement_under_load  # a text that insists on the full model has none
        of, now = (text.key, text.model, text.version.artefact, bounds), self._clock()
        known = self._effects.get(of)
        if known is None or now - known.at > REFRESH_S or not known.holds_for(text):
            if len(self._effects) >= MODELS:
                self._effects.clear()
            effects = ladder.effects(text)
            known = self._effects[of] = _Known(now, text.objective, text.cascade, effects)
        return ladder.price(text, known.effects, self._least)

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        first = min(candidates)
        ready, coming = list[_Ready](), list[_Ready]()
        seen = set[object]()  # two tenants may want texts of one group next
        for candidate in candidates if first.grouped else ():
            if candidate.groups:
                key = self._key(candidate, now)
                ready += [(g.due, g.id, g, key) for g in candidate.groups if g.id not in seen]
                seen.update(group.id for group in candidate.groups)
                if candidate.key not in seen:
                    seen.add(candidate.key)
                    steps = len(key.factors)
                    coming += [(g.due, g.id, g, key) for g in candidate.expected if len(g.values) == steps]
        if not ready:
            return self._ordinary(first, candidates, now)
        ready.sort()
        starts = self._starts(now)
        overdue = None if self._overdue_ran else self._overdue(ready, now)
        self._overdue_ran = overdue is not None
        plan = overdue or self._fitting(_merged(ready, coming), starts)
        plan = plan or self._loaded(ready, coming, starts)
        if plan is None:  # no group can end in time
            others = [candidate for candidate in candidates if not candidate.grouped]
            # Where the cost is a guess, only a batch tells what texts really take.
            guess = next((each for each in ready if each[3].ladder.cost is UNKNOWN), None)
            if others and guess is None:
                return self._ordinary(min(others), candidates, now)
            plan = self._late(guess or ready[0])
        return plan

    def learn(self, plan: Plan, measured: BatchCost) -> None:
        """Correct the costs of the plan's step. Batches of texts that were not priced tell nothing."""
        if measured.priced_s:
            key = plan.candidate.key
            ladder = self.ladder(key, plan.candidate.layers)
            modules = ladder.cost.module * measured.modules
            priced = [s + fixed + modules for s, fixed in zip(measured.priced_s, ladder.fixed, strict=True)]
            faster = plan.index in ladder.faster
            self.ratios.learn(key, plan.index, priced, measured, faster=faster, now=self._clock())

    def _key(self, candidate: Candidate, now: float) -> _Key:
        ladder = self.ladder(candidate.key, candidate.layers)
        ratios, steps = self.ratios.of(candidate.key), len(ladder.steps)
        factors = [1.0] * steps if ratios is None else ratios.now(now, steps)
        return _Key(candidate, ladder, factors, ladder.cost.margin - 1.0)

    def _starts(self, now: float) -> list[float]:
        """The time at which each stream is free. The one that is planned for is free now."""
        if self._streams == 1:
            return [now]
        self._ends = sorted(end for end in self._ends if end > now)[-(self._streams - 1) :]
        return [now] * (self._streams - len(self._ends)) + self._ends

    def _overdue(self, ready: Sequence[_Ready], now: float) -> Plan | None:
        """Plan the first group without a deadline that has waited too long, so that none waits for ever."""
        for due, _, group, key in ready:
            if due > now:
                break
            if math.isinf(group.deadline) and not group.beyond:
                return self._run(group, key, key.fastest(group), "overdue", "overdue")
        return None

    def _fitting(self, ready: Sequence[_Ready], starts: Sequence[float]) -> Plan | None:
        """Plan the first group if all fit under the settings that are worth most."""
        clocks, several = list(starts), len(starts) > 1
        first: tuple[Group, _Key, int] | None = None
        for _, _, group, key in ready:
            values = group.values
            step = values.index(max(values))
            takes = key.seconds(group, step)
            clocks[0] += takes
            if values[step] <= 0.0 or clocks[0] + takes * key.margin >= group.deadline:
                return None
            if several:
                clocks.sort()
            if first is None and group.id != NEVER:
                first = group, key, step
        assert first is not None, "a group is ready"
        return self._run(*first, "fits", "fits")

    def _loaded(
        self, ready: Sequence[_Ready], coming: Sequence[_Ready], starts: Sequence[float]
    ) -> Plan | None:
        """Plan the first group that the label program does not drop, beside those that are coming; None if
        it drops them all."""
        chosen = _groups_to_run([*ready, *coming], starts)
        if not chosen and coming:  # what is coming is worth more, but is not here yet
            chosen = _groups_to_run(ready, starts)
        if not chosen:
            return None
        dropped = len(ready) - len(chosen)
        group, key, step = chosen[0]
        self.decisions["dropped"] += dropped
        name = key.ladder.steps[step].name
        why = f"loaded: {name} for {len(ready)} groups" + (f", {dropped} dropped" if dropped else "")
        return replace(self._run(group, key, step, "loaded", why), dropped=dropped)

    def _late(self, ready: _Ready) -> Plan:
        """Plan a group that is late while nothing else can run. The queue fails the texts that are lost."""
        _, _, group, key = ready
        return self._run(group, key, key.fastest(group), "late", "late")

    def _run(self, group: Group, key: _Key, step: int, kind: str, why: str) -> Plan:
        self.decisions[kind] += 1
        if self._streams > 1:
            self._ends.append(self._clock() + key.seconds(group, step))
        return Plan(key.candidate, key.ladder.steps[step].settings, group.id, why, step, kind)

    def _ordinary(self, first: Candidate, candidates: Sequence[Candidate], now: float) -> Plan:
        """Plan texts without a group: off, or a bolder setting the more work waits."""
        ladder = self.ladder(first.key, first.layers)
        waits = sum(candidate.waiting_s for candidate in candidates)
        step, kind = 0, "ordinary"
        if waits > CALM_S and ladder.faster:
            ratios = self.ratios.of(first.key)
            faster = ladder.faster
            if ratios is not None:
                resting = ratios.now(now, len(ladder.steps))
                faster = [s for s in faster if resting[s] < math.inf]
            if faster:
                share = (waits - CALM_S) / (FULL_S - CALM_S)
                step, kind = faster[min(int(share * len(faster)), len(faster) - 1)], "hurried"
        self.decisions[kind] += 1
        why = f"{waits * 1e3:.0f} ms wait: {ladder.steps[step].name}" if step else ""
        return Plan(first, ladder.steps[step].settings, None, why, step, kind)
