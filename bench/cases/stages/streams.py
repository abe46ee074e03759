"""One stream of texts through two engines: one without stages and one with, chunk by chunk in turn."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from bench.cases.stages.arrivals import Seconds, poisson, read_trace, traced
from bench.cases.stages.lab import Lab, requests_of
from bench.cases.stages.live import Answered, Asked, closed, paced
from bench.cases.stages.plan import Plan, Report
from hmi.core import ModelId
from hmi.engine import Engine
from hmi.stages.early_exit.report import ExitReport

PACES = ("poisson", "bursty")
"""The arrivals of the paced chunks, in turn."""
CAPACITY_TEXTS = 300
"""The texts by which the engine's capacity is measured."""


@dataclass
class Streamed:
    """The answers of two arms to one stream."""

    warm: int
    """The texts before the first paced one, which only the arm with stages was asked."""
    staged: list[Answered] = field(default_factory=list)
    """The whole stream."""
    plain: list[Answered] = field(default_factory=list)
    """The paced texts."""
    pace: list[str] = field(default_factory=list)
    """[paced texts]: which of PACES."""
    cpu_s: dict[str, float] = field(default_factory=lambda: {"plain": 0.0, "staged": 0.0})
    """CPU seconds of the paced texts."""
    report: ExitReport | None = None
    """The stage's report at the end; None if the stage is off."""


@dataclass(frozen=True)
class Pacing:
    """The process by which texts arrive."""

    rate: float
    """Texts a second."""
    stamps: Seconds | None
    """Of a trace; None: all arrivals are Poisson's."""

    def chunk(self, number: int, texts: int) -> tuple[str, Seconds]:
        """The kind and the times of a chunk's arrivals, which follow from its number."""
        kind = PACES[number % 2] if self.stamps is not None else PACES[0]
        if kind == "poisson" or self.stamps is None:
            return kind, poisson(texts, self.rate, number)
        return kind, traced(self.stamps, texts, self.rate, number)


async def pacing(lab: Lab, model: ModelId, texts: Sequence[str], plan: Plan, report: Report) -> Pacing:
    """Measure how many texts a second the engine answers without stages, and take the plan's part of it."""
    some = texts[:CAPACITY_TEXTS]
    async with lab.without() as engine:
        asked = [await closed(engine, requests_of(model, some, "capacity"), plan.callers) for _ in range(2)][
            1
        ]
    report.did(2 * len(some))
    stamps = None if plan.traces is None else read_trace(plan.traces)
    return Pacing(plan.load * len(some) / asked.seconds, stamps)


async def streamed(
    lab: Lab, model: ModelId, texts: Sequence[str], pace: Pacing, plan: Plan, report: Report
) -> Streamed:
    """Ask a stream. The first `plan.warm` texts go to the arm with stages alone, as fast as it answers; of
    the others each chunk goes to both, with the same arrivals."""
    found = Streamed(plan.warm)
    async with lab.without() as plain, lab.engine() as staged:
        requests = requests_of(model, texts, "stream")
        await closed(plain, requests[: plan.callers], plan.callers)  # loads the model
        for at in range(0, plan.warm, plan.chunk):
            some = requests[at : min(at + plan.chunk, plan.warm)]
            found.staged += (await closed(staged, some, plan.callers)).answers
            report.did(len(some))
        for number, at in enumerate(range(plan.warm, len(texts), plan.chunk)):
            some = requests[at : at + plan.chunk]
            kind, arrivals = pace.chunk(number, len(some))
            arms: list[tuple[str, Engine]] = [("plain", plain), ("staged", staged)]
            for name, engine in arms if number // 2 % 2 else reversed(arms):
                asked = await paced(engine, some, arrivals)
                (found.plain if name == "plain" else found.staged).extend(asked.answers)
                found.cpu_s[name] += asked.cpu_s
                report.did(len(some))
            found.pace += [kind] * len(some)
        found.report = lab.exits(staged, model)
    return found


def seconds_of(answers: Sequence[Answered]) -> Seconds:
    """[texts]: from arrival to answer."""
    return np.array([answer.seconds for answer in answers])


def rate_of(asked: Asked) -> float:
    """Answers a second."""
    return len(asked.answers) / asked.seconds
