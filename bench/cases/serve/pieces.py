"""The shares of the engine's time: retrieval, upper layers, and the engine's own work around them."""

from __future__ import annotations

import asyncio
import statistics
import threading
import time
from collections.abc import Iterator

from bench.cases.serve.engine import Serving, TokenAsk, load, serving
from bench.cases.serve.plan import Report, ServePlan
from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.home import Home
from bench.harness.report import Figure

CASES: tuple[tuple[str, int | None, int], ...] = (
    ("128_tokens", 128, 1),
    ("real_lengths", None, 1),
    ("16_texts_a_call", None, 16),
)
"""(name, tokens of a text or None for real lengths, texts of a call)."""
TENANTS = 64
OWN_GOAL = 0.10
TEXTS, ASKS = 256, 5_000
COUNTS = {
    "retrieve_s": ("hmi_stage_seconds_sum", {"stage": "retrieve"}),
    "compute_s": ("hmi_stage_seconds_sum", {"stage": "compute"}),
    "batches": ("hmi_batch_inputs_count", {}),
    "texts": ("hmi_batch_inputs_sum", {}),
    "tokens": ("hmi_batch_tokens_sum", {}),
}
"""The counters of the engine's metrics that are read."""
Spent = dict[str, float]
"""COUNTS of one repetition, and CPU seconds: of the process (cpu_s), of its compute threads (batch_s)."""


def steps(plan: ServePlan) -> int:
    return len(CASES)


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield shares of the time under load by 64 tenants, and the mean size of batches."""
    for name, tokens, a_call in CASES:
        report(f"pieces: {name}")
        found = asyncio.run(_repeated(plan, home, tokens, a_call))
        share = statistics.median(s["retrieve_s"] / (s["retrieve_s"] + s["compute_s"]) for s in found)
        own = statistics.median(1 - s["batch_s"] / s["cpu_s"] for s in found)
        yield Figure(f"retrieval_share_{name}", round(share, 4), "of a batch's time", runs=len(found))
        yield Figure(f"engine_own_share_{name}", round(own, 4), "of CPU", OWN_GOAL, False, len(found))
        batches = sum(s["batches"] for s in found)
        for what in ("texts", "tokens"):
            mean = sum(s[what] for s in found) / batches
            yield Figure(f"{what}_of_a_batch_{name}", round(mean, 1), what, runs=int(batches))


async def _repeated(plan: ServePlan, home: Home, tokens: int | None, a_call: int) -> list[Spent]:
    texts = home.texts()
    some = [(text, texts.tokens(text)) for text in texts.of(tokens, TEXTS)]
    count, callers = min(TENANTS, home.tenants), max(1, plan.callers // a_call)
    tenants = tenants_in_turn("uniform", count, ASKS, seed=0).tolist()
    asks = [TokenAsk(home.model(t), *some[i % TEXTS]) for i, t in enumerate(tenants)]
    found = []
    async with serving(home.data, home.model(0)) as engine:
        await engine.ask_each(map(home.model, range(count)), "warm")
        await load(engine, asks, callers, plan.seconds, a_call)
        for _ in range(plan.runs):
            before = _spent(engine)
            await load(engine, asks, callers, plan.seconds, a_call)
            found.append({name: value - before[name] for name, value in _spent(engine).items()})
    return found


def _spent(engine: Serving) -> Spent:
    """Return the counts until now. The engine's compute threads never end."""
    registry = engine.metrics.registry
    found = {name: registry.get_sample_value(*sample) or 0.0 for name, sample in COUNTS.items()}
    threads = [t.ident for t in threading.enumerate() if t.name.startswith(("hmi-engine", "hmi-express"))]
    clocks = [time.pthread_getcpuclockid(ident) for ident in threads if ident is not None]
    batch_s = sum(time.clock_gettime(clock) for clock in clocks)
    return {**found, "batch_s": batch_s, "cpu_s": time.process_time()}
