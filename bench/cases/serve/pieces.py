"""The shares of the engine's time: retrieval, upper layers, and the engine's own work around them."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator
from dataclasses import replace

from bench.cases.serve.engine import Ask, load, serving
from bench.cases.serve.home import Home
from bench.cases.serve.plan import Plan, Report
from bench.cases.serve.timed import Counts, TimedBundles
from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.report import Row

CASES: tuple[tuple[str, int | None, int], ...] = (
    ("128_tokens", 128, 1),
    ("real_lengths", None, 1),
    ("16_texts_a_call", None, 16),
)
"""(name, tokens of a text or None for real lengths, texts of a call)."""
TENANTS = 64
OWN_GOAL = 0.10
TEXTS, ASKS = 256, 5_000
Spent = tuple[float, Counts]
"""The process's CPU seconds of one repetition, and the counts of the parts."""


def steps(plan: Plan) -> int:
    return len(CASES)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield shares of the CPU time under load by 64 tenants, padding, and the mean size of batches."""
    for name, tokens, a_call in CASES:
        report(f"pieces: {name}")
        found = asyncio.run(_spent(plan, home, tokens, a_call))
        counts, runs = [c for _, c in found], len(found)
        share = statistics.median(c.retrieval_s / (c.retrieval_s + c.layers_s) for c in counts)
        own = statistics.median(1 - (c.retrieval_s + c.layers_s) / cpu_s for cpu_s, c in found)
        batches, rows = sum(c.batches for c in counts), sum(c.rows for c in counts)
        padded = sum(c.rows - c.tokens for c in counts) / rows
        texts_each, tokens_each = (sum(getattr(c, n) for c in counts) / batches for n in ("texts", "tokens"))
        yield Row(f"retrieval_share_{name}", round(share, 4), "of retrieval and layers", runs=runs)
        yield Row(f"engine_own_share_{name}", round(own, 4), "of CPU", OWN_GOAL, False, runs)
        yield Row(f"padding_share_{name}", round(padded, 6), "of rows", 0.0, False, batches)
        yield Row(f"texts_of_a_batch_{name}", round(texts_each, 1), "texts", runs=batches)
        yield Row(f"tokens_of_a_batch_{name}", round(tokens_each, 1), "tokens", runs=batches)


async def _spent(plan: Plan, home: Home, tokens: int | None, a_call: int) -> list[Spent]:
    texts = home.texts()
    some = [(text, texts.tokens(text)) for text in texts.of(tokens, TEXTS)]
    count, callers = min(TENANTS, home.tenants), max(1, plan.callers // a_call)
    tenants = tenants_in_turn("uniform", count, ASKS, seed=0).tolist()
    asks = [Ask(home.model(t), *some[i % TEXTS]) for i, t in enumerate(tenants)]
    found = []
    async with serving(home.data, home.model(0), TimedBundles) as engine:
        assert isinstance(engine.bundles, TimedBundles)
        await engine.ask_each(map(home.model, range(count)), "warm")
        await load(engine, asks, callers, plan.seconds, a_call)
        for _ in range(plan.runs):
            before, begun = replace(engine.bundles.counts), time.process_time()
            await load(engine, asks, callers, plan.seconds, a_call)
            found.append((time.process_time() - begun, engine.bundles.counts - before))
    return found
