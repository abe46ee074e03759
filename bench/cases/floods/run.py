"""Runs each flood: the quiet tenant is measured alone, then under the flood."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from bench.cases.floods.kinds import FLOODS, SENTENCE, Flood
from bench.cases.serve.http_fleet import body, copied, target, tenants
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, RequestTarget, child, client
from bench.harness.report import Figure, known
from bench.harness.server import Server, hmi, running

QUIET, FLOODER = 0, 1
"""The tenants. Each has the model `m`."""
HEALTHY_MS = 200.0
GOAL_P50 = 2.0
GOAL_P99 = 1.1
GOAL_MEMORY = 1.5
SETTLE_S = 2.0
"""Seconds from the flood's start to the first measurement, and from its end to the next."""
THINK_S = 0.02
"""Seconds between two requests of the quiet tenant, and between two health calls. Each has a connection of
its own, since accepting it is part of what is measured."""
MIB = 1 << 20


@dataclass(frozen=True)
class FloodPlan:
    """The measurements of a run: `seconds` alone and `seconds` under each flood, `rounds` times.

    `control`: each flood also goes to a second server, in turn. What the quiet tenant notices of that is the
    machine's doing, not its server's.
    """

    only: tuple[str, ...] = ()
    seconds: float = 10.0
    rounds: int = 3
    control: bool = False

    def floods(self) -> dict[str, Flood]:
        known(self.only, FLOODS)
        return {name: flood for name, flood in FLOODS.items() if not self.only or name in self.only}


@dataclass(frozen=True)
class Watched:
    """The measurements of one phase."""

    quiet: LoadFigures
    health: LoadFigures
    memory: float
    """The most of the server's own memory that was seen, in MiB, mapped files left out."""


@dataclass(frozen=True)
class FloodWatch:
    """Watches a server: the quiet tenant's texts, health calls and the server's memory, at once."""

    server: Server
    quiet: RequestTarget
    clients: tuple[LoadClient, LoadClient]

    def phase(self, seconds: float) -> Watched:
        """Send short texts one after another, call /healthz and read the server's memory for `seconds`."""
        until, memory = time.monotonic() + seconds, [self.server.memory().anonymous]
        text = body(self.server.arm, [SENTENCE])
        calls = ((self.quiet, text), (RequestTarget("/healthz"), ""))
        for sender, (to, sent) in zip(self.clients, calls, strict=True):
            request = LoadRequests(self.server.port, [to], [sent])
            sender.begin_closed(request, seconds=seconds, think_s=THINK_S)
        while time.monotonic() < until:
            memory.append(self.server.memory().anonymous)
            time.sleep(THINK_S)
        quiet, health = (sender.end() for sender in self.clients)
        return Watched(quiet, health, max(memory) / MIB)


def run(plan: FloodPlan, report: Callable[[str], None]) -> Iterator[Figure]:
    """Measure. `report` gets a line as each step begins. Raises InvalidInput for an unknown flood."""
    floods = plan.floods()
    report("two tenants with a model each")
    with tenants(2) as (home, folder):
        copy = copied(home, folder / "copy") if plan.control else None
        for name, flood in floods.items():
            with ExitStack() as stack:
                one, two = stack.enter_context(client()), stack.enter_context(client())
                server = stack.enter_context(running(hmi(home.data), folder, flood.descriptors))
                flooded = {"": server}
                if copy is not None:
                    flooded["machine_"] = stack.enter_context(running(hmi(copy, name="control"), folder))
                watch = FloodWatch(server, target(server.arm, home, QUIET), (one, two))
                watch.phase(1.0)
                turns: dict[str, list[tuple[Watched, Watched]]] = {prefix: [] for prefix in flooded}
                for turn in range(plan.rounds):
                    report(f"{flood.what}: turn {turn + 1} of {plan.rounds}")
                    alone = watch.phase(plan.seconds)
                    for prefix, its in flooded.items():
                        with flooding(name, its, home.key(FLOODER)):
                            time.sleep(SETTLE_S)
                            turns[prefix].append((alone, watch.phase(plan.seconds)))
                        time.sleep(SETTLE_S)
            for prefix, seen in turns.items():
                yield from _rows(f"{prefix}{name}", flood.what, seen)


def _rows(name: str, what: str, turns: list[tuple[Watched, Watched]]) -> Iterator[Figure]:
    answers = sum(len(u.quiet.ms) - u.quiet.failures for _, u in turns)

    def row(measure: str, values: list[float], unit: str, goal: float | None = None) -> Figure:
        value = round(statistics.median(values), 2)
        return Figure(f"{name}_{measure}", value, unit, goal, False, answers, f"alone; {what}")

    for label, share, goal in (("p50", 0.5, GOAL_P50), ("p99", 0.99, GOAL_P99)):
        yield row(f"{label}_over_alone", [u.quiet.at(share) / a.quiet.at(share) for a, u in turns], "x", goal)
        yield row(label, [u.quiet.at(share) for _, u in turns], "ms")
    failed = [u.quiet.failures / len(u.quiet.ms) for _, u in turns]
    yield row("failed", failed, "of the requests", 0.0)
    yield row("health_p99", [u.health.at(0.99) for _, u in turns], "ms")
    yield row("health_worst", [max(u.health.ms) for _, u in turns], "ms", HEALTHY_MS)
    # The first turn's memory alone is the server's before it saw any flood.
    yield row("memory_over_before", [max(u.memory for _, u in turns) / turns[0][0].memory], "x", GOAL_MEMORY)


@contextmanager
def flooding(name: str, server: Server, key: str) -> Iterator[None]:
    """Flood the server with the tenant's key while the context is open."""
    with child("bench.cases.floods.clients", name, str(server.port)) as (given, told):
        given.write(f"{key}\n")
        given.flush()
        assert told.readline() == "ready\n", "the flood's process says when it begins"
        yield
