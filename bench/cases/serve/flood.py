"""A quiet tenant beside one that floods the server: goal, its p99 grows by at most a tenth."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path

import numpy as np

from bench.cases.floods.kinds import short_texts
from bench.cases.serve.http_driver import Client, Seen, client
from bench.cases.serve.http_fleet import copied, guard, wait_chosen
from bench.cases.serve.http_servers import Server, hmi, running
from bench.cases.serve.plan import Plan, Report
from bench.harness.home import Home
from bench.harness.report import Row, quantile

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


@dataclass(frozen=True)
class Ground:
    """The running processes. The flood goes to `server`, or for comparison to `other`.

    `other` is a second server of the same kind, with a copy of the data: what the quiet tenant notices of its
    flood is the machine's doing, not the server's.
    """

    home: Home
    server: Server
    other: Server
    sender: Client
    flooder: Client


@dataclass
class Times:
    """The quiet tenant's answers in each of its turns: alone, beside the flood, beside a flood of the other
    server."""

    alone: list[Seen] = field(default_factory=list)
    beside: list[Seen] = field(default_factory=list)
    apart: list[Seen] = field(default_factory=list)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield the quiet tenant's times, alone and beside the flood.

    They are measured in short turns. The times of all rounds count together.
    """
    report("flood: starting")
    guard(home)
    with tempfile.TemporaryDirectory(prefix="hmi-bench-flood-", dir=home.folder) as given:
        folder = Path(given)
        copy = copied(home, folder / "data")
        with (
            client() as sender,
            client() as flooder,
            running(hmi(home.data), folder) as server,
            running(replace(hmi(copy), name="HMI, the other"), folder) as other,
        ):
            for each in (server, other):
                wait_chosen(plan, each, sender, home)
            ground = Ground(home, server, other, sender, flooder)
            for name in FLOODS:
                yield from _rows(name, _measured(plan, ground, name, report))


def _measured(plan: Plan, ground: Ground, name: str, report: Report) -> Times:
    """Measure one flood."""
    times = Times()
    for turn in range(plan.runs):
        report(f"flood, {name}: {turn + 1} of {plan.runs}")
        times.alone.append(_quiet(plan, ground, 3 * turn))
        times.beside.append(_beside(plan, ground, ground.server, name, 3 * turn + 1))
        times.apart.append(_beside(plan, ground, ground.other, name, 3 * turn + 2))
    return times


def _beside(plan: Plan, ground: Ground, flooded: Server, name: str, seed: int) -> Seen:
    """The quiet tenant's answers while a server is flooded."""
    texts, callers = FLOODS[name]
    target, body = flooded.arm.target(ground.home, FLOODER), flooded.arm.body(short_texts(texts))
    given = {"turn": [(0, 0)], "callers": callers, "seconds": plan.seconds + SETTLE_S, "least": 1}
    ground.flooder.begin(flooded.port, [target], [body], **given)
    time.sleep(SETTLE_S)
    seen = _quiet(plan, ground, seed)
    ground.flooder.end()
    return seen


def _quiet(plan: Plan, ground: Ground, seed: int) -> Seen:
    """Send one short text at each of random times, for the plan's seconds."""
    draw = np.random.default_rng(seed)
    count = max(2, int(plan.seconds * A_SECOND))
    at = np.sort(draw.uniform(0.0, plan.seconds, count)).tolist()
    server = ground.server
    bodies = [server.arm.body([text]) for text in short_texts(count)]
    arrivals = [(second, 0, i) for i, second in enumerate(at)]
    return ground.sender.opened(server.port, [server.arm.target(ground.home, QUIET)], bodies, arrivals)


def _rows(name: str, times: Times) -> Iterator[Row]:
    runs = len(times.alone)
    alone, beside, apart = (
        [ms for seen in some for ms in seen.ms] for some in (times.alone, times.beside, times.apart)
    )
    for share, goal in ((0.5, None), (0.99, GOAL)):
        at = f"flood_{name}_quiet_p{share * 100:.0f}"
        base, ms, machine = (quantile(some, share) for some in (alone, beside, apart))
        yield Row(f"{at}_over_alone", round(ms / base, 3), "x", goal, False, runs, "the same tenant alone")
        peer = "the same tenant beside a flood of another server on the machine"
        yield Row(f"{at}_over_machine", round(ms / machine, 3), "x", None, False, runs, peer)
        for kind, value in (("_alone", base), ("", ms), ("_machine", machine)):
            yield Row(f"{at}{kind}", round(value, 2), "ms", runs=runs)
    failed = sum(sum(seen.failed.values()) for seen in times.beside)
    yield Row(f"flood_{name}_quiet_failed", failed, "requests", 0, False, runs)
