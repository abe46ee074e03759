"""Checks that no tenant gets an answer of another's model while models change and are evicted.

Each answer of the engine is compared with that of the same model and text, computed alone. The goal is that
none is wrong.
"""

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
from bench.cases.serve.plan import Report, ServePlan
from bench.harness.home import LABELS, ROOT, Ground, Home, HomeModel, mixed_spec, publish_at_once, put_model
from bench.harness.report import Figure
from hmi.engine import TextRequest, TextResult
from hmi.engine.admit.bundles import Bundles
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
class Check:
    """Asks models while they change, and counts what is found."""

    engine: Serving
    texts: list[str]
    reference: Alone
    churn: Churn
    answers: int = 0
    wrong: int = 0
    off: float = 0.0
    """The largest difference of a score to alone."""
    gone: int = 0
    """Calls to a model that was deleted at that time."""
    errors: Counter[str] = field(default_factory=Counter)
    """Other errors, by their text."""

    async def ask(self, answers: int, report: Report) -> None:
        """Ask, and change the models, until so many answers are checked."""
        part = 0

        async def caller(seed: int) -> None:
            nonlocal part
            draw = np.random.default_rng(seed)
            while self.answers < answers:
                await self._call(draw)
                while part < PARTS and self.answers * PARTS >= (part + 1) * answers:
                    part += 1
                    report(
                        f"isolation: {self.answers} answers checked, {self.wrong} wrong, "
                        f"{self.errors.total()} calls with errors"
                    )
                await self.churn.keep_up(lambda: self.answers)

        await asyncio.gather(*map(caller, range(CALLERS)))

    async def _call(self, draw: np.random.Generator) -> None:
        """Ask some models some texts in one call, and check the answers."""
        some = draw.permutation(len(self.churn.models))[: draw.choice(MODELS_A_CALL)]
        models = draw.choice(some, TEXTS_A_CALL).tolist()
        texts = draw.integers(0, len(self.texts), TEXTS_A_CALL).tolist()
        pairs = list(zip(models, texts, strict=True))
        requests = [TextRequest(self.churn.models[m], self.texts[t], scores=True) for m, t in pairs]
        since = time.monotonic()
        try:
            answers = await self.engine.engine.infer(requests)
        except HmiError as error:
            gone = isinstance(error, NotFound) and any(
                self.churn.was_live(m, None, since, time.monotonic()) for m in set(models)
            )
            if gone:
                self.gone += 1
            else:
                self.errors[error.message] += 1
            return
        until = time.monotonic()
        for (model, text), answer in zip(pairs, answers, strict=True):
            self.check(model, text, answer, since, until)

    def check(self, model: int, text: int, answer: TextResult, since: float, until: float) -> None:
        """Check the answer of a call that lasted from `since` to `until`."""
        self.answers += 1
        assert answer.scores is not None
        got = np.array([answer.scores[label] for label in LABELS])
        want = self.reference.executor[VARIANTS * model + self.churn.variant(answer.version), text]
        off = float(np.abs(got - want).max())
        own = answer.model == self.churn.models[model] and self.churn.was_live(
            model, answer.version, since, until
        )
        self.off = max(self.off, off)
        self.wrong += not (own and off <= ALONE_TOLERANCE)


@dataclass(frozen=True)
class Result:
    """The result of a run, and what the pool and the process did meanwhile."""

    check: Check
    loads: int
    evictions: int
    held: float
    """Models in the pool at the end, as a fraction of the models."""
    cpu_s: float
    """CPU seconds of this process while it asked."""


def steps(plan: ServePlan) -> int:
    return 2 + PARTS


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield the number of wrong answers, and figures that show that the check would have found one."""
    result = asyncio.run(checked(plan, home, report))
    seen, reference = result.check, result.check.reference
    yield Figure("answers_checked", seen.answers, "answers", peer=reference.name)
    yield Figure("answers_wrong", seen.wrong, "answers", 0, False, seen.answers)
    off = float(f"{seen.off:.2g}")
    yield Figure("largest_difference_to_alone", off, "of a score", ALONE_TOLERANCE, False, seen.answers)
    yield Figure("calls_to_deleted_models", seen.gone, "calls")
    why = "; ".join(seen.errors) or None
    yield Figure("calls_with_other_errors", seen.errors.total(), "calls", 0, False, why=why)
    for name, count in sorted(seen.churn.done.items()):
        yield Figure("changes_" + name.replace(" ", "_"), count, "changes")
    yield Figure("evictions_under_churn", result.evictions, "evictions")
    yield Figure("loads_an_answer", round(result.loads / seen.answers, 4), "loads", runs=seen.answers)
    yield Figure("cpu_an_answer", round(1e3 * result.cpu_s / seen.answers, 4), "ms", runs=seen.answers)
    yield Figure("models_in_the_pool", round(result.held, 3), "of all", runs=plan.mixed)
    off, goal = float(f"{reference.difference:.2g}"), TOLERANCE[reference.name.rpartition(" ")[2]]
    compared, peer = reference.executor[..., 0].size, "packed torch in fp32"
    yield Figure("alone_beside_fp32_reference", off, "of a score", goal, False, compared, peer)
    for name, least in (("models", reference.nearest()), ("texts", reference.nearest_texts())):
        yield Figure(f"nearest_two_{name}", float(f"{least:.2g}"), "of a score", 10 * ALONE_TOLERANCE)


async def checked(
    plan: ServePlan,
    home: Home,
    report: Report,
    bundles_of: Callable[..., Bundles] = Bundles,
    pool: int = POOL,
) -> Result:
    """Ask models while they change, and check each answer.

    bundles_of: loads the modules; a test passes one that mixes them up. pool: its bytes.
    """
    async with serving(home.data, home.model(0), bundles_of, pool_bytes=pool) as engine:
        report(f"isolation: {plan.mixed} models of mixed kinds and ranks, alone")
        texts = [t for n in TOKENS for t in home.texts().of(n, TEXTS_EACH if plan.mixed > 10 else 1)]
        check, counts = prepared(engine, plan.mixed, texts), engine.pool
        loads, evictions, cpu = counts.loads, counts.evictions, time.process_time()
        report(f"isolation: {plan.answers} answers under churn")
        await check.ask(plan.answers, report)
        cpu_s, held = time.process_time() - cpu, len(counts.resident()) / plan.mixed
        return Result(check, counts.loads - loads, counts.evictions - evictions, held, cpu_s)


def prepared(engine: Serving, count: int, texts: list[str]) -> Check:
    """Store `count` models anew, each with VARIANTS that differ in kind and rank too, and answer alone."""
    manager, ground = engine.manager, Ground.of(engine.manager, ROOT)
    versions, models = [], []
    for i in range(count):
        tenant, seeds = f"x{i:05}", range(VARIANTS * i, VARIANTS * (i + 1))
        both = [
            HomeModel(tenant, 1_000_000 + seed, mixed_spec(seed), variant or VARIANTS)
            for variant, seed in enumerate(seeds)
        ]
        with suppress(NotFound):
            manager.registry.delete_tenant(tenant)
        stored = [put_model(manager, ground, model) for model in both]
        # Version 1 has variant 1, and the live version 2 has variant 0.
        publish_at_once(manager, [(both[v].id, stored[v]) for v in (1, 0)])
        versions.append(stored)
        models.append(both[0].id)
    reference = alone(engine, [variant for stored in versions for variant in stored], texts)
    return Check(engine, texts, reference, Churn(manager, versions, models))
