"""All stages on one trace: the planner beside each stage alone, and beside all of them tuned apart.

Every arm but `today` has the planner's groups and queue, so only the settings differ: `exits`, `cascades` and
`tokens` have one stage; `together` has all that paid when each was tuned alone, at its best fixed setting;
`planner` has all of them and chooses. The models have ramps, a cascade of two roots and a token profile.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import replace
from itertools import product

import numpy as np

from hmi.bench.report import Row
from hmi.bench.stages.arms import Fixed, Timed
from hmi.bench.stages.home import ALL, SMALL, Home
from hmi.bench.stages.lab import Lab, opened, requests_of
from hmi.bench.stages.live import closed
from hmi.bench.stages.otas import instance, shares, worth
from hmi.bench.stages.plan import Plan, Report
from hmi.bench.stages.replays import Arm, Replays, plot, replayed, rows, texts_of
from hmi.stages import Planner, RoundRobin, Stage
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
    if plan.small is None:
        return 0
    tuned, arms = 3 + len(MERGE_SETTINGS), 3 + len(SINGLE)
    warmed = 6 * plan.planner_warm * len(plan.tasks)
    once = texts_of(replace(plan, replays=1, traces=None), tuned)
    return warmed + once + texts_of(replace(plan, traces=None), arms)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from programs()
    if plan.small is None:
        yield Row("planner_utility", None, "of all", why="no second root: name one with --small")
        return
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    models = [home.model(task, ALL) for task in home.tasks]
    small = [home.model(task, SMALL) for task in home.tasks]
    async with opened(home.data, [*models, *small]) as lab:
        for model in models:
            lab.agree(model, plan.cascade_agreement, plan.agreement_under_load)
        for model in small:
            lab.agree(model, None)
        cost_of = lab.costs(models[0])
        one = replace(plan, traces=None)  # one trace
        alone = _alone(cost_of)
        merges = {s.name: Fixed(s.name, [TokenAdaptation()], cost_of) for s in MERGE_SETTINGS}
        report.say("planner: each stage tuned alone")
        async with _arms(lab, {**alone, **merges}) as arms:
            await _warmed(arms, home, plan, report)
            alone_found = await replayed(lab, home, arms, replace(one, replays=1), report, TUNING_SEED)
        tuned = {name: runs[0].utility for name, runs in alone_found["poisson"].runs.items()}
        chosen = _chosen(tuned)
        timed = Timed(ParetoPlanner([EarlyExit(), TokenAdaptation()], cost_of))
        stages: list[Stage] = [*([EarlyExit()] if EXITS in chosen else []), TokenAdaptation()]
        merge = next((name for name in chosen if name in merges), QUEUE)
        planners: dict[str, Planner] = {
            TODAY: RoundRobin(),
            **_alone(cost_of),
            TOKENS: ParetoPlanner([TokenAdaptation()], cost_of),
            TOGETHER: Fixed(merge, stages, cost_of),
            PLANNER: timed,
        }
        report.say(f"planner: {', '.join(planners)}")
        async with _arms(lab, planners, together=CASCADES in chosen) as arms:
            await _warmed(arms, home, plan, report)
            timed.spent_s = timed.batches_s = 0.0
            found = (await replayed(lab, home, arms, one, report))["poisson"]
    shown = sorted(SINGLE, key=lambda name: -sum(run.utility for run in found.runs[name]))[0]
    plot(plan, "planner", found, list(dict.fromkeys((TODAY, shown, TOGETHER, PLANNER))))
    about = ", ".join(chosen) or "none"
    return [*rows("planner", found), *figures(found, shown, about), _cost(timed)]


def _alone(cost_of: CostOf) -> dict[str, Planner]:
    """The planners of the arms whose texts are never merged."""
    return {
        QUEUE: Fixed(QUEUE, [TokenAdaptation()], cost_of),
        EXITS: Fixed(QUEUE, [EarlyExit(), TokenAdaptation()], cost_of),
        CASCADES: Fixed(QUEUE, [TokenAdaptation()], cost_of),
    }


def _chosen(utility: Mapping[str, float]) -> list[str]:
    """What paid alone: exits, cascades, and the best merging, each if it earned more than none of them."""
    merges = {s.name: utility[s.name] for s in MERGE_SETTINGS}
    offered = [EXITS, CASCADES, max(merges, key=merges.__getitem__)]
    return [name for name in offered if utility[name] > utility[QUEUE]]


@asynccontextmanager
async def _arms(
    lab: Lab, planners: Mapping[str, Planner], *, together: bool = False
) -> AsyncIterator[dict[str, Arm]]:
    """Run an engine for each planner. together: whether that arm has cascades."""
    with_cascades = (CASCADES, PLANNER, *((TOGETHER,) if together else ()))
    async with AsyncExitStack() as stack:
        yield {
            name: Arm(
                await stack.enter_async_context(
                    lab.engine(planner, "cascades" if name in with_cascades else "none")
                ),
                ALL,
            )
            for name, planner in planners.items()
        }


async def _warmed(arms: Mapping[str, Arm], home: Home, plan: Plan, report: Report) -> None:
    """Ask the arms with exits or cascades texts at full speed, by which their gates may open."""
    each = [
        requests_of(
            home.model(t, ALL), [str(r.text) for r in t.stream[: plan.planner_warm]], f"warm-{t.name}"
        )
        for t in home.tasks
    ]
    requests = [request for together in zip(*each, strict=True) for request in together]
    for name in (EXITS, CASCADES, TOGETHER, PLANNER):
        if name in arms:
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
