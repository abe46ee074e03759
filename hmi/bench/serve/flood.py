"""A quiet tenant beside one that floods the server: goal, its p99 grows by at most a tenth."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from hmi.bench.floods.kinds import short_texts
from hmi.bench.report import Row, quantile
from hmi.bench.serve.home import Home
from hmi.bench.serve.http_driver import Client, Seen, client
from hmi.bench.serve.http_fleet import guard, wait_chosen
from hmi.bench.serve.http_servers import Server, hmi, running
from hmi.bench.serve.plan import Plan, Report

GOAL = 1.1
QUIET, FLOODER = 0, 1
"""The tenants."""
A_SECOND = 40.0
"""Texts a second that the quiet tenant sends, at random times."""
FLOODS = {"calls_of_32_texts": (32, 8), "calls_of_1024_texts": (1024, 4)}
"""Texts of a call, and callers that each send one call after another."""
SETTLE_S = 0.3
"""Time from the flood's start to the measurement."""


def steps(plan: Plan) -> int:
    return 1 + len(FLOODS) * plan.runs


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield the quiet tenant's times, alone and beside the flood.

    They are measured in short turns. The times of all rounds count together.
    """
    report("flood: starting")
    guard(home)
    with tempfile.TemporaryDirectory(prefix="hmi-bench-flood-") as folder, client() as sender:
        with running(hmi(home.data), Path(folder)) as server, client() as flooder:
            wait_chosen(plan, server, sender, home)
            for name in FLOODS:
                yield from _measured(plan, home, server, (sender, flooder), name, report)


def _measured(
    plan: Plan, home: Home, server: Server, clients: tuple[Client, Client], name: str, report: Report
) -> Iterator[Row]:
    """Measure one flood. `clients` are the quiet tenant's and the flooding tenant's."""
    sender, flooder = clients
    alone: list[Seen] = []
    beside: list[Seen] = []
    for turn in range(plan.runs):
        report(f"flood, {name}: {turn + 1} of {plan.runs}")
        alone.append(_quiet(plan, home, server, sender, 2 * turn))
        _begin(home, server, flooder, name, plan.seconds + SETTLE_S)
        time.sleep(SETTLE_S)
        beside.append(_quiet(plan, home, server, sender, 2 * turn + 1))
        flooder.end()
    yield from _rows(name, alone, beside)


def _quiet(plan: Plan, home: Home, server: Server, sender: Client, seed: int) -> Seen:
    """Send one short text at each of random times, for the plan's seconds."""
    draw = np.random.default_rng(seed)
    count = max(2, int(plan.seconds * A_SECOND))
    at = np.sort(draw.uniform(0.0, plan.seconds, count)).tolist()
    bodies = [server.arm.body([text]) for text in short_texts(count)]
    arrivals = [(second, 0, i) for i, second in enumerate(at)]
    return sender.opened(server.port, [server.arm.target(home, QUIET)], bodies, arrivals)


def _begin(home: Home, server: Server, flooder: Client, name: str, seconds: float) -> None:
    texts, callers = FLOODS[name]
    target, body = server.arm.target(home, FLOODER), server.arm.body(short_texts(texts))
    flooder.begin(server.port, [target], [body], turn=[(0, 0)], callers=callers, seconds=seconds, least=1)


def _rows(name: str, alone: list[Seen], beside: list[Seen]) -> Iterator[Row]:
    runs = len(alone)
    quiet = [ms for seen in alone for ms in seen.ms]
    under = [ms for seen in beside for ms in seen.ms]
    for share, goal in ((0.5, None), (0.99, GOAL)):
        at = f"flood_{name}_quiet_p{share * 100:.0f}"
        ratio = round(quantile(under, share) / quantile(quiet, share), 3)
        yield Row(f"{at}_over_alone", ratio, "x", goal, False, runs, "the same tenant alone")
        yield Row(f"{at}_alone", round(quantile(quiet, share), 2), "ms", runs=runs)
        yield Row(at, round(quantile(under, share), 2), "ms", runs=runs)
    failed = sum(sum(seen.failed.values()) for seen in beside)
    yield Row(f"flood_{name}_quiet_failed", failed, "requests", 0, False, runs)
