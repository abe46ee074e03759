"""Ends servers by a signal under load, one after another on one data folder."""

from __future__ import annotations

import asyncio
import re
import subprocess
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from signal import SIGKILL, SIGTERM, Signals
from typing import Any

from bench.cases.soak.clients import Patient
from bench.cases.soak.ground import Report, connected
from bench.harness.server import Server, ServerArm, running

CALLERS = 12
LONG_EVERY, LONG_READERS, LONG_TOKENS = 4, 2, 1500
"""One of LONG_EVERY servers that get SIGTERM has LONG_READERS readers of LONG_TOKENS tokens. A stop does not
wait for so long a text."""
STOP_GOAL_S = 35.0
"""A stop may take so long: the server waits 26 s for answers, then a few seconds for connections."""
WAIT_S = 90.0
"""The longest wait for a server's first answers, and for its end."""
AFTER_S = 0.1
"""Seconds between two calls of a caller after the server got its signal."""


def kill_rounds(
    arm: ServerArm, folder: Path, patient: Patient, report: Report
) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """Run one server after another under load, and end each by a signal. Yields each round's key and record
    once the next server has started: `lacking` names the changes that the next server lacks.

    Raises Unavailable if a server does not start.
    """
    rounds = [(way, number) for number in range(patient.plan.kills) for way in (SIGKILL, SIGTERM)]
    before: tuple[dict[str, Any], dict[str, Any]] | None = None
    while before or rounds:
        with running(arm, folder) as server:
            lacking = asyncio.run(_lacking(server, patient))
            if before is not None:
                before[1]["lacking"] = lacking
                report(f"{before[0]['kill']} {before[0]['round'] + 1}: {_told(before[1])}")
                yield before
                before = None
            if not rounds:
                return
            way, number = rounds.pop(0)
            record = asyncio.run(_round(server, patient, way, number))
        record["tracebacks"] = tracebacks(server)
        before = {"kill": way.name, "round": number}, record


async def _round(server: Server, patient: Patient, way: Signals, number: int) -> dict[str, Any]:
    """Load a server, send it the signal, and wait for its end."""
    async with connected(server.port, once=True) as http:
        mine = patient.on(http)
        over = asyncio.Event()

        async def caller() -> None:
            while not over.is_set():
                await mine.ask()
                await asyncio.sleep(AFTER_S if mine.signalled else 0)

        works = [asyncio.create_task(caller()) for _ in range(CALLERS)]
        if mine.writing is not None and way is SIGTERM and number % LONG_EVERY == 0:
            long = [mine.read(mine.writing, LONG_TOKENS) for _ in range(LONG_READERS)]
            works += [asyncio.create_task(work) for work in long]
        changing = asyncio.create_task(mine.change_versions())
        await _answers(mine)
        await asyncio.sleep(mine.draw.uniform(*mine.plan.load_s))
        mine.signalled = way
        begun = time.monotonic()
        server.process.send_signal(way)
        code = await asyncio.to_thread(_ended, server.process)
        stop_s = time.monotonic() - begun
        over.set()
        await asyncio.gather(*works)
        changing.cancel()
        await asyncio.gather(changing, return_exceptions=True)
        return {**mine.taken().record(), "exit": code, "stop_s": round(stop_s, 1)}


async def _answers(patient: Patient) -> None:
    """Wait until a server has answered and streams a text, for WAIT_S at most."""
    wanted = {"answers", "streams_accepted"} if patient.writing is not None else {"answers"}
    until = time.monotonic() + WAIT_S
    while wanted - patient.seen.counts.keys() and time.monotonic() < until:
        await asyncio.sleep(AFTER_S)


def _ended(process: subprocess.Popen[bytes]) -> int | None:
    """Wait for the end of a process, and return its exit status; None if it does not end."""
    try:
        return process.wait(WAIT_S)
    except subprocess.TimeoutExpired:
        return None


async def _lacking(server: Server, patient: Patient) -> list[str]:
    """Return the acknowledged changes that a server lacks. From here on, the versions that it has are
    right."""
    lacking = []
    async with connected(server.port) as http:
        for standing in patient.standing:
            live = (await http.json("GET", f"/manage/models/{standing.path}"))["current"]
            if live not in standing.may:
                lacking.append(f"{standing.path} has version {live}, acknowledged was {sorted(standing.may)}")
            standing.may = {live}
    return lacking


def tracebacks(server: Server) -> list[str]:
    """Return each line of a server's log that has a traceback, with the traceback's last line."""
    found, lines = list[str](), server.log.read_text(errors="replace").splitlines()
    for entry in _entries(lines):
        if any("Traceback (most recent call last)" in line for line in entry):
            found.append(f"{entry[0]} {entry[-1]}")
    return found


def _entries(lines: list[str]) -> Iterator[list[str]]:
    """Yield the entries of a log. Each begins with a date."""
    begins = [at for at, line in enumerate(lines) if at == 0 or re.match(r"\d{4}-\d\d-\d\d ", line)]
    for begin, end in pairwise([*begins, len(lines)]):
        yield lines[begin:end]


def right_exit(way: str, code: int | None) -> bool:
    return code == (-SIGKILL if way == SIGKILL.name else 0)


def _told(record: dict[str, Any]) -> str:
    counts = record["counts"]
    faults = ", ".join(f"{len(record[name])} {name}" for name in ("wrong", "lost", "improper", "lacking"))
    return (
        f"{counts.get('answers', 0)} answers, {counts.get('texts', 0)} texts, "
        f"{counts.get('streams_accepted', 0)} streams, {faults}, exit {record['exit']} "
        f"after {record['stop_s']} s"
    )
