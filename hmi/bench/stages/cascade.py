"""Cascades beside always asking the large level: accuracy on gold labels, latency, who is answered early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from hmi.bench.report import Row
from hmi.bench.serve.plots import xy_svg
from hmi.bench.stages.arrivals import poisson
from hmi.bench.stages.exits import curve
from hmi.bench.stages.home import INSIDE, LARGE, SMALL, TWO, Home
from hmi.bench.stages.lab import Lab, opened, requests_of
from hmi.bench.stages.live import Answered, closed, paced
from hmi.bench.stages.plan import Plan, Report
from hmi.bench.stages.streams import CAPACITY_TEXTS, pacing, seconds_of
from hmi.bench.stages.tasks import TaskRows
from hmi.core import Cascade, ModelId
from hmi.engine import Engine, TextRequest
from hmi.model.calibration import Floats
from hmi.stages.cascade.dispatch import Dispatcher, share_large
from hmi.stages.cascade.ensemble import calibrated, combined
from hmi.stages.cascade.profiling import select

MEAN_GOAL, MEAN_STRETCH = -0.21, -0.40
LOSS_GOAL = -0.01
RETURNED = (0.49, 0.70)
GAP_RETURNED, GAP_ON = 0.01, 0.14


def texts(plan: Plan) -> int:
    arms = 2 + (plan.small is not None)
    each = 2 * CAPACITY_TEXTS + (arms - 1) * plan.cascade_warm + (arms + 2) * plan.golds
    return len(plan.tasks) * each


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    if plan.small is None:
        why = "no second root: name one with --small"
        yield Row("cascade_of_two_roots", None, "of large's", why=why)
    for task in home.tasks:
        yield from asyncio.run(_task(plan, home, task, report))


@dataclass
class Arm:
    """The answers and times of one arm."""

    model: ModelId
    engine: Engine
    answers: list[Answered] = field(default_factory=list)


async def _task(plan: Plan, home: Home, task: TaskRows, report: Report) -> list[Row]:
    names = [LARGE, INSIDE, *([TWO] if plan.small is not None else [])]
    models = {name: home.model(task, name) for name in names}
    opens = [models[LARGE], *([home.model(task, SMALL)] if plan.small is not None else [])]
    rows = task.stream[: plan.cascade_warm + plan.golds]
    asked, gold = [str(row.text) for row in rows], [str(row.label) for row in rows[plan.cascade_warm :]]
    async with opened(home.data, opens) as lab:
        for name, model in models.items():
            lab.agree(model, None if name == LARGE else plan.cascade_agreement)
        if plan.small is not None:
            lab.agree(home.model(task, SMALL), None)
        report.say(f"cascade: {task.name}")
        pace = await pacing(lab, models[LARGE], asked, plan, report)
        async with lab.without() as plain, lab.engine() as staged:
            arms = {name: Arm(m, plain if name == LARGE else staged) for name, m in models.items()}
            await _ask(arms, asked, pace.rate, plan, report)
            states = {name: lab.cascade(staged, model) for name, model in models.items() if name != LARGE}
        out = list(_figures(task.name, lab, arms, gold, states, plan))
        if plan.small is not None:
            out += await _ensemble(lab, plan, home, task, report)
    _plot(plan, task.name, arms)
    return out


async def _ask(
    arms: Mapping[str, Arm], texts: Sequence[str], rate: float, plan: Plan, report: Report
) -> None:
    """Open the gates with the first texts, then let all arms answer the others, chunk by chunk in turn."""
    for name, arm in arms.items():
        if name != LARGE:
            await closed(arm.engine, requests_of(arm.model, texts[: plan.cascade_warm], name), plan.callers)
            report.did(plan.cascade_warm)
    large = arms[LARGE]
    await closed(large.engine, requests_of(large.model, texts[: plan.callers], LARGE), plan.callers)
    for number, at in enumerate(range(plan.cascade_warm, len(texts), plan.chunk)):
        some = texts[at : at + plan.chunk]
        arrivals = poisson(len(some), rate, number)
        order = list(arms.items())
        for name, arm in order if number % 2 else reversed(order):
            requests = requests_of(arm.model, some, name, at)
            arm.answers += (await paced(arm.engine, requests, arrivals)).answers
            report.did(len(some))


def _figures(
    task: str,
    lab: Lab,
    arms: Mapping[str, Arm],
    gold: Sequence[str],
    states: Mapping[str, str | None],
    plan: Plan,
) -> Iterator[Row]:
    """Each arm's accuracy, latency and share of early answers, beside the large level's."""
    large = arms[LARGE]
    right = {name: _right([a.label for a in arm.answers], gold) for name, arm in arms.items()}
    seconds = {name: seconds_of(arm.answers) for name, arm in arms.items()}
    yield Row(f"{task}_large_accuracy", round(float(right[LARGE].mean()), 4), "of texts", runs=len(gold))
    for name, arm in arms.items():
        if name == LARGE:
            continue
        label, mine, base = f"{task}_{name}", seconds[name], seconds[LARGE]
        early = np.array([answered_early(answer, lab.depth(arm.model)) for answer in arm.answers])
        loss = float(right[name].mean() - right[LARGE].mean())
        same = float(np.mean([a.label == b.label for a, b in zip(arm.answers, large.answers, strict=True)]))
        yield Row(f"{label}_accuracy_change", round(loss, 4), "of texts", LOSS_GOAL, runs=len(gold))
        yield Row(f"{label}_agreement", round(same, 4), "of answers", plan.cascade_agreement, runs=len(gold))
        about = f"{1e3 * base.mean():.1f} -> {1e3 * mine.mean():.1f} ms"
        change = round(float(mine.mean() / base.mean() - 1), 4)
        yield Row(
            f"{label}_mean_change",
            change,
            "of large's",
            MEAN_GOAL,
            False,
            len(gold),
            about,
            None,
            MEAN_STRETCH,
        )
        for part in (50, 95):
            a, b = (float(np.percentile(s, part)) for s in (base, mine))
            about = f"{1e3 * a:.1f} -> {1e3 * b:.1f} ms"
            yield Row(f"{label}_p{part}_change", round(b / a - 1, 4), "of large's", peer=about)
        share = round(float(early.mean()), 4)
        yield Row(
            f"{label}_answered_early", share, "of texts", RETURNED[0], runs=len(gold), peer=states[name]
        )
        if early.any():
            gap = float((right[LARGE].astype(float) - right[name])[early].mean())
            yield Row(
                f"{label}_gap_on_returned", round(gap, 4), "of texts", GAP_RETURNED, False, int(early.sum())
            )


def answered_early(answer: Answered, layers: int) -> bool:
    """True if the small level answered: another model, or a ramp of the same one."""
    made_by = answer.result.provenance
    assert made_by is not None
    return made_by.level == "small" or (made_by.level is None and made_by.layers < layers)


async def _ensemble(lab: Lab, plan: Plan, home: Home, task: TaskRows, report: Report) -> Iterator[Row]:
    """The chosen dispatcher's accuracy with and without the ensemble, over its draws, and the levels' gaps.

    In closed form from both levels' answers to the same texts: nothing is drawn.
    """
    two = home.model(task, TWO)
    cascade = lab.serving.manager.registry.model(two).cascade
    assert cascade is not None, "it was profiled"
    rows = task.stream[plan.cascade_warm : plan.cascade_warm + plan.golds]
    labels = lab.serving.manager.registry.model(two).live.labels
    async with lab.without() as engine:
        small, large = [
            await _chances(engine, home.model(task, name), [str(row.text) for row in rows], labels, plan)
            for name in (SMALL, LARGE)
        ]
    report.did(2 * len(rows))
    gold = np.array([labels.index(str(row.label)) for row in rows])
    return closed_form(f"{task.name}_{TWO}", cascade, small, large, gold, plan)


def closed_form(
    name: str, cascade: Cascade, small: Floats, large: Floats, gold: NDArray[np.int64], plan: Plan
) -> Iterator[Row]:
    """Accuracies over the draws of the offer that the objective selects. small, large: [texts, labels], not
    calibrated."""
    offer = select(cascade.offers, plan.cascade_agreement)
    if offer is None:
        yield Row(f"{name}_offer", None, "cut-off", why="no dispatcher of the profile reaches the objective")
        return
    first, last = calibrated(small, cascade.temperature), calibrated(large, cascade.large_temperature)
    p = share_large(first.max(-1), Dispatcher(offer.cut_off, offer.slope))
    level = {"small": first.argmax(-1) == gold, "large": last.argmax(-1) == gold}
    weight = float(level["large"] @ p / max(1e-9, (level["large"] + level["small"].astype(float)) @ p))
    mixed = combined(first, last, weight).argmax(-1) == gold
    about = f"cut-off {offer.cut_off:g}, slope {offer.slope:g}, weight {weight:.3f}"
    with_, without = (float((p * on + (1 - p) * level["small"]).mean()) for on in (mixed, level["large"]))
    yield Row(f"{name}_ensemble_change", round(with_ - without, 4), "of texts", 0.003, True, len(gold), about)
    gap = level["large"].astype(float) - level["small"]
    for part, weights, goal, at_least in (("returned", 1 - p, GAP_RETURNED, False), ("on", p, GAP_ON, True)):
        share = float(weights.sum())
        value = round(float(gap @ weights / share), 4) if share > 0 else None
        yield Row(f"{name}_levels_gap_{part}", value, "of texts", goal, at_least, round(share), about)


async def _chances(
    engine: Engine, model: ModelId, texts: Sequence[str], labels: Sequence[str], plan: Plan
) -> Floats:
    """[texts, labels]: a model's probabilities."""
    requests = [
        TextRequest(r.model, r.text, scores=True, provenance=True, id=r.id)
        for r in requests_of(model, texts, "chances")
    ]
    found = [answer.result.scores for answer in (await closed(engine, requests, plan.callers)).answers]
    return np.array([[scores[label] for label in labels] for scores in found if scores is not None])


def _right(labels: Sequence[str], gold: Sequence[str]) -> NDArray[np.bool_]:
    return np.array([a == b for a, b in zip(labels, gold, strict=True)])


def _plot(plan: Plan, task: str, arms: Mapping[str, Arm]) -> None:
    if plan.plots is not None:
        lines = {name: curve(seconds_of(arm.answers)) for name, arm in arms.items()}
        svg = xy_svg(f"{task}: from arrival to answer", "ms", "fraction of texts", lines)
        (plan.plots / f"cascade-{task}.svg").write_text(svg)
