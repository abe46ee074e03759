"""Throughput by number of tenants, over HTTP with each tenant's own key: goal, within 5% of one tenant's."""

from __future__ import annotations

import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from bench.cases.serve.http_fleet import body, guard, target, wait_chosen
from bench.cases.serve.plan import Plan, Report
from bench.cases.serve.traffic import SHAPES, Shape, tenants_in_turn
from bench.harness.home import Home
from bench.harness.load import Client, Target, client
from bench.harness.report import Row
from bench.harness.server import NO_JOBS, Server, hmi, running
from hmi.errors import HmiError
from hmi.model.memory import memory_left

GOAL = 0.95
TEXTS, ASKS = 512, 20_000
POOLS = ("default_pool", "pool_of_all")
MODULE_BYTES = 1 << 20
"""About what a model in memory takes at most, its executor's form included."""
MEMORY_SHARE = 0.7
"""The fraction of the machine's free memory that the models may take."""
WARMED = 1_000
"""At most this many tenants are asked before each measurement."""
QUIET_S = 1.1
"""Pause before each measurement: for a second, the queue keeps room for tenants that sent something."""

Rates = dict[int, list[tuple[float, float]]]
"""Answers a second and CPU seconds an answer in each round, by number of tenants."""


def steps(plan: Plan) -> int:
    return len(_pools(plan)) * (1 + len(SHAPES) * plan.runs)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield ratios to one tenant's throughput: by the clock, and by the server's CPU time an answer."""
    guard(home)
    for pool in _pools(plan):
        report(f"http flat, {pool}: starting")
        options, size = [*NO_JOBS], plan.tenants * MODULE_BYTES
        if pool == "pool_of_all":
            options += ["--pool-bytes", str(size)]
            if size > MEMORY_SHARE * memory_left():
                yield Row(f"http_flat_{pool}", None, "x", why="not all models fit in this machine's memory")
                continue
        with tempfile.TemporaryDirectory(prefix="hmi-bench-http-") as folder, client() as sender:
            with running(hmi(home.data, *options), Path(folder)) as server:
                wait_chosen(server, sender, home, plan.quick)
                if pool == "pool_of_all":
                    _ask_each(server, sender, _targets(server, home, max(plan.counts)))
                for shape in SHAPES:
                    name = f"{pool}_{shape}"
                    yield from rows(name, rates(plan, home, server, sender, name, shape, report))


def _pools(plan: Plan) -> tuple[str, ...]:
    return POOLS[:1] if plan.quick else POOLS


def _targets(server: Server, home: Home, count: int) -> list[Target]:
    return [target(server.arm, home, i) for i in range(count)]


def rates(
    plan: Plan, home: Home, server: Server, sender: Client, name: str, shape: Shape, report: Report
) -> Rates:
    """Measure all numbers of tenants in turn, each time in another order. Raises HmiError if a call fails."""
    found: Rates = {count: [] for count in plan.counts}
    bodies = [body(server.arm, [text]) for text in home.texts().of(None, TEXTS)]
    draw = np.random.default_rng(1)
    for turn in range(plan.runs):
        report(f"http flat, {name}: {turn + 1} of {plan.runs}")
        for count in draw.permutation(plan.counts).tolist():
            asked = tenants_in_turn(shape, count, ASKS, seed=turn).tolist()
            targets = _targets(server, home, count)
            warmed = range(count) if count <= WARMED else dict.fromkeys(asked[:WARMED])
            _ask_each(server, sender, [targets[i] for i in warmed])
            time.sleep(0.0 if plan.quick else QUIET_S)
            turns = [(tenant, i % TEXTS) for i, tenant in enumerate(asked)]
            before, how = server.cpu_s(), {"seconds": plan.seconds, "callers": plan.callers}
            seen = sender.closed(server.port, targets, bodies, turns, **how)
            found[count].append((seen.a_second, (server.cpu_s() - before) / len(seen.ms)))
            if seen.failed:
                raise HmiError(f"{server.arm.name} answered with {seen.failed} (status: count): no rate")
    return found


def _ask_each(server: Server, sender: Client, targets: list[Target]) -> None:
    turns = [(i, 0) for i in range(len(targets))]
    warm = [body(server.arm, ["warm"])]
    sender.closed(server.port, targets, warm, turns, seconds=0.0, callers=16, least=len(targets))


def rows(name: str, measured: Rates) -> Iterator[Row]:
    """Yield one tenant's rate, and the ratios of larger numbers of tenants to it."""
    one = measured[1]
    first = round(statistics.median(a_second for a_second, _ in one), 1)
    yield Row(f"http_flat_{name}_1", first, "texts/s", runs=len(one))
    for count, found in measured.items():
        if count == 1:
            continue
        by_clock = [f[0] / o[0] for f, o in zip(found, one, strict=True)]
        by_cpu = [o[1] / f[1] for f, o in zip(found, one, strict=True)]
        for how, ratios in (("", by_clock), ("_by_cpu", by_cpu)):
            value = round(statistics.median(ratios), 3)
            yield Row(f"http_flat_{name}_{count}_over_1{how}", value, "x", GOAL, True, len(one), "one tenant")
