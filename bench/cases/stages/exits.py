"""Early exits on streams of real texts: agreement, latency, and what static thresholds would have done."""

from __future__ import annotations

import asyncio
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

import numpy as np

from bench.cases.stages.arrivals import Seconds, poisson, read_trace, traced
from bench.cases.stages.home import SHUFFLED, TaskHome
from bench.cases.stages.lab import Answered, EngineLab, changes, in_order, opened, requests_of, seconds_of
from bench.cases.stages.plan import ProgressReport, StagesPlan
from bench.cases.stages.records import RampRecords, recorded
from bench.cases.stages.tasks import StageRows, drifted
from bench.harness.report import Figure
from hmi.core import ModelId
from hmi.stages.early_exit.report import ExitReport

AGREEMENT: Final = 0.99
"""The fraction of answers that must equal the full model's."""
GOALS: Final = {"p50": -0.14, "p95": 0.02}
"""Changes of the latency, as fractions (Apparate's on 6 layers)."""
SHUFFLED_GOAL: Final = 0.01
"""The most texts that may leave at ramps that were taught on shuffled answers, as a fraction."""
WINDOW: Final = 512
"""The first texts of a stream, by which static thresholds are tuned, at most."""
HARD: Final = 0.15
"""The part of the texts after a drift of which ramps are sure, and wrong."""
PACES: Final = ("poisson", "bursty")
"""The arrivals of the paced chunks, in turn, if there is a trace."""


@dataclass
class StreamedAnswers:
    """The answers of two arms to one stream."""

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


def measure(plan: StagesPlan, home: TaskHome, report: ProgressReport) -> Iterator[Figure]:
    for task in home.tasks:
        yield from asyncio.run(_task(plan, home, task, report))


async def _task(plan: StagesPlan, home: TaskHome, task: StageRows, report: ProgressReport) -> list[Figure]:
    model, shuffled, still = home.model(task), home.model(task, SHUFFLED), task.asked
    async with opened(plan, home, report, [model]) as lab:
        report.say(f"exits: {task.name}, records of every ramp")
        records = await recorded(lab, model, still)
        hard = np.flatnonzero(_misled(plan, records))
        misspelt = [drifted(text, i) for i, text in enumerate(still[plan.drift_at :])]
        moved = [*still[: plan.drift_at], *mixed(misspelt, [still[i] for i in hard])]
        known = {"stationary": records, "drift": await recorded(lab, model, moved)}
        rate, stamps = await lab.rate(model, still), read_trace(plan.traces)
        lab.agree(model, AGREEMENT)
        rows = [Figure(f"{task.name}_arrivals", round(rate, 1), "texts a second")]
        for name, texts in (("stationary", still), ("drift", moved)):
            report.say(f"exits: {task.name}, {name} stream of {len(texts)} texts")
            found = await _streamed(lab, model, texts, rate, stamps)
            rows += _figures(f"{task.name}_{name}", plan, found, known[name])
            rows += static(f"{task.name}_{name}", plan, known[name])
        report.say(f"exits: {task.name}, ramps taught on shuffled answers")
        lab.agree(shuffled, AGREEMENT)
        async with lab.pair() as (_, staged):
            asked = await lab.closed(staged, requests_of(shuffled, still, "shuffled"))
        share = np.mean([answer.layers < lab.depth(model) for answer in asked.answers])
    name, left = f"{task.name}_shuffled_ramps_left", round(float(share), 4)
    return [*rows, Figure(name, left, "of texts", SHUFFLED_GOAL, False, len(still))]


def mixed(texts: Sequence[str], hard: Sequence[str]) -> list[str]:
    """Put one of the hard texts in the place of a part of the texts, at random."""
    draw = random.Random(0)
    return [draw.choice(hard) if hard and draw.random() < HARD else text for text in texts]


def _misled(plan: StagesPlan, records: RampRecords) -> np.ndarray:
    """[texts]: those behind the window that static thresholds would let leave with another answer."""
    seen = min(WINDOW, plan.warm)
    return records.misled(seen, 1 - AGREEMENT) & (np.arange(len(records.labels)) >= seen)


