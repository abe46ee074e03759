"""Cascades beside always asking the large level: accuracy on gold labels, latency, who is answered early."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from bench.cases.serve.plots import xy_svg
from bench.cases.stages.arrivals import poisson
from bench.cases.stages.exits import curve
from bench.cases.stages.home import INSIDE, LARGE, SMALL, TWO, Home
from bench.cases.stages.lab import Lab, opened, requests_of
from bench.cases.stages.live import Answered, closed, paced
from bench.cases.stages.plan import Plan, Report
from bench.cases.stages.records import Recording
from bench.cases.stages.streams import CAPACITY_TEXTS, pacing, seconds_of
from bench.cases.stages.tasks import TaskRows
from bench.harness.report import Row
from hmi.core import Cascade, ModelId
from hmi.engine import Engine, TextRequest
from hmi.model.calibration import Floats, probabilities
from hmi.stages import RoundRobin
from hmi.stages.cascade.dispatch import Dispatcher, share_large
from hmi.stages.cascade.ensemble import calibrated, combined, weight_of
from hmi.stages.cascade.report import CascadeReport

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
    warm: list[Answered] = field(default_factory=list)
    """To the texts by which the gate may open."""
    answers: list[Answered] = field(default_factory=list)
    """To the texts that are scored and timed."""
    cpu_s: float = 0.0
    """CPU seconds of this process for these."""
    report: CascadeReport | None = None


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
            for arm in arms.values():
                arm.report = lab.cascade(staged, arm.model)
        out = list(_figures(task.name, lab, arms, gold, plan))
        for name in names[1:]:
            out += await _levels(name, lab, plan, home, task, arms[name], report)
    _plot(plan, task.name, arms)
    return out


async def _ask(
    arms: Mapping[str, Arm], texts: Sequence[str], rate: float, plan: Plan, report: Report
) -> None:
    """Open the gates with the first texts, then let all arms answer the others, chunk by chunk in turn."""
    for name, arm in arms.items():
        if name != LARGE:
            first = requests_of(arm.model, texts[: plan.cascade_warm], name)
            arm.warm = (await closed(arm.engine, first, plan.callers)).answers
            report.did(plan.cascade_warm)
    large = arms[LARGE]
    await closed(large.engine, requests_of(large.model, texts[: plan.callers], LARGE), plan.callers)
    for number, at in enumerate(range(plan.cascade_warm, len(texts), plan.chunk)):
        some = texts[at : at + plan.chunk]
        arrivals = poisson(len(some), rate, number)
        order = list(arms.items())
        for name, arm in order if number % 2 else reversed(order):
            requests = requests_of(arm.model, some, name, at)
            asked = await paced(arm.engine, requests, arrivals)
            arm.answers += asked.answers
            arm.cpu_s += asked.cpu_s
            report.did(len(some))


def _figures(task: str, lab: Lab, arms: Mapping[str, Arm], gold: Sequence[str], plan: Plan) -> Iterator[Row]:
    """Each arm's accuracy, latency and share of early answers, beside the large level's."""
    large = arms[LARGE]
    right = {name: _right([a.label for a in arm.answers], gold) for name, arm in arms.items()}
    seconds = {name: seconds_of(arm.answers) for name, arm in arms.items()}
    yield Row(f"{task}_large_accuracy", round(float(right[LARGE].mean()), 4), "of texts", runs=len(gold))
    for name, arm in arms.items():
        if name == LARGE:
            continue
        label, mine, base = f"{task}_{name}", seconds[name], seconds[LARGE]
        layers = lab.depth(arm.model)
        early = np.array([answered_early(answer, layers) for answer in arm.answers])
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
        yield Row(f"{label}_cpu_change", round(arm.cpu_s / large.cpu_s - 1, 4), "of large's")
        share = round(float(early.mean()), 4)
        yield Row(
            f"{label}_answered_early",
            share,
            "of texts",
            RETURNED[0],
            runs=len(gold),
            peer=_state(arm, layers),
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


def _state(arm: Arm, layers: int) -> str:
    """The state of an arm's cascade at the end, and when it first answered early."""
    found, all_of = arm.report, [*arm.warm, *arm.answers]
    if found is None:
        return "no text was concerned"
    first = next((str(i) for i, one in enumerate(all_of) if answered_early(one, layers)), "none")
    dispatcher = "no offer" if found.cut_off is None else f"cut-off {found.cut_off:g}, slope {found.slope:g}"
    return (
        f"{found.state}: {dispatcher}; first at text {first}; {found.audited} audits of {found.texts} texts"
    )


