"""Runs the phases: each load without the background job and with it, on one server for each column."""

from __future__ import annotations

import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from bench.cases.background.beside import Beside, training
from bench.cases.background.loads import TEXTS, Caller
from bench.cases.background.plan import COLUMNS, SATURATED, Column, Plan
from bench.cases.serve.http_driver import Seen, client
from bench.cases.serve.http_fleet import copied, guard, wait_chosen
from bench.cases.serve.http_servers import Arm, Server, running
from bench.cases.serve.plan import QUICK
from bench.cases.serve.plan import Plan as HomePlan
from bench.harness import home as homes

Report = Callable[[str], None]


@dataclass(frozen=True)
class Phase:
    """The figures of one phase, and the CPU time that it took."""

    seen: Seen
    server_cpu_s: float
    """The server's, for all calls together, without its job."""
    job_cpu: float
    """The job's CPU seconds a second."""


@dataclass
class Pairs:
    """The phases of one load and column, without the job and with it, pair by pair."""

    without: list[Phase] = field(default_factory=list)
    beside: list[Phase] = field(default_factory=list)


Found = dict[tuple[str, str], Pairs]
"""The pairs by load and column."""


def run(plan: Plan, report: Report) -> tuple[float, Found]:
    """Measure. `report` gets a line as each step begins. Returns the capacity in calls a second,
    and the pairs.

    Raises HmiError if a server does not start or a job ends early, StorageFull.
    """
    with tempfile.TemporaryDirectory(prefix="hmi-bench-background-") as given:
        folder = Path(given)
        report(f"a root and {plan.tenants} tenants with a model each")
        home = homes.build(replace(QUICK, tenants=plan.tenants), folder / "home")
        guard(home)
        texts = home.texts()
        caller_texts, job_texts = texts.of(None, TEXTS), texts.of(None, plan.rows)
        with client() as sender, ExitStack() as stack:
            caller = Caller(plan, home, sender, caller_texts)
            servers = {
                column.name: stack.enter_context(_server(column, caller, folder)) for column in COLUMNS
            }
            return _measured(_Bench(plan, caller, job_texts, servers, report))


@dataclass
class _Bench:
    plan: Plan
    caller: Caller
    job_texts: list[str]
    servers: dict[str, Server]
    report: Report
    capacity: float = 0.0
    found: Found = field(default_factory=dict)
    seed: int = 0

    def phase(self, server: Server, load: str, beside: Beside | None) -> Phase:
        """Run one phase after a pause."""
        time.sleep(self.plan.settle_s)
        shares = dict(zip(self.plan.loads, self.plan.shares, strict=False))
        self.seed += 1
        began, before, its_before = time.monotonic(), server.cpu_s(), beside.cpu_s() if beside else 0.0
        rate = self.capacity * shares.get(load, 1.0)
        seen = self.caller.send(server, load, rate, self.plan.seed + self.seed)
        its = (beside.cpu_s() if beside else 0.0) - its_before
        return Phase(seen, server.cpu_s() - before, its / (time.monotonic() - began))


def _measured(bench: _Bench) -> tuple[float, Found]:
    plan = bench.plan
    bench.report("the capacity")
    with _awake(bench.servers[COLUMNS[0].name]) as server:
        bench.phase(server, SATURATED, None)  # warms
        bench.capacity = bench.phase(server, SATURATED, None).seen.a_second
    for turn in range(plan.pairs):
        for column in COLUMNS:
            bench.report(f"{column.name}: pair {turn + 1} of {plan.pairs}")
            with _awake(bench.servers[column.name]) as server:
                _turn(bench, server, column, turn)
    return bench.capacity, bench.found


def _turn(bench: _Bench, server: Server, column: Column, turn: int) -> None:
    """Run all loads without the job and with it; every other turn begins with the job."""

    def without() -> None:
        for load in bench.plan.loads:
            bench.found.setdefault((load, column.name), Pairs()).without.append(
                bench.phase(server, load, None)
            )

    def beside() -> None:
        with training(server, bench.caller.home, bench.job_texts, f"b{turn}") as job:
            for load in bench.plan.loads:
                bench.found.setdefault((load, column.name), Pairs()).beside.append(
                    bench.phase(server, load, job)
                )

    for half in (beside, without) if turn % 2 else (without, beside):
        half()


@contextmanager
def _awake(server: Server) -> Iterator[Server]:
    """Let a halted server run while the context is open."""
    server.go_on()
    try:
        yield server
    finally:
        server.halt()


@contextmanager
def _server(column: Column, caller: Caller, folder: Path) -> Iterator[Server]:
    """Start a column's server on a copy of the home, and halt it."""
    data = copied(caller.home, folder / f"data-{column.percent}")
    command = (sys.executable, "-m", "hmi", "serve", "--data", str(data), "--port", "{port}")
    settings = {"HMI_BACKGROUND_JOBS": "all", "HMI_BACKGROUND_PERCENT": str(column.percent)}
    arm = Arm(f"HMI {column.name}", command, "/readyz", environment=settings)
    with running(arm, folder) as server:
        wait_chosen(HomePlan(), server, caller.client, caller.home)
        server.halt()
        yield server