def static(name: str, plan: StagesPlan, records: RampRecords) -> Iterator[Figure]:
    """The agreement that thresholds would have that were tuned on the window: on the rest of the stream, and
    from the drift on. No text is asked."""
    wrong, seen = _misled(plan, records), min(WINDOW, plan.warm)
    for part, since, goal in (("", seen, AGREEMENT), ("_after_drift", plan.drift_at, None)):
        if part == "" or name.endswith("drift"):
            agreement = round(1 - float(wrong[since:].mean()), 5)
            yield Figure(
                f"{name}_static_agreement{part}", agreement, "of answers", goal, runs=len(wrong) - since
            )


async def _streamed(
    lab: EngineLab, model: ModelId, texts: Sequence[str], rate: float, stamps: Seconds | None
) -> StreamedAnswers:
    """Ask a stream. The first `plan.warm` texts go to the arm with stages alone, as fast as it answers; of
    the others each chunk goes to both, with the same arrivals."""
    plan, found, requests = lab.plan, StreamedAnswers(), requests_of(model, texts, "stream")
    async with lab.pair() as (plain, staged):
        await lab.closed(plain, requests[: plan.callers])  # loads the model
        found.staged += (await lab.closed(staged, requests[: plan.warm])).answers
        for number, at in enumerate(range(plan.warm, len(texts), plan.chunk)):
            some = requests[at : at + plan.chunk]
            pace, arrivals = PACES[0], poisson(len(some), rate, number)
            if stamps is not None and number % 2:
                pace, arrivals = PACES[1], traced(stamps, len(some), rate, number)
            for name, engine in in_order({"plain": plain, "staged": staged}, number // 2):
                asked = await lab.paced(engine, some, arrivals)
                (found.plain if name == "plain" else found.staged).extend(asked.answers)
                found.cpu_s[name] += asked.cpu_s
            found.pace += [pace] * len(some)
        found.report = lab.exits(staged, model)
    return found


def _figures(name: str, plan: StagesPlan, found: StreamedAnswers, records: RampRecords) -> Iterator[Figure]:
    """Agreement with the full model over the whole stream, who left, and changes of latency and CPU."""
    texts, layers = len(found.staged), np.array([answer.layers for answer in found.staged])
    wrong = sum(a.label != full for a, full in zip(found.staged, records.labels, strict=True))
    about = f"{wrong} other answers"
    yield Figure(
        f"{name}_agreement", round(1 - wrong / texts, 5), "of answers", AGREEMENT, True, texts, about
    )
    plain = sum(a.label != full for a, full in zip(found.plain, records.labels[plan.warm :], strict=True))
    yield Figure(f"{name}_without_stages_unlike_recorded", plain, "answers", 0, False, len(found.plain))
    early = layers < records.layers
    if early.any():
        first = int(early.argmax())
        yield Figure(f"{name}_first_left", first, "text")
        yield Figure(f"{name}_left_since_first", round(float(early[first:].mean()), 4), "of texts")
    else:
        yield Figure(f"{name}_first_left", None, "text", why="no text left early")
    if found.report is not None:
        state = f"{found.report.state}, sites {list(found.report.sites)}, {found.report.alarms} alarms"
        yield Figure(f"{name}_audits", found.report.audits, "texts", peer=state)
    cpu = found.cpu_s["staged"] / found.cpu_s["plain"] - 1
    yield Figure(f"{name}_cpu_change", round(cpu, 4), "of none's", runs=len(found.plain))
    base, mine = seconds_of(found.plain), seconds_of(found.staged[plan.warm :])
    yield from changes(name, base, mine, GOALS if name.endswith("stationary") else {})
    for pace in PACES:
        if pace in found.pace:
            of = np.array(found.pace) == pace
            yield from changes(f"{name}_{pace}", base[of], mine[of], {})
