"""Utility under deadlines: the planner beside each stage alone, and beside all of them tuned apart.

Every arm but `today` has the planner's groups and queue, so only the settings differ. First each stage runs
alone: no stage, exits, cascades, each fixed γ of token adaptation, and `tokens`, the planner over these γ.
Then, on other replays, the planner of all stages runs beside the best single one, and beside `together`,
which has all that paid alone at its best fixed setting. The models have ramps and a profile of token
adaptation; those of arms with cascades have a cascade too, of two roots if there is a second one.
"""

from __future__ import annotations

import asyncio
import math
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from typing import Final

import numpy as np

from bench.cases.stages import cascade, tokens
from bench.cases.stages.arrivals import read_trace
from bench.cases.stages.home import ADAPTED, ALL, SMALL, TaskHome
from bench.cases.stages.lab import EngineLab, opened
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.cases.stages.traffic import RateTraffic, RequestEnd, offered
from bench.harness.report import Figure
from hmi.execution.batch import BatchKey
from hmi.stages.base import Stage
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planner import BatchCost, Candidate, Plan, Planner, RoundRobin, Waiting
from hmi.stages.planning.cost import Cost
from hmi.stages.planning.group import Price
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.settings import MERGE_SETTINGS
from hmi.stages.token_adaptation.stage import TokenAdaptation

TODAY, NONE, EXITS, CASCADES, TOKENS = "today", "off", "exits", "cascades", "tokens"
TOGETHER, PLANNER = "together", "planner"
GOALS: Final = {TODAY: 1.182}
"""The planner's utility, divided by that of turns without stages (OTAS, section V). By all others': 1."""
SHARE_GOAL: Final = 0.01
"""The planner's processor time, of that of the batches that it plans."""
BATCH_MS: Final = 60
"""The target time of a batch. On a deep root a text takes as long as the default."""
CAPACITY_TEXTS: Final = 40
"""Texts of each task by which the capacity is measured before each replay."""
TUNING_SEED: Final = 1_000

CostOf = Callable[[BatchKey], Cost | None]


class Fixed(ParetoPlanner):
    """Gives every group one setting. Its groups, its queue and what it drops are the server's."""

    def __init__(self, name: str, stages: Sequence[Stage], cost_of: CostOf) -> None:
        """name: of the setting, NONE for none."""
        super().__init__([*stages, TokenAdaptation()], cost_of)
        self._name = name

    def price(self, text: Waiting) -> Price:
        price = super().price(text)
        steps = self.ladder(text.key, text.layers).steps
        values = (v if s.name == self._name else -math.inf for v, s in zip(price.values, steps, strict=True))
        return replace(price, values=tuple(values))


class Timed(ParetoPlanner):
    """The server's planner, whose own processor time is counted."""

    plans = 0
    spent_s = 0.0
    """CPU seconds of prices, plans and lessons."""
    batches_s = 0.0
    """CPU seconds of the batches that it planned."""

    def price(self, text: Waiting) -> Price:
        begun = time.thread_time()
        price = super().price(text)
        self.spent_s += time.thread_time() - begun
        return price

    def plan(self, candidates: Sequence[Candidate], now: float) -> Plan:
        begun = time.thread_time()
        plan = super().plan(candidates, now)
        self.spent_s += time.thread_time() - begun
        self.plans += 1
        return plan

    def learn(self, plan: Plan, measured: BatchCost) -> None:
        begun = time.thread_time()
        super().learn(plan, measured)
        self.spent_s += time.thread_time() - begun
        self.batches_s += measured.cpu_s


@dataclass(frozen=True)
class PlannerArm:
    """A planner, and the name of the models that it is asked."""

    planner: Planner
    model: str = ADAPTED


Runs = Mapping[str, list[list[RequestEnd]]]
"""[replays] for each arm, by its name."""


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    for trace in ("poisson", *([] if plan.traces is None else ["bursty"])):
        yield from asyncio.run(_measured(trace, plan, home, report))


async def _measured(trace: str, plan: StagesPlan, home: TaskHome, report: ProgressReport) -> list[Figure]:
    models = [home.model(task, name) for task in home.tasks for name in (ADAPTED, ALL)]
    small = [home.model(task, SMALL) for task in home.tasks if plan.small is not None]
    async with opened(plan, home, report, [*models, *small]) as lab:
        for model in models:
            lab.agree(model, cascade.AGREEMENT, tokens.AGREEMENT)
        for task in home.tasks:  # by the words of its texts, so that equally many of each are equal shares
            weight = statistics.mean(len(text.split()) for text in task.asked)
            lab.serving.manager.set_tenant(home.model(task).tenant, weight=weight)
        cost_of = lab.costs(models[0])
        first = await _replayed(lab, trace, _alone(cost_of), TUNING_SEED)
        utility = {name: sum(map(_utility, runs)) for name, runs in first.items()}
        paid = [name for name in (EXITS, CASCADES) if utility[name] > utility[NONE]]
        setting = max((NONE, *(each.name for each in MERGE_SETTINGS)), key=utility.__getitem__)
        stages = [stage for name, stage in _gated().items() if name in paid]
        together = PlannerArm(Fixed(setting, stages, cost_of), ALL if CASCADES in paid else ADAPTED)
        single, timed = max(NONE, EXITS, CASCADES, TOKENS, key=utility.__getitem__), _planner(cost_of)
        arms = {name: arm for name, arm in _alone(cost_of).items() if name in (TODAY, NONE, single)}
        arms |= {TOGETHER: together, PLANNER: PlannerArm(timed, ALL)}
        second = await _replayed(lab, trace, arms, 0)
    tuned = f"{TOGETHER}: {', '.join(paid) or 'no gates'}, {setting}"
    return [
        *figures(f"utility_{trace}", first, TOKENS),
        *figures(f"planner_{trace}", second, PLANNER, tuned),
        _cost(trace, timed),
    ]


