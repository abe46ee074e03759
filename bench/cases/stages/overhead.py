"""The cost of stages that are not used: servers with `--stages none` and `auto`, and no objective."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

from bench.cases.stages import off
from bench.cases.stages.home import Home
from bench.cases.stages.lab import opened
from bench.cases.stages.plan import Plan, Report
from bench.harness.report import Row

STAGES = ("none", "auto")


def texts(plan: Plan) -> int:
    return off.texts(plan, 1 + len(STAGES))


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    """An engine whose planner takes turns and has no stages, beside the servers'. Their folders are empty, so
    they find no profile of settings."""
    report.say("overhead: an engine without stages beside servers whose stages are none, and auto")
    models = [home.model(task) for task in home.tasks]
    async with opened(home.data, models) as lab:
        for model in models:
            lab.agree(model, None)
        with TemporaryDirectory(prefix="hmi-bench-stages-") as folder:
            none, auto = (Path(folder) / stages for stages in STAGES)
            async with lab.without() as plain, lab.served("none", none) as a, lab.served("auto", auto) as b:
                others = {"_none": a, "_auto": b}
                return [row async for row in off.beside("overhead", plain, others, plan, home, report)]
