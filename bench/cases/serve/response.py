"""Response times as in the paper's section 7.4: tenants at a constant rate until saturation, and a burst.

Requests are sent at their times whether or not earlier ones have been answered, and latency counts from
those times, so that a slow server cannot slow its own load.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from bench.cases.serve import http_models
from bench.cases.serve.curves import shares_svg, times_svg
from bench.cases.serve.http_driver import Client, Seen, client
from bench.cases.serve.http_fleet import absent, guard, halted, slug, wait_chosen
from bench.cases.serve.http_servers import Arm, Server, hmi, running
from bench.cases.serve.plan import Plan, Report
from bench.harness.home import Home, tenant_of
from bench.harness.report import Row
from hmi.errors import Unavailable

TENANTS = (10, 25, 50, 100, 150, 200, 300, 400, 600, 800, 1_200)
"""Numbers of tenants that send one text a second each."""
SATURATED_MS = 1_000.0
"""A server with a larger p95 is saturated: larger numbers are left out."""
IN_TIME_MS = 100.0
"""The p99 up to which a number of tenants counts as served."""
BURST_CLIENTS, BURST_EVERY_S, BURST_PERIOD_S, BURST_REQUESTS = 250, 0.05, 1.2, 12
"""A burst: clients, seconds between their starts, seconds between a client's requests, requests of a client.

These are the paper's numbers, except the last: the paper's clients send 50 requests each.
"""
RESIDENT = 16
"""Dedicated models that the baseline keeps in memory: in int8 they take 0.6 GB, as HMI's server does."""
SHARES = (0.5, 0.95, 0.99)
TEXTS = 256
PERCENTILES = ("p50", "p95", "p99")

Arrivals = list[tuple[float, int, int]]


@dataclass(frozen=True)
class Load:
    """A load: `arrivals` are (second, tenant, text)."""

    name: str
    tenants: int
    arrivals: Arrivals


