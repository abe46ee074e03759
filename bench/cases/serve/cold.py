"""A server with all tenants on disk: how soon it is ready, and a cold tenant's first answer."""

from __future__ import annotations

import asyncio
import statistics
import time
from collections.abc import Iterator

import numpy as np

from bench.cases.serve.engine import Serving, serving
from bench.cases.serve.plan import Report, ServePlan
from bench.harness.home import Home
from bench.harness.page_cache import drop_cached
from bench.harness.report import Figure
from bench.harness.server import hmi, running
from hmi.core import ModelId

READY_GOAL_S = 5.0
COLD_GOAL_MS = 10.0
STARTS = 3
WARM_ASKS = 5
KINDS = ("page_cache", "disk")
"""The place of a cold tenant's module file at the tenant's first text."""


def steps(plan: ServePlan) -> int:
    return 2


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield the seconds from start to readiness, and a cold answer's time beyond a warm one's."""
    report(f"starts of a server with {home.tenants} tenants")
    starts = [_seconds_to_ready(home) for _ in range(1 if plan.runs == 1 else STARTS)]
    yield Figure("ready_s", round(statistics.median(starts), 2), "s", READY_GOAL_S, False, len(starts))
    report("cold tenants' first answers")
    for kind, extra in asyncio.run(_extra_ms(plan, home)).items():
        for name, value in (("median", statistics.median(extra)), ("p95", float(np.percentile(extra, 95)))):
            yield Figure(
                f"cold_{kind}_over_warm_{name}",
                round(value, 2),
                "ms",
                COLD_GOAL_MS,
                False,
                len(extra),
                "the same tenant's next answers",
            )


def _seconds_to_ready(home: Home) -> float:
    begun = time.monotonic()
    with running(hmi(home.data), home.folder):
        return time.monotonic() - begun


async def _extra_ms(plan: ServePlan, home: Home) -> dict[str, list[float]]:
    """By kind, each cold tenant's first answer minus the median of its next ones, in milliseconds."""
    text, found = home.texts().of(None, 1)[0], {kind: list[float]() for kind in KINDS}
    async with serving(home.data, home.model(0)) as engine:
        tenants = np.random.default_rng(0).permutation(np.arange(1, home.tenants))[: 2 * plan.cold].tolist()
        for i, tenant in enumerate(tenants):
            kind, model = KINDS[i % 2], home.model(tenant)
            path = engine.manager.adapters.path(engine.manager.registry.model(model).live.artefact)
            path.read_bytes()
            if kind == "disk":
                drop_cached(path)
            first = await _ms(engine, model, text)
            found[kind].append(
                first - statistics.median([await _ms(engine, model, text) for _ in range(WARM_ASKS)])
            )
    return found


async def _ms(engine: Serving, model: ModelId, text: str) -> float:
    begun = time.perf_counter()
    await engine.ask(model, text)
    return 1e3 * (time.perf_counter() - begun)
