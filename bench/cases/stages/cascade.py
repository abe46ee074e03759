"""Cascades beside always asking the large level: accuracy on gold labels, latency, who is answered early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.cases.stages.arrivals import poisson
from bench.cases.stages.home import INSIDE, LARGE, SMALL, TWO, TaskHome
from bench.cases.stages.lab import Answered, EngineLab, changes, in_order, opened, requests_of, seconds_of
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.cases.stages.tasks import StageRows
from bench.harness.report import Figure
from hmi.core import ModelId
from hmi.engine import Engine
from hmi.stages.cascade.report import CascadeReport

AGREEMENT: Final = 0.95
"""The fraction of answers that must equal the large level's."""
MEAN_GOAL, LOSS_GOAL, RETURNED_GOAL = -0.21, -0.01, 0.49


@dataclass
class CascadeArm:
    """The answers and times of one arm."""

    model: ModelId
    engine: Engine
    warm: list[Answered] = field(default_factory=list)
    """To the texts by which the gate may open."""
    answers: list[Answered] = field(default_factory=list)
    """To the texts that are scored and timed."""
    cpu_s: float = 0.0
    """CPU seconds of this process for these."""
    report: CascadeReport | None = None

    def right(self, gold: Sequence[str]) -> NDArray[np.bool_]:
        """[texts]: whether the answer is the gold label."""
        return np.array([answer.label == label for answer, label in zip(self.answers, gold, strict=True)])


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    if plan.small is None:
        why = "no second root: name one with --small"
        yield Figure("cascade_of_two_roots", None, "of large's", why=why)
    for task in home.tasks:
        yield from asyncio.run(_task(plan, home, task, report))


async def _task(plan: StagesPlan, home: TaskHome, task: StageRows, report: ProgressReport) -> list[Figure]:
    two = plan.small is not None
    models = {name: home.model(task, name) for name in (LARGE, INSIDE, *([TWO] if two else []))}
    opens = [home.model(task, name) for name in (LARGE, *([SMALL] if two else []))]
    gold = [str(row.label) for row in task.stream[plan.cascade_warm :][: plan.golds]]
    async with opened(plan, home, report, opens) as lab:
        for name, model in models.items():
            lab.agree(model, None if name == LARGE else AGREEMENT)
        report.say(f"cascade: {task.name}")
        async with lab.pair() as (plain, staged):
            arms = {name: CascadeArm(m, plain if name == LARGE else staged) for name, m in models.items()}
            await _ask(lab, arms, task.asked[: plan.cascade_warm + plan.golds])
            for arm in arms.values():
                record = lab.record(arm.model)
                small = "" if record.cascade is None else record.cascade.small_artefact or ""
                agreement = record.objective.agreement
                arm.report = staged.cascade_report(arm.model, record.live.artefact, small, agreement)
        return list(_figures(task.name, lab.depth(models[LARGE]), arms, gold))


async def _ask(lab: EngineLab, arms: Mapping[str, CascadeArm], texts: Sequence[str]) -> None:
    """Open the gates with the first texts, then let all arms answer the others, chunk by chunk in turn."""
    plan, large = lab.plan, arms[LARGE]
    rate = await lab.rate(large.model, texts)
    for name, arm in arms.items():
        first = texts[: plan.callers if name == LARGE else plan.cascade_warm]
        arm.warm = (await lab.closed(arm.engine, requests_of(arm.model, first, name))).answers
    for number, at in enumerate(range(plan.cascade_warm, len(texts), plan.chunk)):
        some = texts[at : at + plan.chunk]
        for name, arm in in_order(arms, number):
            requests = requests_of(arm.model, some, name, at)
            asked = await lab.paced(arm.engine, requests, poisson(len(some), rate, number))
            arm.answers += asked.answers
            arm.cpu_s += asked.cpu_s


def _figures(task: str, layers: int, arms: Mapping[str, CascadeArm], gold: Sequence[str]) -> Iterator[Figure]:
    """Each arm's accuracy, latency and share of early answers, beside the large level's."""
    large, count = arms[LARGE], len(gold)
    full = large.right(gold)
    yield Figure(f"{task}_large_accuracy", round(float(full.mean()), 4), "of texts", runs=count)
    for name, arm in arms.items():
        if name == LARGE:
            continue
        label, right = f"{task}_{name}", arm.right(gold)
        loss = round(float(right.mean() - full.mean()), 4)
        yield Figure(f"{label}_accuracy_change", loss, "of texts", LOSS_GOAL, runs=count)
        same = np.mean([a.label == b.label for a, b in zip(arm.answers, large.answers, strict=True)])
        yield Figure(f"{label}_agreement", round(float(same), 4), "of answers", AGREEMENT, runs=count)
        yield from changes(label, seconds_of(large.answers), seconds_of(arm.answers), {"mean": MEAN_GOAL})
        yield Figure(f"{label}_cpu_change", round(arm.cpu_s / large.cpu_s - 1, 4), "of large's")
        early = np.array([_early(answer, layers) for answer in arm.answers])
        share, state = round(float(early.mean()), 4), _state(arm, layers)
        yield Figure(f"{label}_answered_early", share, "of texts", RETURNED_GOAL, runs=count, peer=state)


def _early(answer: Answered, layers: int) -> bool:
    """True if the small level answered: another model, or a ramp of the same one."""
    return answer.level == "small" or (answer.level is None and answer.layers < layers)


def _state(arm: CascadeArm, layers: int) -> str:
    """The state of an arm's cascade at the end, and when it first answered early."""
    found, answers = arm.report, [*arm.warm, *arm.answers]
    if found is None:
        return "no text was concerned"
    first = next((str(i) for i, answer in enumerate(answers) if _early(answer, layers)), "none")
    offer = "no offer" if found.cut_off is None else f"cut-off {found.cut_off:g}, slope {found.slope:g}"
    return f"{found.state}: {offer}; first at text {first}; {found.audited} audits of {found.texts} texts"
