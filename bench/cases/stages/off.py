"""All stages off: an engine that has them, and models without an objective, beside an engine without any."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from bench.cases.stages.home import Home
from bench.cases.stages.lab import opened
from bench.cases.stages.live import closed
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.replays import in_turn
from bench.harness.report import Row
from hmi.engine import Engine, TextRequest

ALONE = 50
"""Texts of each task that are asked alone, so that their bits depend on no batch."""
EACH = 100
"""Texts of each task in one timed repetition."""
CPU_GOAL = 1.01


def texts(plan: Plan, engines: int = 2) -> int:
    return len(plan.tasks) * engines * (min(ALONE, plan.texts) + min(EACH, plan.texts) * (plan.runs + 1))


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    report.say("off: engines with and without stages, no model has an objective")
    models = [home.model(task) for task in home.tasks]
    async with opened(home.data, models) as lab:
        for model in models:
            lab.agree(model, None)
        async with lab.without() as plain, lab.engine() as staged:
            return [row async for row in beside("off", plain, {"": staged}, plan, home, report)]


async def beside(
    name: str, plain: Engine, others: Mapping[str, Engine], plan: Plan, home: Home, report: Report
) -> AsyncIterator[Row]:
    """Compare engines that should do the same as `plain`: the bits of answers, and CPU time under load.

    others: by what tells their rows apart.
    """
    alone = in_turn(home, min(ALONE, plan.texts), "alone")
    differ = dict.fromkeys(others, 0)
    for request in alone:
        bits = await _bits(plain, request)
        for other, engine in others.items():
            differ[other] += await _bits(engine, request) != bits
        report.did(1 + len(others))
    requests, engines = in_turn(home, EACH, "off"), [plain, *others.values()]
    ratios: dict[str, list[float]] = {other: [] for other in others}
    for i in range(-1, plan.runs):  # the first repetition warms up
        cpu = {}
        for engine in engines if i % 2 else reversed(engines):
            cpu[engine] = (await closed(engine, requests, plan.callers)).cpu_s
            report.did(len(requests))
        for other, engine in others.items():
            ratios[other] += [cpu[engine] / cpu[plain]] if i >= 0 else []
    for other, each in ratios.items():
        label, median = name + other, round(statistics.median(each), 4)
        spread = f"{min(each):.3f} to {max(each):.3f}"
        about = "bits of every score"
        yield Row(f"{label}_answers_that_differ", differ[other], "answers", 0, False, len(alone), about)
        yield Row(f"{label}_cpu", median, "of none's", CPU_GOAL, False, plan.runs, spread)


async def _bits(engine: Engine, request: TextRequest) -> Sequence[object]:
    (result,) = await engine.infer([TextRequest(request.model, request.text, scores=True, id=request.id)])
    return result.label, result.score, result.scores
