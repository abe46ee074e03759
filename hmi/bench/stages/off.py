"""All stages off: an engine that has them, and models without an objective, beside an engine without any."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence

from hmi.bench.report import Row
from hmi.bench.stages.home import Home
from hmi.bench.stages.lab import opened, requests_of
from hmi.bench.stages.live import closed
from hmi.bench.stages.plan import Plan, Report
from hmi.engine import Engine, TextRequest

ALONE = 50
"""Texts of each task that are asked alone, so that their bits depend on no batch."""
EACH = 100
"""Texts of each task in one timed repetition."""
CPU_GOAL = 1.01


def texts(plan: Plan) -> int:
    return len(plan.tasks) * (2 * min(ALONE, plan.texts) + 2 * min(EACH, plan.texts) * (plan.runs + 1))


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    report.say("off: engines with and without stages, no model has an objective")
    models = [home.model(task) for task in home.tasks]
    async with opened(home.data, models) as lab:
        for model in models:
            lab.agree(model, None)
        async with lab.without() as plain, lab.engine() as staged:
            alone = _requests(home, "alone", min(ALONE, plan.texts))
            differ = 0
            for request in alone:
                a, b = [await _bits(engine, request) for engine in (plain, staged)]
                differ += a != b
                report.did(2)
            requests, ratios = _requests(home, "off", EACH), []
            for i in range(-1, plan.runs):  # the first repetition warms up
                cpu = {}
                for engine in (plain, staged) if i % 2 else (staged, plain):
                    cpu[engine] = (await closed(engine, requests, plan.callers)).cpu_s
                    report.did(len(requests))
                ratios += [cpu[staged] / cpu[plain]] if i >= 0 else []
    median = round(statistics.median(ratios), 4)
    spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
    return [
        Row("off_answers_that_differ", differ, "answers", 0, False, len(alone), "bits of every score"),
        Row("off_cpu", median, "of none's", CPU_GOAL, False, plan.runs, spread),
    ]


def _requests(home: Home, name: str, count: int) -> list[TextRequest]:
    """The first texts of every task, in turn."""
    each = [
        requests_of(home.model(task), [str(row.text) for row in task.stream[:count]], f"{name}-{task.name}")
        for task in home.tasks
    ]
    return [request for together in zip(*each, strict=True) for request in together]


async def _bits(engine: Engine, request: TextRequest) -> Sequence[object]:
    (result,) = await engine.infer([TextRequest(request.model, request.text, scores=True, id=request.id)])
    return result.label, result.score, result.scores
