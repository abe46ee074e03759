"""Throughput by number of tenants, in the engine: goal, within 5% of one tenant's."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator

from bench.cases.serve.engine import Serving, TokenAsk, load, serving
from bench.cases.serve.plan import Report, ServePlan
from bench.cases.serve.traffic import MEMORY_SHARE, POOLS, QUIET_S, SHAPES, TEXTS, Throughputs
from bench.harness.home import Home
from bench.harness.report import Figure
from hmi.config import Settings
from hmi.model.memory import memory_left
from hmi.resident import resident

LENGTHS: dict[str, int | None] = {"128_tokens": 128, "real_lengths": None}
ASKS = 5_000
SAMPLED = 100
"""Modules whose memory is measured before all of them are loaded."""


def steps(plan: ServePlan) -> int:
    return len(POOLS) * (1 + len(LENGTHS) * len(SHAPES) * plan.runs)


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield ratios to one tenant's throughput: by the clock, and by this process's CPU time a token."""
    for pool in POOLS:
        report(f"flat, {pool}: starting")
        found = asyncio.run(_of_pool(plan, home, pool, report))
        if not found:
            yield Figure(f"flat_{pool}", None, "x", why="all modules do not fit in this machine's memory")
        for rates in found:
            yield from rates.rows()


async def _of_pool(plan: ServePlan, home: Home, pool: str, report: Report) -> list[Throughputs]:
    """Measure all kinds of texts and traffic with one size of pool. Returns none if not all modules fit."""
    texts, found = home.texts(), list[Throughputs]()
    whole = 1 << 40  # larger than any machine's memory: nothing is evicted
    size = Settings().pool_bytes if pool == "default_pool" else whole
    async with serving(home.data, home.model(0), pool_bytes=size) as engine:
        if pool == "pool_of_all" and not await _load_all(engine, home, max(plan.counts)):
            return []
        for lengths, tokens in LENGTHS.items():
            some = [(text, texts.tokens(text)) for text in texts.of(tokens, TEXTS)]
            for shape in SHAPES:
                rates = Throughputs(f"flat_{pool}_{lengths}_{shape}")
                for count, tenants, warmed in rates.turns(plan, shape, ASKS, report):
                    await engine.ask_each(map(home.model, warmed), "warm")
                    await asyncio.sleep(0.0 if plan.quick else QUIET_S)
                    asks = [TokenAsk(home.model(t), *some[i % TEXTS]) for i, t in enumerate(tenants)]
                    seen = await load(engine, asks, plan.callers, plan.seconds)
                    tokens_s, tokens_cpu_s = seen.tokens / seen.seconds, seen.tokens / seen.cpu_s
                    rates.add(count, seen.answers / seen.seconds, tokens_s, tokens_cpu_s)
                found.append(rates)
    return found


async def _load_all(engine: Serving, home: Home, tenants: int) -> bool:
    """Load the modules of all tenants. Returns False, early, if they would not fit in memory."""
    await engine.ask_each(map(home.model, range(min(SAMPLED, tenants) // 2)), "warm")
    first, before = min(SAMPLED, tenants) // 2, resident().all
    last = min(SAMPLED + first, tenants)
    await engine.ask_each(map(home.model, range(first, last)), "warm")
    each = max(0, resident().all - before) / max(1, last - first)
    if each * (tenants - last) > MEMORY_SHARE * memory_left():
        return False
    await engine.ask_each(map(home.model, range(last, tenants)), "warm")
    return True
