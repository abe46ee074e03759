"""Token adaptation under load: the utility of the planner beside that of every fixed γ (OTAS, section V).

All arms have the same models, texts, arrivals, deadlines and utilities. `today` takes turns and has no stage.
The others form the same groups and drop what cannot be in time: each fixed γ, OTAS's own algorithms, and the
planner.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import AsyncExitStack

from bench.cases.stages.arms import CostOf, Fixed, Otas
from bench.cases.stages.home import ADAPTED, Home
from bench.cases.stages.lab import opened
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.replays import Arm, Replays, plot, replayed, rows, texts_of, weights
from bench.harness.report import Row
from hmi.stages import Planner, RoundRobin
from hmi.stages.planning.pareto import ParetoPlanner
from hmi.stages.token_adaptation.settings import MERGE_SETTINGS
from hmi.stages.token_adaptation.stage import TokenAdaptation

GOAL = 1.182
"""The utility that is aimed at, divided by that at γ = 0 (OTAS, section V)."""
TODAY, NONE, OTAS, PLANNER = "today", "off", "otas", "planner"


def texts(plan: Plan) -> int:
    return texts_of(plan, 4 + len(MERGE_SETTINGS))


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    models, found = [home.model(task, ADAPTED) for task in home.tasks], list[Row]()
    async with opened(home.data, models) as lab:
        for model in models:
            lab.agree(model, None, plan.agreement_under_load)
        lab.weigh(weights(home))
        async with AsyncExitStack() as stack:
            arms = {
                name: Arm(
                    await stack.enter_async_context(lab.engine(planner, plan.deadline_batch_ms)), ADAPTED
                )
                for name, planner in planners(lab.costs(models[0])).items()
            }
            report.say(f"utility: {', '.join(arms)}")
            by_trace = await replayed(lab, home, arms, plan, report)
    for trace, replays in by_trace.items():
        found += rows(f"utility_{trace}", replays)
        found += figures(f"utility_{trace}", replays)
        shown = [TODAY, NONE, best(replays), PLANNER]
        plot(plan, f"utility-{trace}", replays, list(dict.fromkeys(shown)))
    return found


def planners(cost_of: CostOf) -> dict[str, Planner]:
    """The planners of the arms. Each has stages of its own, which learn from its answers alone."""
    fixed: dict[str, Planner] = {
        setting.name: Fixed(setting.name, [TokenAdaptation()], cost_of) for setting in MERGE_SETTINGS
    }
    return {
        TODAY: RoundRobin(),
        NONE: Fixed(NONE, [TokenAdaptation()], cost_of),
        **fixed,
        OTAS: Otas([TokenAdaptation()], cost_of),
        PLANNER: ParetoPlanner([TokenAdaptation()], cost_of),
    }


def best(replays: Replays) -> str:
    """The fixed setting, off included, that earned most in all replays together."""
    fixed = [name for name in replays.runs if name not in (TODAY, OTAS, PLANNER)]
    return max(fixed, key=lambda name: sum(run.utility for run in replays.runs[name]))


def figures(name: str, replays: Replays) -> Iterator[Row]:
    """The planner's utility, divided by each other arm's: the median of the replays."""
    for arm in replays.runs:
        if arm != PLANNER:
            ratio, spread = replays.median(PLANNER, arm)
            goal, stretch = (GOAL, None) if arm == TODAY else (1.0, GOAL if arm == NONE else None)
            label = f"{name}_planner_against_{arm}"
            count = len(replays.runs[arm])
            yield Row(label, ratio, f"of {arm}'s", goal, True, count, spread, stretch=stretch)
