"""Answers under churn. Each is checked against its own model's answer, computed alone; the goal is none
wrong."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field

import numpy as np

from hmi.bench.report import Row
from hmi.bench.serve.alone import Alone, alone
from hmi.bench.serve.churn import VARIANTS, Churn
from hmi.bench.serve.engine import Serving, serving
from hmi.bench.serve.home import ROOT, Home
from hmi.bench.serve.plan import Plan, Report
from hmi.bench.serve.tenants import LABELS, Ground, Model, mixed_spec, publish_at_once, put_model
from hmi.core import ModelVersion
from hmi.engine import TextRequest, TextResult
from hmi.errors import HmiError, NotFound

POOL = 8 << 20
"""A small pool, so that modules are evicted all the time."""
TOKENS = 14
TEXTS_EACH = 24
"""Texts that each model is asked."""
CALLERS, A_CALL = 8, 16
PAUSE_S = 0.1
"""Pause between two changes of a model."""
ALONE_TOLERANCE = 1e-6
"""Largest difference between a score and the same executor's score for the text alone.

On the CPU, compiled layers and heads that read [CLS] give the same bits in every batch. Packed torch and
devices do not.
"""
TOLERANCE = {"fp32": 1e-4, "bf16": 0.05, "int8": 0.1}
"""Largest difference between a score and that of packed torch in fp32, by the executor's precision."""


@dataclass
class Checked:
    """The results of the checks."""

    answers: int = 0
    wrong: int = 0
    equal: int = 0
    """Answers with the same bits as alone."""
    gone: int = 0
    """Calls to a model that was deleted at that time."""
    errors: Counter[str] = field(default_factory=Counter)
    """Other errors, by their text."""


def steps(plan: Plan) -> int:
    return 2


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield the number of wrong answers, and figures that show that the check would have found one."""
    report(f"isolation: {plan.mixed} models of mixed kinds and ranks, alone")
    reference, checked, churn, evictions = asyncio.run(_checked(plan, home, report))
    precision = reference.name.rpartition(" ")[2]
    yield Row("answers_checked", checked.answers, "answers", peer=reference.name)
    yield Row("answers_wrong", checked.wrong, "answers", 0, False, checked.answers)
    yield Row("answers_of_equal_bits", checked.equal, "answers", runs=checked.answers)
    yield Row("calls_to_deleted_models", checked.gone, "calls")
    yield Row(
        "calls_with_other_errors",
        checked.errors.total(),
        "calls",
        0,
        False,
        why="; ".join(checked.errors) or None,
    )
    for name, count in sorted(churn.done.items()):
        yield Row("changes_" + name.replace(" ", "_"), count, "changes")
    yield Row("evictions_under_churn", evictions, "evictions")
    yield Row(
        "alone_beside_fp32_reference",
        float(f"{reference.difference:.2g}"),
        "of a score",
        TOLERANCE.get(precision, TOLERANCE["fp32"]),
        False,
        reference.executor[..., 0].size,
        "packed torch in fp32",
    )
    yield Row("nearest_two_models", float(f"{reference.nearest():.2g}"), "of a score", 10 * ALONE_TOLERANCE)


async def _checked(plan: Plan, home: Home, report: Report) -> tuple[Alone, Checked, Churn, int]:
    async with serving(home.data, home.model(0), pool_bytes=POOL) as engine:
        versions = _write(engine, plan.mixed)
        texts = home.texts().of(TOKENS, TEXTS_EACH if plan.mixed > 10 else 2)
        reference = alone(engine, [variant for both in versions for variant in both], texts)
        churn = Churn(engine.manager, versions, [_model(i, 0).id for i in range(plan.mixed)])
        report(f"isolation: {plan.answers} answers under churn")
        changing = asyncio.create_task(churn.run(PAUSE_S))
        try:
            checked = await _ask(engine, plan, texts, reference, churn)
        finally:
            changing.cancel()
            with suppress(asyncio.CancelledError):
                await changing
        return reference, checked, churn, engine.metrics.pool.evictions


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


async def _ask(engine: Serving, plan: Plan, texts: list[str], reference: Alone, churn: Churn) -> Checked:
    """Ask until enough answers are checked."""
    found = Checked()

    async def caller(seed: int) -> None:
        draw = np.random.default_rng(seed)
        while found.answers < plan.answers:
            few = len(churn.models) < A_CALL
            models = draw.choice(len(churn.models), A_CALL, replace=few).tolist()
            asked = draw.integers(0, len(texts), A_CALL).tolist()
            requests = [
                TextRequest(churn.models[m], texts[t], scores=True)
                for m, t in zip(models, asked, strict=True)
            ]
            since = time.monotonic()
            try:
                answers = await engine.engine.infer(requests)
            except NotFound as error:
                if any(churn.was_live(m, None, since, time.monotonic()) for m in models):
                    found.gone += 1
                else:
                    found.errors[error.message] += 1
                continue
            except HmiError as error:
                found.errors[error.message] += 1
                continue
            until = time.monotonic()
            for model, text, answer in zip(models, asked, answers, strict=True):
                _check(found, reference, churn, model, text, answer, since, until)

    await asyncio.gather(*(caller(i) for i in range(CALLERS)))
    return found


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
    found.equal += off == 0.0
    found.wrong += not (off <= ALONE_TOLERANCE and churn.was_live(model, answer.version, since, until))
