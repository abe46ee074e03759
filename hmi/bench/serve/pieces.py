"""Where the engine's time goes: retrieval, upper layers, and the engine's own work around them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, cast

from hmi.bench.report import Row
from hmi.bench.serve.engine import Ask, load, serving
from hmi.bench.serve.home import Home
from hmi.bench.serve.plan import Plan, Report
from hmi.bench.serve.traffic import tenants_in_turn
from hmi.core import ModelVersion
from hmi.engine.bundles import Bundles, Part, Upper
from hmi.execution.base import Hook, Pause, no_pause
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.execution.choose import Chosen
from hmi.model.modules import TenantModule

CASES: tuple[tuple[str, int | None, int], ...] = (
    ("128_tokens", 128, 1),
    ("real_lengths", None, 1),
    ("16_texts_a_call", None, 16),
)
"""(name, tokens of a text or None for real lengths, texts of a call)."""
TENANTS = 64
OWN_GOAL = 0.10
TEXTS, ASKS = 256, 10_000


class Timed:
    """An executor that counts what another one is given, and the CPU time that it takes.

    A batch that runs between two layers of another counts into both.
    """

    def __init__(self, executor: Chosen) -> None:
        self._executor = executor
        self.cpu_s = 0.0
        self.batches = self.texts = self.tokens = self.rows = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._executor, name)

    def run(
        self,
        key: BatchKey,
        rows: Rows,
        modules: Sequence[TenantModule | None],
        hooks: Sequence[Hook] = (),
        pause: Pause = no_pause,
    ) -> Iterator[Left]:
        self.batches, self.texts = self.batches + 1, self.texts + len(rows.texts)
        self.rows, self.tokens = self.rows + len(rows.x), self.tokens + sum(b - a for a, b in rows.spans())
        run = self._executor.run(key, rows, modules, hooks, pause)
        while True:
            begun = time.thread_time()
            try:
                left = next(run)
            except StopIteration:
                return
            finally:
                self.cpu_s += time.thread_time() - begun
            yield left


class TimedBundles(Bundles):
    """Bundles whose one root has a `Timed` executor."""

    timed: Timed

    def upper(self, version: ModelVersion) -> Part[Upper]:
        part = super().upper(version)
        return replace(part, make=lambda: self._watched(part.make()))

    def _watched(self, upper: Upper) -> Upper:
        self.timed = Timed(upper.executor)
        return Upper(upper.root, cast(Chosen, self.timed))


@dataclass(frozen=True)
class Shares:
    """Where the time of one repetition went. CPU seconds, except retrieval, which is by the clock."""

    cpu_s: float
    layers_s: float
    retrieval_s: float
    compute_s: float
    """Layers, heads and answers, by the clock."""
    batches: int
    texts: int
    tokens: int
    rows: int

    @property
    def retrieval(self) -> float:
        """The fraction of a batch's time on its compute thread."""
        return self.retrieval_s / (self.retrieval_s + self.compute_s)

    @property
    def own(self) -> float:
        """The fraction of all CPU time outside retrieval and layers."""
        return 1 - (self.layers_s + self.retrieval_s) / self.cpu_s


def steps(plan: Plan) -> int:
    return len(CASES)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield shares of the time under load by 64 tenants, and the mean size of batches."""
    for name, tokens, a_call in CASES:
        report(f"pieces: {name}")
        found = asyncio.run(_shares(plan, home, tokens, a_call))
        batches = sum(f.batches for f in found)
        yield Row(
            f"retrieval_share_{name}",
            round(statistics.median(f.retrieval for f in found), 4),
            "of a batch",
            runs=len(found),
        )
        own = statistics.median(f.own for f in found)
        yield Row(f"engine_own_share_{name}", round(own, 4), "of CPU", OWN_GOAL, False, len(found))
        padded = sum(f.rows - f.tokens for f in found) / sum(f.rows for f in found)
        yield Row(f"padding_share_{name}", round(padded, 6), "of rows", 0.0, False, batches)
        yield Row(f"texts_of_a_batch_{name}", round(sum(f.texts for f in found) / batches, 1), "texts")
        yield Row(f"tokens_of_a_batch_{name}", round(sum(f.tokens for f in found) / batches, 1), "tokens")


async def _shares(plan: Plan, home: Home, tokens: int | None, a_call: int) -> list[Shares]:
    texts = home.texts()
    some = [(text, texts.tokens(text)) for text in texts.of(tokens, TEXTS)]
    count = min(TENANTS, home.tenants)
    tenants = tenants_in_turn("uniform", count, ASKS, seed=0).tolist()
    asks = [Ask(home.model(t), *some[i % TEXTS]) for i, t in enumerate(tenants)]
    found = []
    async with serving(home.data, home.model(0), TimedBundles) as engine:
        await engine.ask_each(map(home.model, range(count)), "warm")
        assert isinstance(engine.bundles, TimedBundles)
        timed, stages = engine.bundles.timed, engine.metrics.stages
        for _ in range(plan.runs):
            before = {**vars(timed)}, dict(stages)
            began = time.process_time()
            await load(engine, asks, plan.callers // a_call or 1, plan.seconds, a_call)
            cpu_s, (was, then) = time.process_time() - began, before
            found.append(
                Shares(
                    cpu_s,
                    timed.cpu_s - was["cpu_s"],
                    stages["retrieve"] - then["retrieve"],
                    stages["compute"] - then["compute"],
                    *(getattr(timed, n) - was[n] for n in ("batches", "texts", "tokens", "rows")),
                )
            )
    return found
