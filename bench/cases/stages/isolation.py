"""Tenants of several tasks in the same batches, each text leaving where it is told to, beside each alone."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.cases.stages.forced import Forced, id_of
from bench.cases.stages.home import LARGE, SHUFFLED, Home
from bench.cases.stages.lab import Lab, opened
from bench.cases.stages.plan import Plan, Report
from bench.harness.report import Row
from hmi.core import ModelId
from hmi.engine import Engine, TextRequest, TextResult
from hmi.stages import RoundRobin

TEXTS = 12
"""Texts that each model is asked, in random order."""
TEXTS_A_CALL = 16
SITES = 6
"""About the number of decisions that a text has, for the progress."""
TOLERANCE = 1e-6
"""Largest difference between a score and the same text's alone: a head or a ramp of several texts may round
the last bit in another way (`bench.cases.serve.isolation`)."""
APART = 10 * TOLERANCE

Decision = tuple[ModelId, str, int]
"""The model, the text, and the site at which the text leaves; the number of layers if it stays."""


@dataclass
class Checked:
    """The results of the checks."""

    answers: int = 0
    wrong: int = 0
    early: int = 0
    off: float = 0.0
    """The largest difference of a score to alone."""


def texts(plan: Plan) -> int:
    return plan.answers + len(plan.tasks) * 2 * TEXTS * SITES


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: Plan, home: Home, report: Report) -> list[Row]:
    models = {home.model(t, name): t for t in home.tasks for name in (LARGE, SHUFFLED)}
    async with opened(home.data, list(models)) as lab:
        report.say(f"isolation: {len(models)} models alone at every decision")
        decisions = [
            (model, str(row.text), site)
            for model, task in models.items()
            for row in task.stream[:TEXTS]
            for site in (*lab.serving.manager.registry.model(model).live.ramps, lab.depth(model))
        ]
        alone = await _alone(lab, decisions, report)
        report.say(f"isolation: {plan.answers} answers in mixed batches")
        async with lab.engine(RoundRobin([Forced()])) as engine:
            found = await _mixed(engine, plan, alone, report)
    about = f"{len(models)} models of {len(home.tasks)} tasks"
    return [
        Row("isolation_answers", found.answers, "answers", peer=about),
        Row("isolation_left_early", round(found.early / found.answers, 4), "of texts", runs=found.answers),
        Row("isolation_wrong", found.wrong, "answers", 0, False, found.answers),
        Row("isolation_largest_difference", float(f"{found.off:.2g}"), "of a score", TOLERANCE, False),
        Row("isolation_nearest_two_decisions", float(f"{_nearest(alone):.2g}"), "of a score", APART),
    ]  # fmt: skip


async def _alone(lab: Lab, decisions: list[Decision], report: Report) -> dict[Decision, TextResult]:
    """The answer of each decision, one text at a time."""
    found = {}
    async with lab.engine(RoundRobin([Forced()])) as engine:
        for i, decision in enumerate(decisions):
            (found[decision],) = await engine.infer([_request(decision, f"alone-{i}")])
            report.did(1)
    return found


async def _mixed(engine: Engine, plan: Plan, alone: dict[Decision, TextResult], report: Report) -> Checked:
    """Ask decisions at random, in calls of several, from several callers at once; check each answer."""
    decisions, found = list(alone), Checked()

    async def caller(seed: int) -> None:
        draw, calls = np.random.default_rng(seed), 0
        while found.answers < plan.answers:
            some = [decisions[i] for i in draw.integers(0, len(decisions), TEXTS_A_CALL)]
            calls += 1
            requests = [_request(d, f"mixed-{seed}-{calls}-{i}") for i, d in enumerate(some)]
            for decision, result in zip(some, await engine.infer(requests), strict=True):
                check(found, decision, result, alone[decision])
            report.did(len(some))

    async with asyncio.TaskGroup() as callers:
        for seed in range(max(1, plan.callers // TEXTS_A_CALL)):
            callers.create_task(caller(seed))
    return found


def check(found: Checked, decision: Decision, result: TextResult, alone: TextResult) -> None:
    """Count an answer, and whether it is that of its own model and text, alone, at the same decision."""
    assert result.scores is not None
    assert alone.scores is not None
    assert result.provenance is not None
    model, _, site = decision
    off = max(abs(result.scores.get(label, 2.0) - score) for label, score in alone.scores.items())
    right = result.model == model and result.provenance.layers == site and result.label == alone.label
    found.answers += 1
    found.early += result.provenance.confidence is not None
    found.off = max(found.off, off)
    found.wrong += not (right and off <= TOLERANCE)


def _request(decision: Decision, name: str) -> TextRequest:
    model, text, site = decision
    return TextRequest(model, text, scores=True, provenance=True, id=id_of(name, site))


def _nearest(alone: dict[Decision, TextResult]) -> float:
    """The least difference between a model's answers to one text at two decisions: if it is not far above
    the tolerance, the check could not tell them apart."""
    by_text: dict[tuple[ModelId, str], list[list[float]]] = {}
    for (model, text, _), result in alone.items():
        assert result.scores is not None
        by_text.setdefault((model, text), []).append(list(result.scores.values()))
    gaps = [
        np.abs(np.array(a) - np.array(b)).max()
        for each in by_text.values()
        for i, a in enumerate(each)
        for b in each[:i]
    ]
    return float(min(gaps, default=np.inf))