def steps(plan: Plan) -> int:
    return 1 + (1 if plan.quick else 3) * (len(_numbers(plan)) + 1)


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield p50, p95 and p99 of each server by number of tenants and in the burst; draw them."""
    report("response times: starting the servers")
    guard(home)
    constant: dict[str, dict[int, Seen]] = {}
    burst: dict[str, Seen] = {}
    missing: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hmi-bench-response-") as folder:
        with client() as sender, ExitStack() as stack:
            servers = _started(plan, home, sender, Path(folder), stack, missing)
            yield from missing
            for number in _numbers(plan):
                for server in servers:
                    report(f"response times, {number} tenants: {server.arm.name}")
                    found = constant.setdefault(server.arm.name, {})
                    if all(seen.at(0.95) <= SATURATED_MS for seen in found.values()):
                        found[number] = _sent(home, server, sender, _constant(plan, number))
            for server in servers:
                report(f"response times, burst: {server.arm.name}")
                burst[server.arm.name] = _sent(home, server, sender, _burst(plan))
    for name, by_number in constant.items():
        for number, seen in by_number.items():
            yield from _times(f"response_constant_{number}_{slug(name)}", seen)
        served = [n for n, seen in by_number.items() if seen.at(0.99) <= IN_TIME_MS]
        yield Row(f"response_constant_served_{slug(name)}", max(served, default=0), "tenants", runs=1)
    for name, seen in burst.items():
        yield from _times(f"response_burst_{slug(name)}", seen)
    yield from _over_baselines(burst)
    if plan.plots is not None:
        _draw(plan.plots, constant, burst)


def _numbers(plan: Plan) -> Sequence[int]:
    return TENANTS[:1] if plan.quick else [n for n in TENANTS if n <= plan.tenants]


def _started(
    plan: Plan, home: Home, sender: Client, folder: Path, stack: ExitStack, missing: list[Row]
) -> list[Server]:
    """Start HMI and the baselines, and halt all of them."""
    servers = [stack.enter_context(running(hmi(home.data), folder))]
    wait_chosen(plan, servers[0], sender, home)
    servers[0].halt()
    if not plan.quick:
        servers += halted(_baselines(plan, folder / "models", missing), folder, stack, missing)
    return servers


def _baselines(plan: Plan, models: Path, missing: list[Row]) -> list[Arm]:
    """Return two baselines: one model for all tenants, which dedicated models cannot beat; a model for each.

    All dedicated models are links to one file. The file stays in the page cache, so no swap reads the disk.
    This favours the baseline.
    """
    try:
        http_models.write(plan.packages, models)
    except Unavailable as error:
        missing.append(absent("baselines", error))
        return []
    (models / "tenants").mkdir()
    for i in range(max(max(_numbers(plan)), BURST_CLIENTS)):
        os.link(models / "int8" / "model.onnx", models / "tenants" / f"{tenant_of(i)}.onnx")
    shared = http_models.litserve(models, "int8", plan.packages)
    return [shared, http_models.litserve_dedicated(models, RESIDENT, plan.packages)]


def _constant(plan: Plan, tenants: int) -> Load:
    """Return a load in which each tenant sends a text every second, from a random moment of the first second
    on."""
    draw = np.random.default_rng(tenants)
    first, seconds = draw.uniform(0.0, 1.0, tenants), max(1, round(2 * plan.seconds))
    sent = sorted((float(first[t]) + s, t) for t in range(tenants) for s in range(seconds))
    return Load("constant", tenants, [(at, t, i % TEXTS) for i, (at, t) in enumerate(sent)])


def _burst(plan: Plan) -> Load:
    """Return a load with one more client every BURST_EVERY_S. A client starts at a random moment of that
    time, and sends a text every BURST_PERIOD_S."""
    clients, requests = (4, 2) if plan.quick else (BURST_CLIENTS, BURST_REQUESTS)
    draw = np.random.default_rng(5)
    late = draw.uniform(0.0, BURST_EVERY_S, clients)
    period = 0.05 if plan.quick else BURST_PERIOD_S
    sent = sorted(
        (c * BURST_EVERY_S + float(late[c]) + r * period, c) for c in range(clients) for r in range(requests)
    )
    return Load("burst", clients, [(at, c, i % TEXTS) for i, (at, c) in enumerate(sent)])


def _sent(home: Home, server: Server, sender: Client, load: Load) -> Seen:
    """Send the load to a server that holds the tenants' models in memory, or as many of them as it may."""
    texts = home.texts().of(None, TEXTS)
    tenants = range(load.tenants)
    targets = [server.arm.target(home, i % home.tenants) for i in tenants]
    # A peer reads the tenant from the body, so each tenant has bodies of its own.
    each = {(t, x): server.arm.body([texts[x]], tenant_of(t)) for _, t, x in load.arrivals}
    bodies = list(dict.fromkeys(each.values()))
    at = {body: i for i, body in enumerate(bodies)}
    server.go_on()
    try:
        first = {t: (t, at[each[t, x]]) for _, t, x in load.arrivals}
        warm = list(first.values())[: RESIDENT if server.arm.path else None]
        sender.closed(server.port, targets, bodies, warm, seconds=0.0, callers=4, least=len(warm))
        return sender.opened(
            server.port, targets, bodies, [(s, t, at[each[t, x]]) for s, t, x in load.arrivals]
        )
    finally:
        server.halt()


def _times(name: str, seen: Seen) -> Iterator[Row]:
    why = f"failed: {seen.failed} (status: count)" if seen.failed else None
    for label, share in zip(PERCENTILES, SHARES, strict=True):
        yield Row(f"{name}_{label}", round(seen.at(share), 2), "ms", runs=len(seen.ms), why=why)


def _over_baselines(burst: dict[str, Seen]) -> Iterator[Row]:
    ours, *peers = burst.items()
    for name, seen in peers:
        for label, share in zip(PERCENTILES, SHARES, strict=True):
            value = round(ours[1].at(share) / seen.at(share), 3)
            row = f"response_burst_{label}_over_{slug(name)}"
            yield Row(row, value, "x", 1.0, False, len(seen.ms), name)


def _draw(folder: Path, constant: dict[str, dict[int, Seen]], burst: dict[str, Seen]) -> None:
    lines = {
        f"{name}, {label}": [(n, seen.at(share)) for n, seen in by_number.items()]
        for name, by_number in constant.items()
        for label, share in zip(PERCENTILES, SHARES, strict=True)
    }
    title = "response time (ms) by number of tenants, each a text a second"
    (folder / "response-constant.svg").write_text(times_svg(title, lines))
    samples = {name: seen.ms for name, seen in burst.items()}
    title = "a burst: share of requests answered within a time (ms)"
    (folder / "response-burst.svg").write_text(shares_svg(title, samples))
    common = set.intersection(*(set(by_number) for by_number in constant.values()))
    if common:
        number = max(common)
        samples = {name: by_number[number].ms for name, by_number in constant.items()}
        title = f"{number} tenants, each a text a second: share answered within a time (ms)"
        (folder / "response-constant-shares.svg").write_text(shares_svg(title, samples))
