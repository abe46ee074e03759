"""Measuring during a flood: the quiet tenant's latencies, the health calls, the server's memory."""

from __future__ import annotations

import http.client
import json
import statistics
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from bench.cases.floods.kinds import SENTENCE
from bench.cases.floods.server import Running
from bench.harness.report import quantile
from hmi.resident import resident

THINK_S = 0.02
"""Seconds between two requests of the quiet tenant, and between two health calls."""
TIMEOUT_S = 10.0
MIB = 1 << 20


@dataclass(frozen=True)
class Seen:
    """The measurements of one phase, in milliseconds and MiB.

    `failed` counts requests of the quiet tenant without a good answer.
    """

    p50: float
    p99: float
    answers: int
    failed: int
    health_p99: float
    health_worst: float
    memory: float
    """The most resident memory that was seen."""


def watch(server: Running, key: str, seconds: float) -> Seen:
    """Send short texts one after another, call /healthz and read the server's memory for `seconds`."""
    until = time.monotonic() + seconds
    health: list[float] = []
    memory = [_own_memory(server)]
    asking = threading.Thread(target=_timed, args=(health, lambda: _healthy(server), until))
    looking = threading.Thread(target=_look, args=(memory, server, until))
    for thread in (asking, looking):
        thread.start()
    times: list[float] = []
    failed = _timed(times, lambda: _infer(server, key), until)
    for thread in (asking, looking):
        thread.join()
    return Seen(
        p50=statistics.median(times),
        p99=quantile(times, 0.99),
        answers=len(times) - failed,
        failed=failed,
        health_p99=quantile(health, 0.99),
        health_worst=max(health),
        memory=max(memory),
    )


def _own_memory(server: Running) -> float:
    """Return the server's own resident memory in MiB, mapped files left out."""
    return resident(server.pid).anonymous / MIB


def _timed(times: list[float], work: Callable[[], bool], until: float) -> int:
    """Append the milliseconds of each `work()` to `times` until `until`. Returns how many failed."""
    failed = 0
    while not times or time.monotonic() < until:
        begun = time.monotonic()
        try:
            failed += not work()
        except (OSError, http.client.HTTPException):
            failed += 1
        times.append((time.monotonic() - begun) * 1e3)
        time.sleep(THINK_S)
    return failed


def _look(memory: list[float], server: Running, until: float) -> None:
    while time.monotonic() < until:
        memory.append(_own_memory(server))
        time.sleep(THINK_S)


def _infer(server: Running, key: str) -> bool:
    body = json.dumps({"inputs": SENTENCE}).encode()
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {key}"}
    return _exchange(server, "POST", "/infer/quiet.mood", body, headers)


def _healthy(server: Running) -> bool:
    return _exchange(server, "GET", "/healthz", None, {})


def _exchange(server: Running, method: str, path: str, body: bytes | None, headers: dict[str, str]) -> bool:
    """Send a request on a new connection, since accepting it is part of what is measured."""
    connection = http.client.HTTPConnection("127.0.0.1", server.port, timeout=TIMEOUT_S)
    try:
        connection.request(method, path, body, headers)
        answer = connection.getresponse()
        answer.read()
        return answer.status == 200
    finally:
        connection.close()