def _planner(cost_of: CostOf) -> Timed:
    return Timed([*_gated().values(), TokenAdaptation()], cost_of)


def _gated() -> dict[str, Stage]:
    """New stages of exits and of cascades."""
    return {EXITS: EarlyExit(), CASCADES: CascadeInside()}


def _alone(cost_of: CostOf) -> dict[str, PlannerArm]:
    """The arms with at most one stage. Each has stages of its own, which learn from its answers alone."""
    return {
        TODAY: PlannerArm(RoundRobin()),
        NONE: PlannerArm(Fixed(NONE, [], cost_of)),
        EXITS: PlannerArm(Fixed(NONE, [EarlyExit()], cost_of)),
        CASCADES: PlannerArm(Fixed(NONE, [CascadeInside()], cost_of), ALL),
        **{each.name: PlannerArm(Fixed(each.name, [], cost_of)) for each in MERGE_SETTINGS},
        TOKENS: PlannerArm(ParetoPlanner([TokenAdaptation()], cost_of)),
    }


async def _replayed(lab: EngineLab, trace: str, arms: Mapping[str, PlannerArm], seed: int) -> Runs:
    """Offer each replay to all arms in turn, in an order that changes, after texts at full speed by which
    gates may open.

    The capacity is measured before each, so that loads hold on a machine that others use, too.
    """
    lab.report.say(f"planner, {trace}: {', '.join(arms)}")
    stamps = read_trace(lab.plan.traces) if trace == "bursty" else None
    found: dict[str, list[list[RequestEnd]]] = {name: [] for name in arms}
    async with AsyncExitStack() as stack:
        plain, *engines = [
            await stack.enter_async_context(lab.engine(planner, batch_ms=BATCH_MS))
            for planner in (RoundRobin(), *(arm.planner for arm in arms.values()))
        ]
        asked = list(zip(arms.items(), engines, strict=True))
        for (_, arm), engine in asked:
            await lab.closed(engine, lab.in_turn(lab.plan.planner_warm, "warm", arm.model))
        for replay in range(seed, seed + lab.plan.replays):
            capacity = (await lab.closed(plain, lab.in_turn(CAPACITY_TEXTS, "capacity"))).rate
            traffic = RateTraffic(lab, capacity)
            arrivals = traffic.arrivals(stamps, replay)
            first = replay % len(asked)
            for (name, arm), engine in asked[first:] + asked[:first]:
                asks = traffic.asks(len(arrivals), replay, trace, arm.model)
                found[name].append(await offered(engine, asks, arrivals))
                lab.report.did(len(asks))
    return found


def _utility(outcomes: Sequence[RequestEnd]) -> float:
    return sum(outcome.earned for outcome in outcomes)


def figures(label: str, runs: Runs, mine: str, about: str = "") -> Iterator[Figure]:
    """Each arm's utility, answers, accuracy and latencies; and the utility of one arm, divided by each
    other's: the median of the replays."""
    for name, replays in runs.items():
        outcomes = [outcome for run in replays for outcome in run]
        if not outcomes:  # a very short trace may have no arrivals
            continue
        answered, texts = [outcome for outcome in outcomes if outcome.result is not None], len(outcomes)
        share = _utility(outcomes) / sum(outcome.ask.request.utility for outcome in outcomes)
        arm = f"{label}_{name}"
        yield Figure(f"{arm}_utility", round(share, 4), "of all", runs=texts)
        yield Figure(f"{arm}_answered", round(len(answered) / texts, 4), "of texts", runs=texts)
        if answered:
            right = round(sum(outcome.right for outcome in answered) / len(answered), 4)
            yield Figure(f"{arm}_accuracy", right, "of answered", runs=len(answered))
            for part in (50, 95):
                ms = 1e3 * float(np.percentile([outcome.seconds for outcome in answered], part))
                yield Figure(f"{arm}_p{part}", round(ms, 1), "ms", runs=len(answered))
        if name != mine:
            pairs = zip(runs[mine], replays, strict=True)
            ratios = [_utility(a) / max(_utility(b), 1e-9) for a, b in pairs]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}" + (f"; {about}" if name == TOGETHER else "")
            ratio, goal = round(statistics.median(ratios), 4), GOALS.get(name, 1.0)
            yield Figure(f"{label}_{mine}_against_{name}", ratio, "of its", goal, True, len(ratios), spread)


def _cost(trace: str, timed: Timed) -> Figure:
    share = round(timed.spent_s / max(timed.batches_s, 1e-9), 5)
    each = 1e6 * timed.spent_s / max(1, timed.plans)
    about = f"{each:.0f} µs for a plan and the prices and lessons it needs"
    return Figure(f"planner_{trace}_cost", share, "of batches' CPU", SHARE_GOAL, False, timed.plans, about)
