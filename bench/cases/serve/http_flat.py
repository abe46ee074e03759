"""Throughput by number of tenants, over HTTP with each tenant's own key: goal, within 5% of one tenant's."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from bench.cases.serve.http_fleet import body, guard, target, wait_chosen
from bench.cases.serve.plan import Report, ServePlan
from bench.cases.serve.traffic import MEMORY_SHARE, POOLS, QUIET_S, SHAPES, TEXTS, Shape, Throughputs
from bench.harness.home import Home
from bench.harness.load import LoadClient, LoadRequests, RequestTarget, client
from bench.harness.report import Figure
from bench.harness.server import NO_JOBS, Server, hmi, running
from hmi.errors import HmiError
from hmi.model.memory import memory_left

ASKS = 20_000
MODULE_BYTES = 1 << 20
"""About what a model in memory takes at most, its executor's form included."""


def steps(plan: ServePlan) -> int:
    return len(_pools(plan)) * (1 + len(SHAPES) * plan.runs)


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield ratios to one tenant's throughput: by the clock, and by the server's CPU time an answer."""
    guard(home)
    for pool in _pools(plan):
        report(f"http flat, {pool}: starting")
        options, size = [*NO_JOBS], plan.tenants * MODULE_BYTES
        if pool == "pool_of_all":
            options += ["--pool-bytes", str(size)]
            if size > MEMORY_SHARE * memory_left():
                yield Figure(
                    f"http_flat_{pool}", None, "x", why="not all models fit in this machine's memory"
                )
                continue
        with tempfile.TemporaryDirectory(prefix="hmi-bench-http-") as folder, client() as sender:
            with running(hmi(home.data, *options), Path(folder)) as server:
                wait_chosen(server, sender, home, plan.quick)
                if pool == "pool_of_all":
                    _ask_each(server, sender, _targets(server, home, max(plan.counts)))
                for shape in SHAPES:
                    rates = Throughputs(f"http_flat_{pool}_{shape}")
                    measured(plan, home, server, sender, shape, rates, report)
                    yield from rates.rows()


def _pools(plan: ServePlan) -> tuple[str, ...]:
    return POOLS[:1] if plan.quick else POOLS


def _targets(server: Server, home: Home, count: int) -> list[RequestTarget]:
    return [target(server.arm, home, i) for i in range(count)]


def measured(
    plan: ServePlan,
    home: Home,
    server: Server,
    sender: LoadClient,
    shape: Shape,
    rates: Throughputs,
    report: Report,
) -> None:
    """Measure all numbers of tenants in turn, and add them to `rates`. Raises HmiError if a call fails."""
    bodies = [body(server.arm, [text]) for text in home.texts().of(None, TEXTS)]
    for count, tenants, warmed in rates.turns(plan, shape, ASKS, report):
        targets = _targets(server, home, count)
        _ask_each(server, sender, [targets[i] for i in warmed])
        time.sleep(0.0 if plan.quick else QUIET_S)
        pairs = [(tenant, i % TEXTS) for i, tenant in enumerate(tenants)]
        requests, before = LoadRequests(server.port, targets, bodies), server.cpu_s()
        seen = sender.closed(requests, pairs, seconds=plan.seconds, callers=plan.callers)
        rates.add(count, seen.a_second, seen.a_second, len(seen.ms) / (server.cpu_s() - before))
        if seen.failed:
            raise HmiError(f"{server.arm.name} answered with {seen.failed} (status: count): no rate")


def _ask_each(server: Server, sender: LoadClient, targets: list[RequestTarget]) -> None:
    requests = LoadRequests(server.port, targets, [body(server.arm, ["warm"])])
    sender.closed(requests, callers=16, least=len(targets))
