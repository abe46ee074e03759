"""Token adaptation: the accuracy, the agreement with the full model and the CPU time of every γ, by task and
root."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, field

from bench.cases.serve.plots import xy_svg
from bench.cases.stages.home import ADAPTED, SMALL_ADAPTED, Home
from bench.cases.stages.lab import Lab, opened, requests_of
from bench.cases.stages.live import Answered, closed
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.tasks import TaskRows
from bench.harness.report import Row
from hmi.core import ModelId, ModelVersion, Objective
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages import OFF, Batch, Effect, RoundRobin, Setting, Shape
from hmi.stages.token_adaptation.allowed import allowed
from hmi.stages.token_adaptation.forced import forced_hooks
from hmi.stages.token_adaptation.settings import schedule

TEXTS = 400
"""Texts of each task that are asked under each γ, at most."""
GAMMAS = 6
"""About the number of γ of a profile, for the progress."""


def texts(plan: Plan) -> int:
    return len(_names(plan)) * len(plan.tasks) * GAMMAS * _count(plan)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    for name in _names(plan):
        yield from asyncio.run(_root(plan, home, name, report))


def _names(plan: Plan) -> list[str]:
    return [ADAPTED, *([] if plan.small is None else [SMALL_ADAPTED])]


def _count(plan: Plan) -> int:
    return min(plan.golds, TEXTS)


class Adapted:
    """A stage that runs every text under one γ, whatever its model's profile allows."""

    name = "tokens"

    def __init__(self, gamma: int) -> None:
        self._gamma, self._setting = gamma, Setting(f"gamma {gamma}")

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, self._setting)

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        rows = schedule(self._gamma, shape.layers) if self._gamma < 0 else (1.0,) * shape.layers
        return Effect(rows=rows)

    def hooks(self, setting: Setting, batch: Batch) -> Sequence[Hook]:
        return forced_hooks(self._gamma, batch)


@dataclass
class Found:
    """The answers under one γ, and the CPU time of each chunk of texts."""

    answers: list[Answered] = field(default_factory=list)
    cpu_s: list[float] = field(default_factory=list)

    def same(self, labels: Sequence[str]) -> float:
        """The fraction of answers that equal these labels."""
        return statistics.mean(a.label == b for a, b in zip(self.answers, labels, strict=True))


async def _root(plan: Plan, home: Home, name: str, report: Report) -> list[Row]:
    models, rows = {home.model(task, name): task for task in home.tasks}, list[Row]()
    lines: dict[str, list[tuple[float, float]]] = {}
    async with opened(home.data, list(models)) as lab:
        for model, task in models.items():
            version = lab.serving.manager.registry.model(model).live
            root = version.root
            report.say(f"tokens: {task.name} on {root}")
            found = await _asked(lab, model, task, [point.gamma for point in version.tokens], plan, report)
            rows += figures(f"{task.name}_{root}", plan, version, found, _golds(task, plan))
            each = [(g, f) for g, f in sorted(found.items()) if f.answers]
            lines[task.name] = [
                (1e3 * sum(f.cpu_s) / len(f.answers), f.same(_golds(task, plan))) for _, f in each
            ]
    if plan.plots is not None:
        title = f"{root}: accuracy by CPU time, a point for each γ"
        (plan.plots / f"tokens-{root}.svg").write_text(xy_svg(title, "ms a text", "accuracy", lines))
    return rows


def _golds(task: TaskRows, plan: Plan) -> list[str]:
    return [str(row.label) for row in task.stream[: _count(plan)]]


async def _asked(
    lab: Lab, model: ModelId, task: TaskRows, gammas: Sequence[int], plan: Plan, report: Report
) -> dict[int, Found]:
    """The answers by γ, of which γ = 0 comes first. Chunk by chunk each γ has its turn."""
    lab.agree(model, None)
    found = {gamma: Found() for gamma in (0, *(g for g in gammas if g))}
    texts = [str(row.text) for row in task.stream[: _count(plan)]]
    async with AsyncExitStack() as stack:
        engines = {
            gamma: await stack.enter_async_context(lab.engine(RoundRobin([Adapted(gamma)] if gamma else [])))
            for gamma in found
        }
        for number, at in enumerate(range(0, len(texts), plan.chunk)):
            requests = requests_of(model, texts[at : at + plan.chunk], "tokens", at)
            for gamma, engine in engines.items() if number % 2 else reversed(engines.items()):
                asked = await closed(engine, requests, plan.callers)
                found[gamma].answers += asked.answers
                found[gamma].cpu_s.append(asked.cpu_s)
                report.did(len(requests))
    return found


def figures(
    name: str, plan: Plan, version: ModelVersion, found: Mapping[int, Found], golds: Sequence[str]
) -> Iterator[Row]:
    """A γ that the model may use must agree, and merging must save time."""
    plain = found[0]
    count, labels = len(golds), [answer.label for answer in plain.answers]
    may = allowed(version, Objective(agreement_under_load=plan.agreement_under_load))
    offered = "the profile offers " + (", ".join(map(str, may)) or "none")
    yield Row(f"{name}_accuracy", round(plain.same(golds), 4), "of texts", runs=count, peer=offered)
    for gamma, one in found.items():
        if gamma:
            label = f"{name}_gamma_{gamma}"
            change = round(one.same(golds) - plain.same(golds), 4)
            yield Row(f"{label}_accuracy_change", change, "of texts", runs=count)
            goal = plan.agreement_under_load if gamma in may and gamma < 0 else None
            yield Row(f"{label}_agreement", round(one.same(labels), 4), "of answers", goal, runs=count)
            ratios = [a / b for a, b in zip(one.cpu_s, plain.cpu_s, strict=True)]
            spread = f"{min(ratios):.3f} to {max(ratios):.3f}"
            ratio, goal = round(statistics.median(ratios), 4), 1.0 if gamma < 0 else None
            yield Row(f"{label}_cpu", ratio, "of γ = 0's", goal, False, len(ratios), spread)
