"""Throughput under saturation with exits beside none, also where no exit pays."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

from bench.cases.stages.home import LARGE, SHUFFLED, Home
from bench.cases.stages.lab import opened, requests_of
from bench.cases.stages.live import closed
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.streams import rate_of
from bench.cases.stages.tasks import TaskRows
from bench.harness.report import Row

EACH = 200
"""Texts of one repetition."""
GOAL = 0.99
"""Of the rate without stages, for each task: an exit that does not pay must end switched off."""


def texts(plan: Plan) -> int:
    return (len(plan.tasks) + 1) * (plan.saturated + 2 * _each(plan) * plan.runs)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    for task in home.tasks:
        yield from asyncio.run(_measured(plan, home, task, LARGE, report))
    yield from asyncio.run(_measured(plan, home, home.tasks[0], SHUFFLED, report))


def _each(plan: Plan) -> int:
    return min(EACH, plan.texts)


async def _measured(plan: Plan, home: Home, task: TaskRows, name: str, report: Report) -> list[Row]:
    """Answers a second with exits, once the stage has seen `plan.saturated` texts, divided by those without.

    The stream is asked again from its beginning when it has ended.
    """
    model, texts = home.model(task, name), [str(row.text) for row in task.stream]
    label = task.name if name == LARGE else f"{task.name}_shuffled_ramps"
    report.say(f"throughput: {label}")
    ratios, cpus, left = [], [], 0
    async with opened(home.data, [model]) as lab:
        lab.agree(model, plan.agreement)
        async with lab.without() as plain, lab.engine() as staged:
            each = _each(plan)
            rounds = -(-(plan.saturated + plan.runs * each) // len(texts))
            requests = requests_of(model, texts * rounds, "saturated")
            await closed(staged, requests[: plan.saturated], plan.callers)
            await closed(plain, requests[: plan.callers], plan.callers)  # loads the model
            report.did(plan.saturated)
            for i in range(plan.runs):
                at, found = plan.saturated + i * each, {}
                some = requests[at : at + each]
                for engine in (plain, staged) if i % 2 else (staged, plain):
                    found[engine] = await closed(engine, some, plan.callers)
                    report.did(len(some))
                ratios.append(rate_of(found[staged]) / rate_of(found[plain]))
                cpus.append(found[staged].cpu_s / found[plain].cpu_s)
                left += sum(a.layers < lab.depth(model) for a in found[staged].answers)
            about = lab.exits(staged, model)
        state = "no stage" if about is None else f"{about.state}, sites {list(about.sites)}"
    ratio, share = round(statistics.median(ratios), 4), round(left / (plan.runs * each), 4)
    return [
        Row(f"{label}_throughput", ratio, "of none's", GOAL, runs=plan.runs, peer=state),
        Row(f"{label}_throughput_cpu", round(statistics.median(cpus), 4), "of none's", runs=plan.runs),
        Row(f"{label}_throughput_left", share, "of texts", runs=plan.runs * each),
    ]
