"""Measures texts a second of a saturated engine with early exits and without them, also for tasks in which no
exit saves time."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from typing import Final

from bench.cases.stages.exits import AGREEMENT
from bench.cases.stages.home import LARGE, SHUFFLED, TaskHome
from bench.cases.stages.lab import in_order, opened, requests_of
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.cases.stages.tasks import StageRows
from bench.harness.report import Figure

EACH: Final = 200
"""Texts of one repetition, at most."""
GOAL: Final = 0.99
"""Of the rate without stages, for each task: an exit that does not pay must end switched off."""


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    for task in home.tasks:
        yield from asyncio.run(_measured(plan, home, task, LARGE, report))
    yield from asyncio.run(_measured(plan, home, home.tasks[0], SHUFFLED, report))


async def _measured(
    plan: StagesPlan, home: TaskHome, task: StageRows, name: str, report: ProgressReport
) -> list[Figure]:
    """Answers a second with exits, once the stage has seen `plan.saturated` texts, divided by those without.

    The stream is asked again from its beginning when it has ended.
    """
    model, each = home.model(task, name), min(EACH, plan.texts)
    label = task.name if name == LARGE else f"{task.name}_shuffled_ramps"
    report.say(f"throughput: {label}")
    ratios, cpus, left = [], [], 0
    rounds = -(-(plan.saturated + plan.runs * each) // len(task.stream))
    requests = requests_of(model, task.asked * rounds, "saturated")
    async with opened(plan, home, report, [model]) as lab, lab.pair() as (plain, staged):
        lab.agree(model, AGREEMENT)
        await lab.closed(staged, requests[: plan.saturated])
        await lab.closed(plain, requests[: plan.callers])  # loads the model
        for i in range(plan.runs):
            some = requests[plan.saturated + i * each :][:each]
            arms = in_order({"plain": plain, "staged": staged}, i)
            found = {arm: await lab.closed(engine, some) for arm, engine in arms}
            ratios.append(found["staged"].rate / found["plain"].rate)
            cpus.append(found["staged"].cpu_s / found["plain"].cpu_s)
            left += sum(answer.layers < lab.depth(model) for answer in found["staged"].answers)
        about = lab.exits(staged, model)
    state = "no stage" if about is None else f"{about.state}, sites {list(about.sites)}"
    ratio, share = round(statistics.median(ratios), 4), round(left / (plan.runs * each), 4)
    return [
        Figure(f"{label}_throughput", ratio, "of none's", GOAL, runs=plan.runs, peer=state),
        Figure(f"{label}_throughput_cpu", round(statistics.median(cpus), 4), "of none's", runs=plan.runs),
        Figure(f"{label}_throughput_left", share, "of texts", runs=plan.runs * each),
    ]
