"""Runs a soak and reports its figures."""

from __future__ import annotations

import asyncio
import math
import os
import random
import statistics
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

import numpy as np

from bench.cases.serve.http_fleet import tenants
from bench.cases.soak.clients import Patient, hostile
from bench.cases.soak.ground import ClientFigures, SoakPlan, add_versions, connected, learn
from bench.harness.home import Home
from bench.harness.report import Figure
from bench.harness.server import Server, hmi, running

GOAL_GROWTH = 0.03
"""The most by which the server's memory may grow, as a fraction."""
CALLERS = 16
WATCH_S = 5.0
MIB = 1 << 20
Report = Callable[[str], None]


def run(plan: SoakPlan, report: Report) -> list[Figure]:
    """Soak a server. `report` gets a line as each step begins, and one a minute.

    Raises HmiError if the server does not start, StorageFull.
    """
    report(f"{plan.tenants} tenants with a model of two versions each")
    with tenants(plan.tenants, guarded=False) as (home, folder):
        add_versions(home)
        with running(hmi(home.data), folder) as server:
            return asyncio.run(_soak(plan, server, home, report))


async def _soak(plan: SoakPlan, server: Server, home: Home, report: Report) -> list[Figure]:
    seen = ClientFigures()
    async with connected(server.port) as http:
        report("the answers of each version, alone")
        patient = Patient(http, await learn(http, plan, home), plan, seen, random.Random(0))
        async with _others(patient, server), hostile(http, plan, seen, patient.soil):
            report("the capacity beside the other work")
            capacity = await patient.closed(plan.calibration_s, CALLERS)
            seen.late.clear()
            begun = time.monotonic()
            watching = asyncio.create_task(_report_minutes(begun, plan, seen, report))
            await patient.opened(60 * plan.minutes, plan.share * capacity)
            watching.cancel()
    return [*_counts(plan, seen, capacity), *_times(seen, begun), *memory_rows(plan, seen, begun)]


@asynccontextmanager
async def _others(patient: Patient, server: Server) -> AsyncIterator[None]:
    """Change, train and watch the memory while the context is open. An error of these ends the soak."""
    works = (
        patient.change_versions(),
        patient.change_tenants(),
        patient.train(),
        _watch(patient.seen, server),
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        yield
        for task in tasks:
            task.cancel()


async def _watch(seen: ClientFigures, server: Server) -> None:
    while True:
        seen.memory.append((time.monotonic(), server.memory().anonymous))
        seen.connections.append((time.monotonic(), connections_of(server.pid)))
        await asyncio.sleep(WATCH_S)


def connections_of(pid: int) -> int:
    """Return the number of the process's open sockets: its connections, and a few of its own."""
    folder, count = f"/proc/{pid}/fd", 0
    for name in os.listdir(folder):
        with suppress(OSError):  # closed meanwhile
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
    return count


async def _report_minutes(begun: float, plan: SoakPlan, seen: ClientFigures, report: Report) -> None:
    minute = 0
    while True:
        minute += 1
        await asyncio.sleep(begun + 60 * minute - time.monotonic())
        p99 = _p99(_between(seen.late, begun + 60 * minute - 60))
        report(
            f"minute {minute} of {plan.minutes:g}: {seen.answers} answers, {len(seen.wrong)} wrong, "
            f"{len(seen.lost)} lost, {seen.refused.total()} refused, "
            f"{seen.memory[-1][1] >> 20} MiB, {seen.connections[-1][1]} connections, p99 {p99:.0f} ms"
        )


def _counts(plan: SoakPlan, seen: ClientFigures, capacity: float) -> Iterator[Figure]:
    yield Figure("capacity", round(capacity, 1), "calls/s")
    yield Figure("load", round(plan.share * capacity, 1), "calls/s")
    yield Figure("answers_checked", seen.answers, "answers")
    for name, found in (("wrong", seen.wrong), ("lost", seen.lost)):
        yield Figure(name, len(found), "answers", 0, False, seen.answers, why="; ".join(found[:5]) or None)
    why = ", ".join(f"{what}: {count}" for what, count in seen.refused.most_common(8))
    yield Figure("refused", seen.refused.total(), "calls", 0, False, why=why or None)
    for what, counts in (("changes", seen.changes), ("hostile", seen.hostile)):
        for name, count in sorted(counts.items()):
            yield Figure(f"{what}_{name.replace(': ', '_').replace(' ', '_')}", count, "calls")


def _times(seen: ClientFigures, begun: float) -> Iterator[Figure]:
    every = [ms for _, ms in seen.late]
    for percent in (50, 99, 99.9):
        yield Figure(f"p{percent:g}", round(float(np.percentile(every, percent)), 1), "ms", runs=len(every))
    for minute in range(int((seen.late[-1][0] - begun) // 60) + 1):
        some = _between(seen.late, begun + 60 * minute, begun + 60 * minute + 60)
        yield Figure(f"p99_minute_{minute + 1}", round(_p99(some), 1), "ms", runs=len(some))


def memory_rows(plan: SoakPlan, seen: ClientFigures, begun: float) -> Iterator[Figure]:
    """Yield the memory in the minute after the load has settled, in the last minute, and the growth.

    The memory of calls under way stays with the process for the next ones. So it also grows when there are
    more connections than ever before, which the most of them before and after the first reading tell.
    """
    start = begun + min(plan.settle_s, 30 * plan.minutes)
    first = statistics.median(_between(seen.memory, start, start + 60))
    last = statistics.median(_between(seen.memory, seen.memory[-1][0] - 60))
    yield Figure("memory_settled", round(first / MIB, 1), "MiB")
    yield Figure("memory_at_the_end", round(last / MIB, 1), "MiB")
    before = [count for at, count in seen.connections if at < start + 60]
    yield Figure("most_connections_at_first", max(before), "connections")
    yield Figure(
        "most_connections_later", max(_between(seen.connections, start + 60), default=0), "connections"
    )
    yield Figure("memory_growth", round(last / first - 1, 4), "of it", GOAL_GROWTH, False)


def _between(series: Sequence[tuple[float, Any]], since: float, until: float = math.inf) -> list[Any]:
    return [value for at, value in series if since <= at < until]


def _p99(values: Sequence[float]) -> float:
    return float(np.percentile(values, 99)) if values else math.nan
