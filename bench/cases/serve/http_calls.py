"""Calls over HTTP beside LitServe and infinity: the time at the client, and the server's CPU time."""

from __future__ import annotations

import re
import statistics
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.cases.serve.http_driver import Seen
from bench.cases.serve.http_fleet import DEFAULT, PRECISIONS, Fleet, fleet, guard, slug
from bench.cases.serve.http_servers import Server
from bench.cases.serve.plan import Plan, Report
from bench.harness.home import Home
from bench.harness.report import Row

BODIES = 32
"""Calls with different texts of a case."""
SCRAPE_S = 1.05
"""The server's metrics are up to a second old."""
OWN_WORK_GOAL = 0.1
CALLERS = 32


@dataclass(frozen=True)
class Case:
    """One kind of call. `share` of the plan's seconds is the length of a measurement.

    goal: the most that HMI's time may be, divided by LitServe's.
    """

    name: str
    tokens: int | None
    texts: int
    share: float
    goal: float | None = None
    callers: int = 1


CASES = (
    Case("1_text_of_14", 14, 1, 0.25, 1.0),
    Case("1_text_of_34", 34, 1, 0.25, 1.0),
    Case("16_texts_of_110", 110, 16, 0.6, 0.5),
    Case("16_texts_of_real_lengths", None, 16, 0.4),
    Case(f"{CALLERS}_callers_of_real_lengths", None, 1, 1.0, None, CALLERS),
)


@dataclass
class Measured:
    """One arm in one case: a value for each round."""

    p50: list[float] = field(default_factory=list)
    p95: list[float] = field(default_factory=list)
    a_second: list[float] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, seen: Seen, cpu_s: float) -> None:
        self.p50.append(seen.at(0.5))
        self.p95.append(seen.at(0.95))
        self.a_second.append(seen.a_second)
        self.cpu_ms.append(cpu_s * 1e3)
        self.failed += sum(seen.failed.values())


Arms = dict[str, Measured]


def steps(plan: Plan) -> int:
    return 1 + (len(CASES) + 1) * plan.runs


def measure(plan: Plan, home: Home, report: Report) -> Iterator[Row]:
    """Yield each arm's times, and HMI's divided by LitServe's: medians of the rounds' ratios."""
    report("http: starting the servers")
    guard(home)
    missing: list[Row] = []
    with tempfile.TemporaryDirectory(prefix="hmi-bench-http-") as folder:
        with fleet(plan, home, Path(folder), missing) as found:
            yield from missing
            for case in CASES:
                arms = _measured(plan, case, found, report)
                yield from _times(case, arms, plan.runs)
                yield from _ratios(case, arms, plan.runs, found.chosen)
            yield from _own_work(plan, found, report)


def _measured(plan: Plan, case: Case, found: Fleet, report: Report) -> Arms:
    texts, draw = found.home.texts(), np.random.default_rng(3)
    calls = [texts.of(case.tokens, case.texts) for _ in range(BODIES * case.callers)]
    arms: Arms = {server.arm.name: Measured() for server in found.servers}
    for turn in range(plan.runs):
        report(f"http, {case.name}: {turn + 1} of {plan.runs}")
        for i in draw.permutation(len(found.servers)):
            server = found.servers[i]
            bodies = [server.arm.body(call) for call in calls]
            arms[server.arm.name].add(*found.load(server, bodies, plan.seconds * case.share, case.callers))
    return arms


def _times(case: Case, arms: Arms, runs: int) -> Iterator[Row]:
    for name, m in arms.items():
        at = f"http_{case.name}_{slug(name)}"
        if case.callers > 1:
            yield Row(f"{at}_a_second", round(statistics.median(m.a_second), 1), "texts/s", runs=runs)
        yield Row(f"{at}_p50", round(statistics.median(m.p50), 2), "ms", runs=runs)
        yield Row(f"{at}_p95", round(statistics.median(m.p95), 2), "ms", runs=runs)
        yield Row(f"{at}_cpu", round(statistics.median(m.cpu_ms), 2), "ms of CPU a call", runs=runs)
        if m.failed:
            yield Row(f"{at}_failed", m.failed, "calls", 0, False, runs)


