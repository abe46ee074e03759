"""Runs a soak: signals first, then the load. It keeps a record of each minute."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
import re
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

from bench.cases.quality.runs import RunFile
from bench.cases.serve.http_fleet import tenants
from bench.cases.soak.clients import Patient, hostile
from bench.cases.soak.figures import IDLE, figures
from bench.cases.soak.ground import FAULTS, Http, Report, SoakPlan, add_versions, connected, learn
from bench.cases.soak.kills import kill_rounds, tracebacks
from bench.cases.soak.writing import WRITING_BYTES, add_writers, learn_texts
from bench.harness.home import Home
from bench.harness.report import Figure
from bench.harness.server import Server, ServerArm, hmi, running
from hmi.core import now

CALLERS = 16
WATCH_S = 5.0
Keep = Callable[[dict[str, Any], dict[str, Any]], None]
"""Keeps a record of this run. The first argument says what it is a record of."""
IDLE_S = 30.0
"""Longest wait, after the load, until all of IDLE are 0."""


def run(plan: SoakPlan, report: Report, out: Path | None = None) -> list[Figure]:
    """Soak a server. out: the run adds a line to this file for each minute and each signal, and the figures
    are of all lines in it. None: the figures are of this run alone.

    Raises HmiError if the language model cannot be imported or a server does not start, StorageFull, Damaged
    (the file).
    """
    report(f"{plan.tenants} tenants with a model of two versions each, {plan.writers} that write")
    with tenants(plan.tenants, guarded=False) as (home, folder):
        add_versions(home)
        if plan.writers:
            add_writers(home, plan.source, plan.writers)
        kept, started = RunFile(out or folder / "soak.jsonl"), now()

        def keep(spec: dict[str, Any], record: dict[str, Any]) -> None:
            kept.put({"run": started, **spec}, record)

        arm = hmi(home.data, HMI_WRITING_BYTES=str(WRITING_BYTES))
        report("the answers of each version, alone")
        with running(arm, folder) as server:
            patient = asyncio.run(_learned(server, plan, home))
        if patient.writing is not None:
            keep({"texts": True}, {"told_apart": patient.writing.told_apart()})
        for spec, record in kill_rounds(arm, folder, patient, report):
            keep(spec, record)
        if plan.minutes:
            _load(arm, folder, patient, report, keep)
        return [*figures(plan, kept)]


async def _learned(server: Server, plan: SoakPlan, home: Home) -> Patient:
    """Return callers who know every right answer."""
    async with connected(server.port) as http:
        soil = await learn(http, plan, home)
        writing = await learn_texts(http, plan, home) if plan.writers else None
        return Patient(http, soil, writing, plan, random.Random(time.time_ns()))


def _load(arm: ServerArm, folder: Path, patient: Patient, report: Report, keep: Keep) -> None:
    with running(arm, folder) as server:
        asyncio.run(_soak(server, patient, report, keep))
    keep({"end": True}, {"tracebacks": tracebacks(server), "exit": server.process.returncode})


async def _soak(server: Server, patient: Patient, report: Report, keep: Keep) -> None:
    plan, left = patient.plan, 60 * patient.plan.minutes
    async with connected(server.port) as http:
        mine = patient.on(http)
        await mine.warm()
        async with _others(mine, server, report, keep), hostile(mine):
            while left > 0:
                capacity = await mine.closed(plan.calibration_s, CALLERS)
                report(
                    f"{capacity:.1f} calls a second beside the other work: the load is {plan.share:g} of it"
                )
                keep({"capacity": now()}, {"calls_s": round(capacity, 2)})
                stretch = min(left, plan.stretch_s)
                await mine.opened(stretch, plan.share * capacity)
                left -= stretch
        keep({"minute": None}, mine.taken().record())
        keep({"idle": True}, await _idle(http))


@asynccontextmanager
async def _others(patient: Patient, server: Server, report: Report, keep: Keep) -> AsyncIterator[None]:
    """Context manager: change versions and tenants, train, and watch while it is open. An error ends the
    soak."""
    works = (
        patient.change_versions(),
        patient.change_tenants(),
        patient.train(),
        _watch(patient, server),
        _minutes(patient, report, keep),
    )
    async with asyncio.TaskGroup() as group:
        tasks = [group.create_task(work) for work in works]
        yield
        for task in tasks:
            task.cancel()


async def _watch(patient: Patient, server: Server) -> None:
    while True:
        patient.seen.memory.append(server.memory())
        patient.seen.connections.append(connections_of(server.pid))
        await asyncio.sleep(min(WATCH_S, patient.plan.minute_s / 4))


def connections_of(pid: int) -> int:
    """Return the number of the process's open sockets: its connections, and a few of its own."""
    folder, count = f"/proc/{pid}/fd", 0
    for name in os.listdir(folder):
        with suppress(OSError):  # closed meanwhile
            count += os.readlink(f"{folder}/{name}").startswith("socket:")
    return count


async def _minutes(patient: Patient, report: Report, keep: Keep) -> None:
    """Keep and report a record of each minute. The caller takes what comes after the last whole minute."""
    begun = time.monotonic()
    for minute in itertools.count(1):
        await asyncio.sleep(begun + minute * patient.plan.minute_s - time.monotonic())
        record = patient.taken().record()
        keep({"minute": minute}, record)
        counts, (_, p99) = Counter(record["counts"]), record.get("ms", (0, 0))
        faults = ", ".join(f"{len(record[name])} {name}" for name in FAULTS)
        report(
            f"minute {minute}: {counts['answers']} answers, {counts['texts']} texts, "
            f"{counts['streams_accepted']} streams, {faults}, {sum(record['refused'].values())} refused, "
            f"{record['own_bytes'] >> 20} MiB, {record['connections']} connections, p99 {p99:.0f} ms"
        )


async def _idle(http: Http) -> dict[str, float]:
    """Wait until the server writes and holds nothing, or IDLE_S is over. Returns what it still does."""
    until = time.monotonic() + IDLE_S
    while True:
        metrics = await http.text("/metrics")
        found = {name: _gauge(metrics, name) for name in IDLE}
        if not any(found.values()) or time.monotonic() > until:
            return found
        await asyncio.sleep(1.1)  # the metrics are up to a second old


def _gauge(metrics: str, name: str) -> float:
    found = re.search(f"^{re.escape(name)} (\\S+)$", metrics, re.MULTILINE)
    assert found is not None, name
    return float(found[1])
