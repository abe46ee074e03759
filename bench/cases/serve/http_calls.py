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

from bench.cases.serve.http_fleet import DEFAULT, PRECISIONS, Fleet, body, fleet, guard, slug
from bench.cases.serve.plan import Report, ServePlan
from bench.harness.home import Home
from bench.harness.load import LoadFigures
from bench.harness.report import Figure
from bench.harness.server import Server

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
class ArmValues:
    """One arm in one case: a value for each round."""

    seen: list[LoadFigures] = field(default_factory=list)
    cpu_ms: list[float] = field(default_factory=list)

    def figures(self, case: Case) -> dict[str, list[float]]:
        """The values of each of UNITS. Only several callers have a rate."""
        found = {"p50": [seen.at(0.5) for seen in self.seen], "cpu": self.cpu_ms}
        return found if case.callers == 1 else {**found, "a_second": [s.a_second for s in self.seen]}


UNITS = {"p50": "ms", "cpu": "ms of CPU a call", "a_second": "texts/s"}
Arms = dict[str, ArmValues]


def steps(plan: ServePlan) -> int:
    return 1 + (len(CASES) + 1) * plan.runs


def measure(plan: ServePlan, home: Home, report: Report) -> Iterator[Figure]:
    """Yield each arm's times, and HMI's divided by LitServe's: medians of the rounds' ratios."""
    report("http: starting the servers")
    guard(home)
    missing: list[Figure] = []
    with tempfile.TemporaryDirectory(prefix="hmi-bench-http-") as folder:
        with fleet(plan, home, Path(folder), missing) as found:
            yield from missing
            for case in CASES:
                arms = measured(plan, case, found, report)
                yield from times(case, arms, plan.runs)
                yield from ratios(case, arms, plan.runs, found.chosen)
            yield from _own_work(plan, found, report)


def measured(plan: ServePlan, case: Case, found: Fleet, report: Report) -> Arms:
    """Measure all arms in turn, each round in another order."""
    texts, draw = found.home.texts(), np.random.default_rng(3)
    calls = [texts.of(case.tokens, case.texts) for _ in range(BODIES * case.callers)]
    arms: Arms = {server.arm.name: ArmValues() for server in found.servers}
    for turn in range(plan.runs):
        report(f"http, {case.name}: {turn + 1} of {plan.runs}")
        for i in draw.permutation(len(found.servers)):
            server = found.servers[i]
            bodies = [body(server.arm, call) for call in calls]
            seen, cpu_s = found.load(server, bodies, plan.seconds * case.share, case.callers)
            arms[server.arm.name].seen.append(seen)
            arms[server.arm.name].cpu_ms.append(cpu_s * 1e3)
    return arms


def times(case: Case, arms: Arms, runs: int) -> Iterator[Figure]:
    """Yield each arm's times: medians of the rounds."""
    for name, m in arms.items():
        at = f"http_{case.name}_{slug(name)}"
        for figure, values in m.figures(case).items():
            yield Figure(f"{at}_{figure}", round(statistics.median(values), 2), UNITS[figure], runs=runs)
        failures = sum(seen.failures for seen in m.seen)
        if failures:
            yield Figure(f"{at}_failed", failures, "calls", 0, False, runs)


def ratios(case: Case, arms: Arms, runs: int, chosen: str) -> Iterator[Figure]:
    """Yield HMI ÷ the faster mode of LitServe: in the default precision, and at equal precision."""
    pairs = [(DEFAULT, "int8")] + [(f"HMI {p}", p) for p in PRECISIONS]
    for ours, precision in pairs:
        peers = [arm for name, arm in arms.items() if name.startswith(f"LitServe {precision}")]
        if ours not in arms or not peers:
            continue
        named = "default" if ours == DEFAULT else precision
        against = f"LitServe {precision}" + (f", HMI: {chosen}" if ours == DEFAULT else "")
        for figure, mine in arms[ours].figures(case).items():
            name = f"http_{case.name}_{named}_over_litserve_{precision}"
            name, goal = (name, case.goal) if figure == "p50" else (f"{name}_{figure}", None)
            each = zip(*(peer.figures(case)[figure] for peer in peers), strict=True)
            best = map(max if figure == "a_second" else min, each)
            value = statistics.median(own / other for own, other in zip(mine, best, strict=True))
            yield Figure(name, round(value, 3), "x", goal, False, runs, against)


def _own_work(plan: ServePlan, found: Fleet, report: Report) -> Iterator[Figure]:
    """Yield what the server does beside retrieval and the executor, divided by the executor's time.

    Two ways: the process's CPU time, and that of all threads but the one that computes. The first subtracts
    times by the clock, so it holds on a quiet machine only.
    """
    texts, server = found.home.texts(), found.servers[0]
    shares: dict[tuple[str, str], list[float]] = {}
    for turn in range(plan.runs):
        report(f"http, own work: {turn + 1} of {plan.runs}")
        for case in CASES:
            if case.texts == 1:
                continue
            bodies = [body(server.arm, texts.of(case.tokens, case.texts)) for _ in range(BODIES)]
            before, threads = stages(server), server.threads_cpu_s()
            _, cpu_s = found.load(server, bodies, plan.seconds * case.share)
            after = stages(server)
            busy = [cpu - threads.get(t, 0.0) for t, cpu in server.threads_cpu_s().items()]
            calls, compute, retrieve = (
                after[name] - before[name] for name in ("calls", "compute", "retrieve")
            )
            own = (cpu_s * calls - compute - retrieve) / compute
            shares.setdefault((case.name, "own_cpu"), []).append(own)
            shares.setdefault((case.name, "other_threads"), []).append(sum(busy) / max(busy) - 1)
    for (name, how), values in shares.items():
        goal, value = OWN_WORK_GOAL if how == "own_cpu" else None, round(statistics.median(values), 3)
        why = "the machine was busy: the executor took longer by the clock than the process's CPU time"
        shown, reason = (value, None) if value > 0 else (None, why)
        unit = "of the executor's time"
        yield Figure(f"http_{name}_{how}_of_compute", shown, unit, goal, False, plan.runs, why=reason)


def stages(server: Server) -> dict[str, float]:
    """Return the seconds in compute and in retrieval since a halted server's start, and the calls."""
    with server.awake():
        time.sleep(SCRAPE_S)
        text = server.get("/metrics")
    found = {}
    for stage in ("compute", "retrieve"):
        (value,) = re.findall(rf'hmi_stage_seconds_sum{{stage="{stage}"}} (\S+)', text)
        found[stage] = float(value)
    counted = re.findall(r'hmi_requests_total{outcome="ok",route="[^"]*/infer/[^"]*"} (\S+)', text)
    found["calls"] = sum(map(float, counted))
    return found
