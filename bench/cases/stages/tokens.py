"""Token adaptation: the accuracy, the agreement with the full model and the CPU time of every γ, by task and
root."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field
from typing import Final

from bench.cases.stages.home import ADAPTED, SMALL_ADAPTED, TaskHome
from bench.cases.stages.lab import Answered, EngineLab, Switched, in_order, opened, requests_of
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.harness.report import Figure
from hmi.core import ModelId, ModelVersion, Objective
from hmi.execution.base import Hook
from hmi.stages.base import Effect, Setting, Shape, StageBatch
from hmi.stages.planner import RoundRobin
from hmi.stages.token_adaptation.allowed import allowed
from hmi.stages.token_adaptation.forced import forced_hooks
from hmi.stages.token_adaptation.settings import schedule

TEXTS: Final = 400
"""Texts of each task that are asked under each γ, at most."""
AGREEMENT: Final = 0.85
"""The fraction of answers that must equal the full model's under a γ that a model may use."""


class Adapted(Switched):
    """A stage that runs every text under one γ, whatever its model's profile allows."""

    def __init__(self, gamma: int) -> None:
        super().__init__("tokens")
        self._gamma = gamma

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        merging = self._gamma < 0
        return Effect(rows=schedule(self._gamma, shape.layers)) if merging else super().effect(setting, shape)

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        return forced_hooks(self._gamma, batch)


@dataclass
class GammaRun:
    """The answers under one γ, and the CPU time of each chunk of texts."""

    answers: list[Answered] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def same(self, labels: Sequence[str]) -> float:
        """The fraction of answers that equal these labels."""
        return statistics.mean(a.label == b for a, b in zip(self.answers, labels, strict=True))


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    for name in (ADAPTED, *([] if plan.small is None else [SMALL_ADAPTED])):
        yield from asyncio.run(_root(plan, home, name, report))


async def _root(plan: StagesPlan, home: TaskHome, name: str, report: ProgressReport) -> list[Figure]:
    models, rows = {home.model(task, name): task for task in home.tasks}, list[Figure]()
    async with opened(plan, home, report, list(models)) as lab:
        for model, task in models.items():
            version = lab.record(model).live
            report.say(f"tokens: {task.name} on {version.root}")
            some = task.stream[: min(plan.golds, TEXTS)]
            found = await _asked(lab, model, [str(row.text) for row in some])
            golds = [str(row.label) for row in some]
            rows += figures(f"{task.name}_{version.root}", version, found, golds)
    return rows


async def _asked(lab: EngineLab, model: ModelId, texts: Sequence[str]) -> dict[int, GammaRun]:
    """The answers by γ, of which γ = 0 comes first. Chunk by chunk each γ has its turn."""
    gammas = [point.gamma for point in lab.record(model).live.tokens]
    found = {gamma: GammaRun() for gamma in (0, *(g for g in gammas if g))}
    async with AsyncExitStack() as stack:
        engines = {
            gamma: await stack.enter_async_context(lab.engine(RoundRobin([Adapted(gamma)] if gamma else [])))
            for gamma in found
        }
        for number, at in enumerate(range(0, len(texts), lab.plan.chunk)):
            requests = requests_of(model, texts[at : at + lab.plan.chunk], "tokens", at)
            for gamma, engine in in_order(engines, number):
                asked = await lab.closed(engine, requests)
                found[gamma].answers += asked.answers
                found[gamma].cpu_s.append(asked.cpu_s)
    return found


def figures(
    name: str, version: ModelVersion, found: Mapping[int, GammaRun], golds: Sequence[str]
) -> Iterator[Figure]:
    """A γ that the model may use must agree, and merging must save time."""
    plain, count = found[0], len(golds)
    labels = [answer.label for answer in plain.answers]
    may = allowed(version, Objective(agreement_under_load=AGREEMENT))
    offered = "the profile offers " + (", ".join(map(str, may)) or "none")
    yield Figure(f"{name}_accuracy", round(plain.same(golds), 4), "of texts", runs=count, peer=offered)
    for gamma, one in found.items():
        if gamma:
            label = f"{name}_gamma_{gamma}"
            change = round(one.same(golds) - plain.same(golds), 4)
            yield Figure(f"{label}_accuracy_change", change, "of texts", runs=count)
            goal = AGREEMENT if gamma in may and gamma < 0 else None
            yield Figure(f"{label}_agreement", round(one.same(labels), 4), "of answers", goal, runs=count)
            ratios = [a / b for a, b in zip(one.cpu_s, plain.cpu_s, strict=True)]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            ratio, goal = round(statistics.median(ratios), 4), 1.0 if gamma < 0 else None
            yield Figure(f"{label}_cpu", ratio, "of γ = 0's", goal, False, len(ratios), spread)
