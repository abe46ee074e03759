"""The cost of stages that are not used: servers with `--stages none` and `auto`, and no objective."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from bench.cases.stages.home import TaskHome
from bench.cases.stages.lab import in_order, opened
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.harness.report import Figure
from hmi.engine import Engine, TextRequest
from hmi.stages.planner import RoundRobin

ALONE: Final = 50
"""Texts of each task that are asked alone, so that their bits depend on no batch."""
EACH: Final = 100
"""Texts of each task in one timed repetition."""
CPU_GOAL: Final = 1.01


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> list[Figure]:
    """Compare engines that should do the same: the bits of answers, and CPU time under load.

    The servers' folders are empty, so they find no profile of settings.
    """
    report.say("overhead: an engine without stages beside servers whose stages are none, and auto")
    differ, ratios = {"none": 0, "auto": 0}, dict[str, list[float]](none=[], auto=[])
    models = [home.model(task) for task in home.tasks]
    with TemporaryDirectory(prefix="hmi-bench-stages-") as kept:
        async with (
            opened(plan, home, report, models) as lab,
            lab.engine(RoundRobin()) as plain,
            lab.engine(stages="none", data=Path(kept) / "none") as none,
            lab.engine(stages="auto", data=Path(kept) / "auto") as auto,
        ):
            engines = {"plain": plain, "none": none, "auto": auto}
            alone, together = lab.in_turn(min(ALONE, plan.texts), "alone"), lab.in_turn(EACH, "off")
            for request in alone:
                bits = {name: await _bits(engine, request) for name, engine in engines.items()}
                for name in differ:
                    differ[name] += bits[name] != bits["plain"]
            for i in range(-1, plan.runs):  # the first repetition warms up
                arms = in_order(engines, i)
                cpu = {name: (await lab.closed(engine, together)).cpu_s for name, engine in arms}
                for name, each in ratios.items():
                    each += [cpu[name] / cpu["plain"]] if i >= 0 else []
    rows = []
    for name, each in ratios.items():
        label, median = f"overhead_{name}", round(statistics.median(each), 4)
        about, spread = "bits of every score", f"{min(each):.3f} to {max(each):.3f}"
        rows += [
            Figure(f"{label}_answers_that_differ", differ[name], "answers", 0, False, len(alone), about),
            Figure(f"{label}_cpu", median, "of none's", CPU_GOAL, False, plan.runs, spread),
        ]
    return rows


async def _bits(engine: Engine, request: TextRequest) -> Sequence[object]:
    (result,) = await engine.infer([TextRequest(request.model, request.text, scores=True, id=request.id)])
    return result.label, result.score, result.scores
