"""Throughput by number of tenants, in the engine: goal, within 5% of one tenant's."""

from __future__ import annotations

import asyncio
import statistics
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from bench.cases.quality.plots import lines_svg
from bench.cases.serve.engine import Ask, Load, Serving, load, serving
from bench.cases.serve.home import Home
from bench.cases.serve.plan import Plan, Report
from bench.cases.serve.traffic import SHAPES, Shape, tenants_in_turn
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


@dataclass(frozen=True)
class Case:
    """One kind of texts and traffic, with one size of pool."""

    pool: str
    lengths: str
    shape: Shape

    @property
    def name(self) -> str:
        return f"{self.pool}_{self.lengths}_{self.shape}"


Rates = dict[int, list[Load]]
"""The results of each repetition, by number of tenants."""


def steps(plan: Plan) -> int:
    return len(POOLS) * (1 + len(LENGTHS) * len(SHAPES) * plan.runs)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield ratios to one tenant's throughput: by the clock, and by this process's CPU time a token."""
    curves: dict[str, dict[int, float]] = {}
    for pool in POOLS:
        for case, rates in asyncio.run(_of_pool(plan, home, pool, report)):
            if rates is None:
                yield Row(f"flat_{pool}", None, "x", why="all modules do not fit in this machine's memory")
                continue
            yield from _rows(case, rates)
            curves[case.name] = {
                n: statistics.median(r.a_second for r in found) for n, found in rates.items()
            }
    if plan.plots is not None and curves:
        (plan.plots / "flat.svg").write_text(lines_svg("texts a second by number of tenants", curves))


async def _of_pool(plan: Plan, home: Home, pool: str, report: Report) -> list[tuple[Case, Rates | None]]:
    report(f"flat, {pool}: starting")
    texts = home.texts()
    whole = 1 << 40  # larger than any machine's memory: nothing is evicted
    size = Settings().pool_bytes if pool == "default_pool" else whole
    async with serving(home.data, home.model(0), pool_bytes=size) as engine:
        if pool == "pool_of_all" and not await _load_all(engine, home, max(plan.counts)):
            return [(Case(pool, "", "uniform"), None)]
        found: list[tuple[Case, Rates | None]] = []
        for name, tokens in LENGTHS.items():
            some = [(text, texts.tokens(text)) for text in texts.of(tokens, TEXTS)]
            for shape in SHAPES:
                case = Case(pool, name, shape)
                found.append((case, await _rates(plan, home, engine, some, case, report)))
        return found


async def _rates(
    plan: Plan, home: Home, engine: Serving, texts: list[tuple[str, int]], case: Case, report: Report
) -> Rates:
    """Measure all numbers of tenants in turn, as often as the plan says, each time in another order."""
    found: Rates = {count: [] for count in plan.counts}
    draw = np.random.default_rng(1)
    for turn in range(plan.runs):
        report(f"flat, {case.name}: {turn + 1} of {plan.runs}")
        for count in draw.permutation(plan.counts).tolist():
            tenants = tenants_in_turn(case.shape, count, ASKS, seed=turn).tolist()
            warmed = range(count) if count <= WARMED else dict.fromkeys(tenants[:WARMED])
            await engine.ask_each(map(home.model, warmed), "warm")
            await asyncio.sleep(QUIET_S if plan.runs > 1 else 0.0)
            asks = [Ask(home.model(t), *texts[i % len(texts)]) for i, t in enumerate(tenants)]
            found[count].append(await load(engine, asks, plan.callers, plan.seconds))
    return found


def _rows(case: Case, rates: Rates) -> Iterator[Row]:
    one, runs = rates[1], len(rates[1])
    yield Row(
        f"flat_{case.name}_1", round(statistics.median(r.a_second for r in one), 1), "texts/s", runs=runs
    )
    for count, found in rates.items():
        if count == 1:
            continue
        wall = [f.tokens / f.seconds / (o.tokens / o.seconds) for f, o in zip(found, one, strict=True)]
        cpu = [f.tokens / f.cpu_s / (o.tokens / o.cpu_s) for f, o in zip(found, one, strict=True)]
        for how, ratios in (("", wall), ("_by_cpu", cpu)):
            name = f"flat_{case.name}_{count}_over_1{how}"
            yield Row(name, round(statistics.median(ratios), 3), "x", GOAL, True, runs, "one tenant")


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
