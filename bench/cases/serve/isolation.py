"""Answers under churn. Each is checked against its own model's answer, computed alone; the goal is none
wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from bench.cases.serve.alone import Alone, alone
from bench.cases.serve.churn import VARIANTS, Churn
from bench.cases.serve.engine import Serving, serving
from bench.cases.serve.home import ROOT, Home
from bench.cases.serve.plan import Plan, Report
from bench.cases.serve.tenants import LABELS, Ground, Model, mixed_spec, publish_at_once, put_model
from bench.harness.report import Row
from hmi.core import ModelVersion
from hmi.engine import TextRequest, TextResult
from hmi.engine.bundles import Bundles
from hmi.errors import HmiError, NotFound

POOL = 48 << 20
"""A pool that holds about a third of the models, so that modules are evicted all the time."""
TOKENS = (6, 10, 14)
TEXTS_EACH = 8
"""Texts of each length that each model is asked."""
CALLERS, TEXTS_A_CALL = 8, 32
MODELS_A_CALL = (1, 4, 16)
"""The possible numbers of models in a call. Each call draws one of them."""
PARTS = 20
"""The number of progress reports in a run."""
ALONE_TOLERANCE = 1e-6
"""Largest difference between a score and the same executor's score for the text alone.

On the CPU, compiled layers give the same bits in every batch. A head of several texts may round the last one
in another way. Packed torch and devices do not give the same bits.
"""
TOLERANCE = {"fp32": 1e-4, "bf16": 0.05, "int8": 0.1}
"""Largest difference between a score and that of packed torch in fp32, by the executor's precision."""


@dataclass
class Checked:
    """The results of the checks."""

    answers: int = 0
    wrong: int = 0
    off: float = 0.0
    """The largest difference of a score to alone."""
    gone: int = 0
    """Calls to a model that was deleted at that time."""
    errors: Counter[str] = field(default_factory=Counter)
    """Other errors, by their text."""


@dataclass(frozen=True)
class Result:
    """The result of a run: wrong answers, errors, and counts of what was checked and changed."""

    reference: Alone
    checked: Checked
    changes: Counter[str]
    loads: int
    evictions: int
    held: float
    """Models in the pool at the end, as a fraction of the models."""
    cpu_s: float
    """CPU seconds of this process while it asked."""


def steps(plan: Plan) -> int:
    return 2 + PARTS


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield the number of wrong answers, and figures that show that the check would have found one."""
    found = asyncio.run(checked(plan, home, report))
    reference, seen = found.reference, found.checked
    precision = reference.name.rpartition(" ")[2]
    yield Row("answers_checked", seen.answers, "answers", peer=reference.name)
    yield Row("answers_wrong", seen.wrong, "answers", 0, False, seen.answers)
    off = float(f"{seen.off:.2g}")
    yield Row("largest_difference_to_alone", off, "of a score", ALONE_TOLERANCE, False, seen.answers)
    yield Row("calls_to_deleted_models", seen.gone, "calls")
    why = "; ".join(seen.errors) or None
    yield Row("calls_with_other_errors", seen.errors.total(), "calls", 0, False, why=why)
    for name, count in sorted(found.changes.items()):
        yield Row("changes_" + name.replace(" ", "_"), count, "changes")
    yield Row("evictions_under_churn", found.evictions, "evictions")
    for name, amount, unit in (
        ("loads", found.loads, "loads"),
        ("evictions", found.evictions, "evictions"),
        ("cpu", 1e3 * found.cpu_s, "ms"),
    ):
        yield Row(f"{name}_an_answer", round(amount / seen.answers, 4), unit, runs=seen.answers)
    yield Row("models_in_the_pool", round(found.held, 3), "of all", runs=plan.mixed)
    yield Row(
        "alone_beside_fp32_reference",
        float(f"{reference.difference:.2g}"),
        "of a score",
        TOLERANCE.get(precision, TOLERANCE["fp32"]),
        False,
        reference.executor[..., 0].size,
        "packed torch in fp32",
    )
    for name, least in (("models", reference.nearest()), ("texts", reference.nearest_texts())):
        yield Row(f"nearest_two_{name}", float(f"{least:.2g}"), "of a score", 10 * ALONE_TOLERANCE)


async def checked(
    plan: Plan, home: Home, report: Report, bundles_of: Callable[..., Bundles] = Bundles, pool: int = POOL
) -> Result:
    """Ask models while they change, and check each answer.

    bundles_of: loads the modules; a test passes one that mixes them up. pool: its bytes.
    """
    async with serving(home.data, home.model(0), bundles_of, pool_bytes=pool) as engine:
        report(f"isolation: {plan.mixed} models of mixed kinds and ranks, alone")
        versions = _write(engine, plan.mixed)
        texts = [t for n in TOKENS for t in home.texts().of(n, TEXTS_EACH if plan.mixed > 10 else 1)]
        reference = alone(engine, [variant for both in versions for variant in both], texts)
        churn = Churn(engine.manager, versions, [_model(i, 0).id for i in range(plan.mixed)])
        counts = engine.metrics.pool
        loads, evictions, cpu = counts.loads, counts.evictions, time.process_time()
        seen = await _ask(engine, plan, texts, reference, churn, report)
        cpu_s, held = time.process_time() - cpu, len(counts.resident()) / plan.mixed
        loads, evictions = counts.loads - loads, counts.evictions - evictions
        return Result(reference, seen, churn.done, loads, evictions, held, cpu_s)


def _model(i: int, variant: int) -> Model:
    """One of the two variants of model `i`. They differ in kind and rank too."""
    number = variant or VARIANTS
    return Model(f"x{i:05}", 1_000_000 + VARIANTS * i + variant, mixed_spec(VARIANTS * i + variant), number)


def _write(engine: Serving, count: int) -> list[list[ModelVersion]]:
    """Store the models anew. Returns the records of each model's variants; variant 0 is live."""
    manager, ground = engine.manager, Ground.of(engine.manager, ROOT)
    versions = []
    for i in range(count):
        with suppress(NotFound):
            manager.registry.delete_tenant(_model(i, 0).tenant)
        both = [put_model(manager, ground, _model(i, variant)) for variant in range(VARIANTS)]
        publish_at_once(manager, [(_model(i, v).id, both[v]) for v in (1, 0)])
        versions.append(both)
    return versions


