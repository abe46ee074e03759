"""All stages on one trace: the planner beside each stage alone, and beside all of them tuned apart.

Every arm but `today` has the planner's groups and queue, so only the settings differ: `exits`, `cascades` and
`tokens` have one stage; `together` has all that paid when each was tuned alone, at its best fixed setting;
`planner` has all of them and chooses. The models have ramps and a profile of token adaptation; those of arms
with cascades have a cascade too, of two roots if there is a second one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import product

import numpy as np

from bench.cases.stages.arms import CostOf, Fixed, Timed
from bench.cases.stages.home import ADAPTED, ALL, SMALL, Home
from bench.cases.stages.lab import Lab, opened
from bench.cases.stages.live import closed
from bench.cases.stages.otas import instance, shares, worth
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.replays import Arm, Replays, in_turn, plot, replayed, rows, texts_of, weights
from bench.harness.report import Row
from hmi.stages import Planner, RoundRobin, Stage
from hmi.stages.cascade.stage import CascadeInside
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planning.labels import Job, best
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.settings import MERGE_SETTINGS
from hmi.stages.token_adaptation.stage import TokenAdaptation

TODAY, QUEUE, EXITS, CASCADES, TOKENS, TOGETHER, PLANNER = (
    "today", "off", "exits", "cascades", "tokens", "together", "planner"
)  # fmt: skip
SINGLE = (QUEUE, EXITS, CASCADES, TOKENS)
GOAL, STRETCH = 1.0, 1.1
SHARE_GOAL = 0.01
"""The planner's processor time, of that of the batches that it plans."""
BATCHES, INSTANCES, ENUMERATED = (2, 3, 4, 5, 6), 200, 20
"""Random instances of each size, and those of them of which all choices are enumerated."""
TUNING_SEED = 1_000


def texts(plan: Plan) -> int:
    tuned, arms = 3 + len(MERGE_SETTINGS), 3 + len(SINGLE)
    warmed = 5 * plan.planner_warm * len(plan.tasks)
    one = replace(plan, traces=None)
    return warmed + texts_of(replace(one, replays=1), tuned) + texts_of(one, arms)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from programs()
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    one = replace(plan, traces=None)  # one trace
    models = [home.model(task, name) for task in home.tasks for name in (ADAPTED, ALL)]
    small = [home.model(task, SMALL) for task in home.tasks if plan.small is not None]
    async with opened(home.data, [*models, *small]) as lab:
        for model in models:
            lab.agree(model, plan.cascade_agreement, plan.agreement_under_load)
        for model in small:
            lab.agree(model, None)
        cost_of = lab.costs(models[0])
        report.say("planner: each stage tuned alone")
        batch_ms = plan.deadline_batch_ms
        lab.weigh(weights(home))
        async with _arms(lab, {**_alone(cost_of), **_merging(cost_of)}, batch_ms) as arms:
            await _warmed(arms, home, plan, report)
            tuned = (await replayed(lab, home, arms, replace(one, replays=1), report, TUNING_SEED))["poisson"]
        chosen = _chosen({name: runs[0].utility for name, runs in tuned.runs.items()})
        merge = next((name for name in chosen if name in _merging(cost_of)), QUEUE)
        timed = Timed(ParetoPlanner([*_stages(EXITS, CASCADES), TokenAdaptation()], cost_of))
        planners: dict[str, Planner] = {
            TODAY: RoundRobin(),
            **_alone(cost_of),
            TOKENS: ParetoPlanner([TokenAdaptation()], cost_of),
            TOGETHER: Fixed(merge, [*_stages(*chosen), TokenAdaptation()], cost_of),
            PLANNER: timed,
        }
        report.say(f"planner: {', '.join(planners)}")
        async with _arms(lab, planners, batch_ms, together=ALL if CASCADES in chosen else ADAPTED) as arms:
            await _warmed(arms, home, plan, report)
            timed.begin()
            found = (await replayed(lab, home, arms, one, report))["poisson"]
    single = max(SINGLE, key=lambda name: sum(run.utility for run in found.runs[name]))
    plot(plan, "planner", found, list(dict.fromkeys((TODAY, single, TOGETHER, PLANNER))))
    about = ", ".join(chosen) or "none"
    return [*rows("planner", found), *figures(found, single, about), _cost(timed)]


def _stages(*names: str) -> list[Stage]:
    """New stages of exits, and of cascades, if they are among the names."""
    known: dict[str, Callable[[], Stage]] = {EXITS: EarlyExit, CASCADES: CascadeInside}
    return [make() for name, make in known.items() if name in names]


def _alone(cost_of: CostOf) -> dict[str, Planner]:
    """The planners of the arms whose texts are never merged."""
    return {
        name: Fixed(QUEUE, [*_stages(name), TokenAdaptation()], cost_of) for name in (QUEUE, EXITS, CASCADES)
    }


