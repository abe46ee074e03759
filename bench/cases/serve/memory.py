"""Memory: a tenant's bytes by tier, and whether the process grows under cycles and under mixed load."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import cycle

import numpy as np

from bench.cases.serve.engine import Serving, serving
from bench.cases.serve.plan import Report, ServePlan
from bench.harness.home import Home
from bench.harness.report import Figure
from hmi.engine import TextRequest
from hmi.resident import resident

GOAL = 1.02
"""Memory at the end, divided by memory after the warm-up."""
COUNTED = 500
"""Tenants over which bytes in memory are averaged."""
SMALL_POOL = 8 << 20
"""A pool of some ten modules, so that nearly each ask loads one and evicts one."""
MIXED_POOL = 256 << 20
"""The pool under mixed load, full after some seconds: one that still fills up would look like a leak."""
WARM_CYCLES = 500
AT_ONCE = 4
EVERY = 100
"""Cycles between two samples."""
SAMPLE_S, WARM_S = 10.0, 120.0
MIXED_CALLERS = 16
MIXED_TEXTS = 200
EXACT_SHARE = 0.01
LENGTHS: tuple[int | None, ...] = (14, None, 128)


@dataclass
class MemorySamples:
    """The process's memory over time, or over cycles."""

    at: list[float] = field(default_factory=list)
    bytes: list[int] = field(default_factory=list)
    pool: list[int] = field(default_factory=list)

    def take(self, at: float, engine: Serving) -> None:
        self.at.append(at)
        self.bytes.append(resident().all)
        self.pool.append(engine.pool.bytes)

    def growth(self, since: float) -> float:
        """The median of the last fifth of the samples divided by that of the first fifth from `since` on."""
        late = [size for at, size in zip(self.at, self.bytes, strict=True) if at >= since] or self.bytes
        some = -(-len(late) // 5)
        return statistics.median(late[-some:]) / statistics.median(late[:some])


def steps(plan: ServePlan) -> int:
    return 3


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield a tenant's bytes by tier, then the growth of memory over cycles and over time."""
    report("memory: a tenant by tier")
    yield from asyncio.run(_tiers(home))
    report(f"memory: {plan.cycles} loads and evictions")
    cycles, evicted = asyncio.run(_cycles(plan, home))
    grown, pooled = cycles.growth(min(WARM_CYCLES, plan.cycles / 2)), max(cycles.pool) / SMALL_POOL
    yield Figure("rss_growth_over_cycles", round(grown, 4), "x", GOAL, False, plan.cycles)
    yield Figure("evictions", evicted, "evictions", runs=plan.cycles)
    yield Figure("pool_most_over_limit", round(pooled, 4), "x", 1.0, False, len(cycles.pool))
    report(f"memory: {plan.minutes:g} minutes of mixed load")
    mixed = asyncio.run(_mixed(plan, home))
    grown, runs = mixed.growth(min(WARM_S, 20 * plan.minutes)), len(mixed.bytes)
    yield Figure(
        "rss_growth_over_mixed_load", round(grown, 4), "x", GOAL, False, runs, f"{plan.minutes:g} minutes"
    )
    yield Figure("rss_under_mixed_load", round(max(mixed.bytes) / 1e6), "MB", runs=runs)


async def _tiers(home: Home) -> list[Figure]:
    """Load modules into a pool that holds them all, and divide the growth of memory by their number."""
    count = min(COUNTED, home.tenants // 2)
    async with serving(home.data, home.model(0), pool_bytes=1 << 40) as engine:
        # The first modules also fill what the allocator keeps.
        await engine.ask_each(map(home.model, range(count)), "warm")
        pool, before, pooled = engine.pool, resident(), engine.pool.bytes
        await engine.ask_each(map(home.model, range(count, 2 * count)), "warm")
        after, pooled = resident(), pool.bytes - pooled
        live = [engine.manager.registry.model(home.model(i)).live for i in range(count, 2 * count)]
        disk = [engine.manager.adapters.path(version.artefact).stat().st_size for version in live]
    tiers = {
        "disk": sum(disk) / count,
        "mapped": (after.files - before.files) / count,
        "private": (after.anonymous - before.anonymous) / count,
        "pool_account": pooled / count,
    }
    return [
        Figure(f"tenant_bytes_{name}", round(value), "bytes", runs=count) for name, value in tiers.items()
    ]


async def _cycles(plan: ServePlan, home: Home) -> tuple[MemorySamples, int]:
    """Ask tenants in turn with a small pool. Returns samples by cycle, and the number of evictions.

    The warm-up asks all of them, since a tenant's first text takes memory for good (pages of the registry,
    its usage), which would look like a leak.
    """
    samples, text = MemorySamples(), home.texts().of(14, 1)[0]
    turn = cycle(range(min(home.tenants, WARM_CYCLES)))
    every = max(1, min(EVERY, plan.cycles // 20))
    async with serving(home.data, home.model(0), pool_bytes=SMALL_POOL) as engine:
        for done in range(0, plan.cycles, every):
            await engine.ask_each((home.model(next(turn)) for _ in range(every)), text, AT_ONCE)
            samples.take(done + every, engine)
        return samples, engine.pool.evictions


async def _mixed(plan: ServePlan, home: Home) -> MemorySamples:
    """Ask all tenants texts of mixed lengths, some of them exactly. Returns samples by second."""
    texts, samples = home.texts(), MemorySamples()
    some = [text for length in LENGTHS for text in texts.of(length, MIXED_TEXTS)]
    loop = asyncio.get_running_loop()
    async with serving(home.data, home.model(0), pool_bytes=MIXED_POOL) as engine:
        begun, until = loop.time(), loop.time() + 60 * plan.minutes

        async def caller(seed: int) -> None:
            draw = np.random.default_rng(seed)
            while loop.time() < until:
                model, text = home.model(int(draw.integers(home.tenants))), some[draw.integers(len(some))]
                await engine.engine.infer([TextRequest(model, text, exact=bool(draw.random() < EXACT_SHARE))])

        callers = [asyncio.create_task(caller(i)) for i in range(MIXED_CALLERS)]
        every = min(SAMPLE_S, 6 * plan.minutes)
        while loop.time() < until:
            samples.take(loop.time() - begun, engine)
            await asyncio.sleep(every)
        await asyncio.gather(*callers)
    return samples