async def _ask(
    engine: Serving, plan: Plan, texts: list[str], reference: Alone, churn: Churn, report: Report
) -> Checked:
    """Ask, and change the models, until enough answers are checked."""
    found, told = Checked(), _Told(plan.answers, report)

    async def caller(seed: int) -> None:
        draw = np.random.default_rng(seed)
        while found.answers < plan.answers:
            await _call(engine, texts, reference, churn, found, draw)
            told.reached(found)
            await churn.keep_up(lambda: found.answers)

    report(f"isolation: {plan.answers} answers under churn")
    async with asyncio.TaskGroup() as callers:
        for i in range(CALLERS):
            callers.create_task(caller(i))
    return found


class _Told:
    """Reports the progress at each of PARTS equal parts of the answers."""

    def __init__(self, answers: int, report: Report) -> None:
        self._answers, self._report = answers, report
        self._parts, self._begun = 0, time.monotonic()

    def reached(self, found: Checked) -> None:
        while self._parts < PARTS and found.answers * PARTS >= (self._parts + 1) * self._answers:
            self._parts += 1
            minutes = (time.monotonic() - self._begun) / 60
            left = minutes * max(0, self._answers - found.answers) / found.answers
            self._report(
                f"isolation: {found.answers} answers checked, {found.wrong} wrong, {found.errors.total()} "
                f"calls with errors; {minutes:.0f} minutes gone, about {left:.0f} left"
            )


async def _call(
    engine: Serving,
    texts: list[str],
    reference: Alone,
    churn: Churn,
    found: Checked,
    draw: np.random.Generator,
) -> None:
    """Ask some models some texts in one call, and check the answers."""
    some = draw.permutation(len(churn.models))[: draw.choice(MODELS_A_CALL)]
    models = draw.choice(some, TEXTS_A_CALL).tolist()
    asked = draw.integers(0, len(texts), TEXTS_A_CALL).tolist()
    pairs = list(zip(models, asked, strict=True))
    requests = [TextRequest(churn.models[m], texts[t], scores=True) for m, t in pairs]
    since = time.monotonic()
    try:
        answers = await engine.engine.infer(requests)
    except NotFound as error:
        if any(churn.was_live(m, None, since, time.monotonic()) for m in set(models)):
            found.gone += 1
        else:
            found.errors[error.message] += 1
        return
    except HmiError as error:
        found.errors[error.message] += 1
        return
    until = time.monotonic()
    for (model, text), answer in zip(pairs, answers, strict=True):
        _check(found, reference, churn, model, text, answer, since, until)


def _check(
    found: Checked,
    reference: Alone,
    churn: Churn,
    model: int,
    text: int,
    answer: TextResult,
    since: float,
    until: float,
) -> None:
    found.answers += 1
    assert answer.scores is not None
    got = np.array([answer.scores[label] for label in LABELS])
    want = reference.executor[VARIANTS * model + churn.variant(answer.version), text]
    off = float(np.abs(got - want).max())
    own = answer.model == churn.models[model] and churn.was_live(model, answer.version, since, until)
    found.off = max(found.off, off)
    found.wrong += not (own and off <= ALONE_TOLERANCE)
