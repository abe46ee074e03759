"""Runs each flood: the quiet tenant is measured alone, then under the flood. Two checkouts alternate."""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bench.cases.floods.kinds import FLOODS, Flood
from bench.cases.floods.server import Home, Running, build, running
from bench.cases.floods.watch import Seen, watch
from bench.harness.report import Row
from hmi.errors import InvalidInput

HEALTHY_MS = 200.0
GOAL_P50 = 2.0
GOAL_P99 = 1.1
GOAL_MEMORY = 1.5
SETTLE_S = 2.0
"""Seconds from the flood's start to the first measurement, and from its end to the next."""


@dataclass(frozen=True)
class Plan:
    """The measurements of a run: `seconds` alone and `seconds` under each flood, `rounds` times.

    `beside` is a second checkout to measure in turn with this one.
    """

    only: tuple[str, ...] = ()
    seconds: float = 10.0
    rounds: int = 3
    beside: Path | None = None

    def floods(self) -> dict[str, Flood]:
        unknown = sorted({*self.only} - {*FLOODS})
        if unknown:
            raise InvalidInput(
                f"there is no flood {unknown[0]!r}: use one of {', '.join(FLOODS)}", field="only"
            )
        return {name: flood for name, flood in FLOODS.items() if not self.only or name in self.only}


def run(plan: Plan, report: Callable[[str], None]) -> list[Row]:
    """Measure. `report` gets a line as each step begins."""
    floods = plan.floods()
    with tempfile.TemporaryDirectory() as folder:
        report("two tenants with a model each")
        sides = {"": build(_made(Path(folder) / "this"), None)}
        if plan.beside is not None:
            report("the same, beside")
            sides["beside_"] = build(_made(Path(folder) / "beside"), plan.beside.resolve())
        rows: list[Row] = []
        for name, flood in floods.items():
            rows += _measure(name, flood, sides, plan, report)
    return rows


def _measure(
    name: str, flood: Flood, sides: dict[str, Home], plan: Plan, report: Callable[[str], None]
) -> Iterator[Row]:
    turns: dict[str, list[tuple[Seen, Seen]]] = {side: [] for side in sides}
    with ExitStack() as stack:
        servers = {
            side: stack.enter_context(running(home, flood.descriptors)) for side, home in sides.items()
        }
        for server, home in zip(servers.values(), sides.values(), strict=True):
            watch(server, home.keys["quiet"], 1.0)
        for turn in range(plan.rounds):
            for side, server in servers.items():
                report(f"{flood.what}: turn {turn + 1} of {plan.rounds}{' beside' if side else ''}")
                turns[side].append(_turn(name, server, sides[side], plan.seconds))
    for side, seen in turns.items():
        yield from _rows(f"{side}{name}", flood.what, seen)


def _turn(name: str, server: Running, home: Home, seconds: float) -> tuple[Seen, Seen]:
    alone = watch(server, home.keys["quiet"], seconds)
    with _flooding(name, server, home.keys["flood"]):
        time.sleep(SETTLE_S)
        under = watch(server, home.keys["quiet"], seconds)
    time.sleep(SETTLE_S)
    return alone, under


def _rows(name: str, what: str, turns: list[tuple[Seen, Seen]]) -> Iterator[Row]:
    def row(measure: str, values: list[float], unit: str, goal: float | None = None) -> Row:
        value = round(statistics.median(values), 2)
        return Row(
            f"{name}_{measure}", value, unit, goal, False, sum(u.answers for _, u in turns), f"alone; {what}"
        )

    yield row("p50_over_alone", [u.p50 / a.p50 for a, u in turns], "x", GOAL_P50)
    yield row("p99_over_alone", [u.p99 / a.p99 for a, u in turns], "x", GOAL_P99)
    yield row("p50", [u.p50 for _, u in turns], "ms")
    yield row("p99", [u.p99 for _, u in turns], "ms")
    yield row("failed", [u.failed / (u.failed + u.answers) for _, u in turns], "of the requests", 0.0)
    yield row("health_p99", [u.health_p99 for _, u in turns], "ms")
    yield row("health_worst", [u.health_worst for _, u in turns], "ms", HEALTHY_MS)
    # The first turn's memory alone is the server's before it saw any flood.
    yield row("memory_over_before", [max(u.memory for _, u in turns) / turns[0][0].memory], "x", GOAL_MEMORY)


@contextmanager
def _flooding(name: str, server: Running, key: str) -> Iterator[None]:
    child = subprocess.Popen(
        [sys.executable, "-m", "bench.cases.floods.clients", name, str(server.port)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(f"{key}\n")
        child.stdin.flush()
        assert child.stdout.readline() == "ready\n", "the flood's process says when it begins"
        yield
    finally:
        child.kill()
        child.communicate()


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True)
    return folder