async def _levels(
    name: str, lab: Lab, plan: Plan, home: Home, task: TaskRows, arm: Arm, report: Report
) -> list[Row]:
    """The accuracy of the dispatcher in use with and without the ensemble, over its draws, and the levels'
    gaps.

    In closed form from both levels' answers to the same texts: nothing is drawn.
    """
    record = lab.serving.manager.registry.model(arm.model)
    cascade, labels, found = record.cascade, record.live.labels, arm.report
    assert cascade is not None, "it was profiled"
    if found is None or found.cut_off is None or found.slope is None:
        why = "no dispatcher of the profile reaches the objective"
        return [Row(f"{task.name}_{name}_offer", None, "cut-off", why=why)]
    rows = task.stream[plan.cascade_warm : plan.cascade_warm + plan.golds]
    texts, stage = [str(row.text) for row in rows], Recording()
    async with lab.engine(RoundRobin([stage])) as engine:
        large = await _chances(engine, home.model(task), texts, labels, plan)
        if name == TWO:
            small = await _chances(engine, home.model(task, SMALL), texts, labels, plan)
        else:
            at = record.live.ramps.index(cascade.site or 0)
            ramps = [stage.found[f"chances-{i}"].outputs[at] for i in range(len(texts))]
            small = probabilities(np.array([ramp.double().numpy() for ramp in ramps]))
    report.did((1 + (name == TWO)) * len(rows))
    gold = np.array([labels.index(str(row.label)) for row in rows])
    dispatcher = Dispatcher(found.cut_off, found.slope)
    return list(closed_form(f"{task.name}_{name}", cascade, dispatcher, small, large, gold))


def closed_form(
    name: str, cascade: Cascade, dispatcher: Dispatcher, small: Floats, large: Floats, gold: NDArray[np.int64]
) -> Iterator[Row]:
    """Accuracies over the dispatcher's draws. small, large: [texts, labels], not calibrated."""
    first, last = calibrated(small, cascade.temperature), calibrated(large, cascade.large_temperature)
    p = share_large(first.max(-1), dispatcher)
    level = {"small": first.argmax(-1) == gold, "large": last.argmax(-1) == gold}
    weight = weight_of(level["small"], level["large"], p)
    mixed = combined(first, last, weight).argmax(-1) == gold
    about = f"cut-off {dispatcher.cut_off:g}, slope {dispatcher.slope:g}"
    with_, without = (float((p * on + (1 - p) * level["small"]).mean()) for on in (mixed, level["large"]))
    peer = f"{about}, weight {weight:.3f}"
    yield Row(f"{name}_ensemble_change", round(with_ - without, 4), "of texts", 0.003, True, len(gold), peer)
    gap = level["large"].astype(float) - level["small"]
    for part, weights, goal, at_least in (("returned", 1 - p, GAP_RETURNED, False), ("on", p, GAP_ON, True)):
        share = float(weights.sum())
        value = round(float(gap @ weights / share), 4) if share > 0 else None
        yield Row(f"{name}_levels_gap_{part}", value, "of texts", goal, at_least, round(share), about)
    small_, large_ = (round(float(level[one].mean()), 4) for one in ("small", "large"))
    yield Row(f"{name}_small_alone", small_, "of texts", peer=f"the large level {large_}")


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
