"""Checks that early exits in shared batches change no other text's answer.

Models of several tasks share batches, and each text leaves before a layer that its id names. Its answer is
compared with the answer to that text alone.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np

from bench.cases.stages.home import LARGE, SHUFFLED, TaskHome
from bench.cases.stages.lab import Switched, opened
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.harness.report import Figure
from hmi.core import ModelId
from hmi.engine import TextRequest, TextResult
from hmi.execution.base import Hook
from hmi.execution.batch import BatchKey
from hmi.stages.base import Setting, StageBatch
from hmi.stages.early_exit.control import Begun
from hmi.stages.early_exit.costs import ExitCosts
from hmi.stages.early_exit.hook import AskedText, ExitHook
from hmi.stages.early_exit.state import AnsweredText, ModelState
from hmi.stages.planner import RoundRobin

TEXTS: Final = 12
"""Texts that each model is asked, in random order."""
TEXTS_A_CALL: Final = 16
TOLERANCE: Final = 1e-6
"""Largest difference between a score and the same text's alone: a head or a ramp of several texts may round
the last bit in another way (`bench.cases.serve.isolation`)."""
AT: Final = "@"

Decision = tuple[ModelId, str, int]
"""The model, the text, and the site at which the text leaves; the number of layers if it stays."""


class Unbounded(ModelState):
    """A state that lets every text leave that asks."""

    def leave(self, one: AnsweredText, ramp: int) -> bool:
        return True


class Forced(Switched):
    """A stage of exits whose gates are open by construction: a text whose id ends with `@2` leaves before
    layer 2, if its model has a ramp there. All else is the server's."""

    def __init__(self) -> None:
        super().__init__("forced-exit")
        self._states: dict[ModelId, ModelState] = {}
        self._measured: dict[tuple[BatchKey, int], ExitCosts] = {}

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        known = batch.key, batch.layers
        measured = self._measured.setdefault(known, ExitCosts(*known))
        asked = []
        for index, text in enumerate(batch.texts):
            thresholds = tuple(float(text.id.endswith(f"{AT}{site}")) for site in text.version.ramps)
            if any(thresholds):
                if text.model not in self._states:
                    self._states[text.model] = Unbounded(text, 0.99, measured)
                state = self._states[text.model]
                asked.append(
                    AskedText(index, text, state, Begun(thresholds, False, state.control.account.count))
                )
        return [ExitHook(batch, asked, measured)] if asked else []


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    yield from asyncio.run(_measured(plan, home, report))


async def _measured(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> list[Figure]:
    """Ask decisions at random, in calls of several, from several callers at once, and compare each answer
    with that of its own model and text, alone, at the same site."""
    models = {home.model(task, name): task for task in home.tasks for name in (LARGE, SHUFFLED)}
    answers, wrong, early, largest = 0, 0, 0, 0.0
    async with opened(plan, home, report, list(models)) as lab, lab.engine(RoundRobin([Forced()])) as engine:
        report.say(f"isolation: {len(models)} models alone at every decision, then in mixed batches")
        decisions = [
            (model, text, site)
            for model, task in models.items()
            for text in task.asked[:TEXTS]
            for site in (*lab.record(model).live.ramps, lab.depth(model))
        ]
        alone: dict[Decision, TextResult] = {}
        for i, decision in enumerate(decisions):
            (alone[decision],) = await engine.infer([_request(decision, f"alone-{i}")])

        async def caller(seed: int) -> None:
            nonlocal answers, wrong, early, largest
            draw, calls = np.random.default_rng(seed), 0
            while answers < plan.answers:
                some = [decisions[i] for i in draw.integers(0, len(decisions), TEXTS_A_CALL)]
                calls += 1
                requests = [_request(d, f"mixed-{seed}-{calls}-{i}") for i, d in enumerate(some)]
                for decision, result in zip(some, await engine.infer(requests), strict=True):
                    off = difference(decision, result, alone[decision])
                    largest = max(largest, off)
                    wrong += off > TOLERANCE
                    early += decision[2] < lab.depth(decision[0])
                answers += len(some)
                report.did(len(some))

        await asyncio.gather(*map(caller, range(max(1, plan.callers // TEXTS_A_CALL))))
    about = f"{len(models)} models of {len(home.tasks)} tasks"
    return [
        Figure("isolation_answers", answers, "answers", peer=about),
        Figure("isolation_left_early", round(early / answers, 4), "of texts", runs=answers),
        Figure("isolation_wrong", wrong, "answers", 0, False, answers),
        Figure("isolation_largest_difference", float(f"{largest:.2g}"), "of a score", TOLERANCE, False),
    ]


def difference(decision: Decision, result: TextResult, alone: TextResult) -> float:
    """The largest difference of a score to the answer alone. 1 for another model's or another site's answer,
    or another label."""
    assert result.scores is not None
    assert alone.scores is not None
    assert result.provenance is not None
    model, _, site = decision
    if result.model != model or result.provenance.layers != site or result.label != alone.label:
        return 1.0
    return max(abs(result.scores.get(label, 2.0) - score) for label, score in alone.scores.items())


def _request(decision: Decision, name: str) -> TextRequest:
    model, text, site = decision
    return TextRequest(model, text, scores=True, provenance=True, id=f"{name}{AT}{site}")
