"""Throughput by number of tenants, in the engine: goal, within 5% of one tenant's."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator

import numpy as np

from bench.cases.serve.engine import Ask, Load, Serving, load, serving
from bench.cases.serve.plan import Plan, Report
from bench.cases.serve.traffic import SHAPES, Shape, tenants_in_turn
from bench.harness.home import Home
from bench.harness.report import Row
from hmi.config import Settings
from hmi.model.memory import memory_left
from hmi.resident import resident

GOAL = 0.95
LENGTHS: dict[str, int | None] = {"128_tokens": 128, "real_lengths": None}
POOLS = ("default_pool", "pool_of_all")
TEXTS, ASKS = 512, 5_000
WARMED = 1_000
"""At most this many tenants are asked before each repetition."""
QUIET_S = 1.1
"""Pause before each repetition: for a second, the queue keeps room for tenants that sent something lately."""
SAMPLED = 100
"""Modules whose memory is measured before all of them are loaded."""
MEMORY_SHARE = 0.7
"""The fraction of the machine's free memory that the modules may take."""
Rates = dict[int, list[Load]]
"""The results of each repetition, by number of tenants."""


def steps(plan: Plan) -> int:
    return len(POOLS) * (1 + len(LENGTHS) * len(SHAPES) * plan.runs)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield ratios to one tenant's throughput: by the clock, and by this process's CPU time a token."""
    for pool in POOLS:
        report(f"flat, {pool}: starting")
        found = asyncio.run(_of_pool(plan, home, pool, report))
        if not found:
            yield Row(f"flat_{pool}", None, "x", why="all modules do not fit in this machine's memory")
        for name, rates in found.items():
            yield from _rows(name, rates)


async def _of_pool(plan: Plan, home: Home, pool: str, report: Report) -> dict[str, Rates]:
    """Measure all kinds of texts and traffic with one size of pool. Returns none if not all modules fit."""
    texts, found = home.texts(), dict[str, Rates]()
    whole = 1 << 40  # larger than any machine's memory: nothing is evicted
    size = Settings().pool_bytes if pool == "default_pool" else whole
    async with serving(home.data, home.model(0), pool_bytes=size) as engine:
        if pool == "pool_of_all" and not await _load_all(engine, home, max(plan.counts)):
            return {}
        for lengths, tokens in LENGTHS.items():
            some = [(text, texts.tokens(text)) for text in texts.of(tokens, TEXTS)]
            for shape in SHAPES:
                name, rates = f"{pool}_{lengths}_{shape}", Rates()
                for turn in range(plan.runs):
                    report(f"flat, {name}: {turn + 1} of {plan.runs}")
                    await _turn(plan, home, engine, some, shape, turn, rates)
                found[name] = rates
    return found


async def _turn(
    plan: Plan,
    home: Home,
    engine: Serving,
    texts: list[tuple[str, int]],
    shape: Shape,
    turn: int,
    rates: Rates,
) -> None:
    """Add one repetition of each number of tenants to `rates`, each time in another order."""
    for count in np.random.default_rng(turn).permutation(plan.counts).tolist():
        tenants = tenants_in_turn(shape, count, ASKS, seed=turn).tolist()
        warmed = range(count) if count <= WARMED else dict.fromkeys(tenants[:WARMED])
        await engine.ask_each(map(home.model, warmed), "warm")
        await asyncio.sleep(QUIET_S if plan.runs > 1 else 0.0)
        asks = [Ask(home.model(t), *texts[i % len(texts)]) for i, t in enumerate(tenants)]
        rates.setdefault(count, []).append(await load(engine, asks, plan.callers, plan.seconds))


def _rows(name: str, rates: Rates) -> Iterator[Row]:
    one, runs = rates[1], len(rates[1])
    yield Row(f"flat_{name}_1", round(statistics.median(r.a_second for r in one), 1), "texts/s", runs=runs)
    for count, found in rates.items():
        if count == 1:
            continue
        wall = [f.tokens / f.seconds / (o.tokens / o.seconds) for f, o in zip(found, one, strict=True)]
        cpu = [f.tokens / f.cpu_s / (o.tokens / o.cpu_s) for f, o in zip(found, one, strict=True)]
        for how, ratios in (("", wall), ("_by_cpu", cpu)):
            ratio = f"flat_{name}_{count}_over_1{how}"
            yield Row(ratio, round(statistics.median(ratios), 3), "x", GOAL, True, runs, "one tenant")


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