def _merging(cost_of: CostOf) -> dict[str, Planner]:
    """A planner for each setting of merging."""
    return {each.name: Fixed(each.name, [TokenAdaptation()], cost_of) for each in MERGE_SETTINGS}


def _chosen(utility: Mapping[str, float]) -> list[str]:
    """Return the stages that paid alone: exits, cascades and the best merging, each if it earned more than no
    stage."""
    merges = {each.name: utility[each.name] for each in MERGE_SETTINGS}
    offered = [EXITS, CASCADES, max(merges, key=merges.__getitem__)]
    return [name for name in offered if utility[name] > utility[QUEUE]]


@asynccontextmanager
async def _arms(
    lab: Lab, planners: Mapping[str, Planner], batch_ms: int, *, together: str = ADAPTED
) -> AsyncIterator[dict[str, Arm]]:
    """Run an engine for each planner. together: the name of the models that this arm is asked."""
    names = {CASCADES: ALL, PLANNER: ALL, TOGETHER: together}
    async with AsyncExitStack() as stack:
        yield {
            name: Arm(
                await stack.enter_async_context(lab.engine(planner, batch_ms)), names.get(name, ADAPTED)
            )
            for name, planner in planners.items()
        }


async def _warmed(arms: Mapping[str, Arm], home: Home, plan: Plan, report: Report) -> None:
    """Ask the arms with exits or cascades texts at full speed, by which their gates may open."""
    for name in (EXITS, CASCADES, TOGETHER, PLANNER):
        if name in arms:
            requests = in_turn(home, plan.planner_warm, "warm", arms[name].model)
            await closed(arms[name].engine, requests, plan.callers)
            report.did(len(requests))


def figures(replays: Replays, single: str, about: str) -> Iterator[Row]:
    """The planner beside the best single stage and all tuned apart. about: what was tuned."""
    count = len(replays.load)
    for label, arm in (("the_best_single", single), ("together", TOGETHER)):
        ratio, spread = replays.median(PLANNER, arm)
        peer = f"{single if arm == single else about}; {spread}"
        yield Row(
            f"planner_against_{label}", ratio, "of its utility", GOAL, True, count, peer, stretch=STRETCH
        )
        mine, other = (_p50(replays, name) for name in (PLANNER, arm))
        change = _accuracy(replays, PLANNER) - _accuracy(replays, arm)
        peer = f"accuracy {change:+.3f}"
        yield Row(
            f"planner_p50_against_{label}", round(mine / other, 4), "of its p50", 1.0, False, count, peer
        )


def _p50(replays: Replays, arm: str) -> float:
    answered = [outcome.seconds for outcome in replays.together(arm) if outcome.result is not None]
    return float(np.median(answered)) if answered else np.nan


def _accuracy(replays: Replays, arm: str) -> float:
    answered = [outcome.right for outcome in replays.together(arm) if outcome.result is not None]
    return float(np.mean(answered)) if answered else np.nan


def _cost(timed: Timed) -> Row:
    share = timed.spent_s / max(timed.batches_s, 1e-9)
    peer = (
        f"{1e6 * timed.spent_s / max(1, timed.plans):.0f} µs for a plan and the prices and lessons it needs"
    )
    return Row("planner_cost", round(share, 5), "of batches' CPU", SHARE_GOAL, False, timed.plans, peer)


def programs() -> Iterator[Row]:
    """The exact program beside all choices, and Algorithm 2 beside the program, on random instances."""
    differ, checked = 0, 0
    for batches in BATCHES:
        found = shares(batches, INSTANCES)
        about = f"loses {found.mean_loss:.1%}; as printed, {found.infeasible:.1%} of plans miss deadlines"
        name = f"planner_algorithm_2_short_of_{batches}_batches"
        yield Row(name, round(found.suboptimal, 4), "of instances", runs=INSTANCES, peer=about)
        yield Row(f"{name}_better", found.better, "instances", 0, False, INSTANCES)
        rng = np.random.default_rng(batches)
        for _ in range(ENUMERATED):
            jobs = instance(rng, batches)
            differ += abs(best([0.0], jobs).value - enumerated(jobs)) > 1e-9
            checked += 1
    yield Row("planner_program_unlike_all_choices", differ, "instances", 0, False, checked)


def enumerated(jobs: Sequence[Job]) -> float:
    """The highest value of all choices whose jobs all end in time."""
    most = 0.0
    for chosen in product(*([None, *range(len(job.options))] for job in jobs)):
        value, feasible = worth(0.0, jobs, chosen)
        most = max(most, value) if feasible else most
    return most