def _ratios(case: Case, arms: Arms, runs: int, chosen: str) -> Iterator[Row]:
    """Yield HMI ÷ the faster mode of LitServe: in the default precision, and at equal precision."""
    peers = {p: [n for n in arms if n.startswith(f"LitServe {p}")] for p in PRECISIONS}
    pairs = [(DEFAULT, "int8")] + [(f"HMI {p}", p) for p in PRECISIONS]
    for ours, precision in pairs:
        if ours not in arms or not peers[precision]:
            continue
        named = "default" if ours == DEFAULT else precision
        against = f"LitServe {precision}" + (f", HMI: {chosen}" if ours == DEFAULT else "")
        best = [min(arms[n].p50[i] for n in peers[precision]) for i in range(runs)]
        ratio = statistics.median(o / b for o, b in zip(arms[ours].p50, best, strict=True))
        row = f"http_{case.name}_{named}_over_litserve_{precision}"
        yield Row(row, round(ratio, 3), "x", case.goal, False, runs, against)
        least = [min(arms[n].cpu_ms[i] for n in peers[precision]) for i in range(runs)]
        cpu = statistics.median(o / b for o, b in zip(arms[ours].cpu_ms, least, strict=True))
        yield Row(f"{row}_cpu", round(cpu, 3), "x", runs=runs, peer=against)
        if case.callers > 1:
            most = [max(arms[n].a_second[i] for n in peers[precision]) for i in range(runs)]
            rate = statistics.median(o / b for o, b in zip(arms[ours].a_second, most, strict=True))
            yield Row(f"{row}_a_second", round(rate, 3), "x", runs=runs, peer=against)


def _own_work(plan: Plan, found: Fleet, report: Report) -> Iterator[Row]:
    """Yield what the server does beside retrieval and the executor, divided by the executor's time.

    Three ways: the process's CPU time, the client's time, and the CPU time of all threads but the one that
    computes. The first two subtract times by the clock, so they hold on a quiet machine only.
    """
    texts = found.home.texts()
    server = found.servers[0]
    cases = [case for case in CASES if case.texts > 1]
    shares: dict[tuple[str, str], list[float]] = {}
    for turn in range(plan.runs):
        report(f"http, own work: {turn + 1} of {plan.runs}")
        for case in cases:
            bodies = [server.arm.body(texts.of(case.tokens, case.texts)) for _ in range(BODIES)]
            before, threads = _stages(server), server.threads_cpu_s()
            seen, cpu_s = found.load(server, bodies, plan.seconds * case.share)
            after = _stages(server)
            busy = [cpu - threads.get(t, 0.0) for t, cpu in server.threads_cpu_s().items()]
            calls = after["calls"] - before["calls"]
            compute = (after["compute"] - before["compute"]) / calls
            retrieve = (after["retrieve"] - before["retrieve"]) / calls
            found_now = {
                "own_cpu": (cpu_s - compute - retrieve) / compute,
                "own_time": (seen.at(0.5) / 1e3 - compute - retrieve) / compute,
                "other_threads": sum(busy) / max(busy) - 1,
            }
            for how, share in found_now.items():
                shares.setdefault((case.name, how), []).append(share)
    for (name, how), values in shares.items():
        goal, row = OWN_WORK_GOAL if how == "own_cpu" else None, f"http_{name}_{how}_of_compute"
        value, unit = round(statistics.median(values), 3), "of the executor's time"
        if value > 0:
            yield Row(row, value, unit, goal, False, plan.runs)
        else:
            why = "the machine was busy: the executor took longer by the clock than the process's CPU time"
            yield Row(row, None, unit, goal, False, plan.runs, why=why)


def _stages(server: Server) -> dict[str, float]:
    """Return the seconds in compute and in retrieval since the server's start, and the calls."""
    server.go_on()
    time.sleep(SCRAPE_S)
    text = server.get("/metrics")
    server.halt()
    found = {}
    for stage in ("compute", "retrieve"):
        (value,) = re.findall(rf'hmi_stage_seconds_sum{{stage="{stage}"}} (\S+)', text)
        found[stage] = float(value)
    counted = re.findall(r'hmi_requests_total{outcome="ok",route="[^"]*/infer/[^"]*"} (\S+)', text)
    found["calls"] = sum(map(float, counted))
    return found
