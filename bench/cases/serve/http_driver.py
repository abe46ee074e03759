"""Drives the client process of `bench serve` from the benchmark's own process."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.harness.report import quantile
from hmi.errors import HmiError

GRACE_S = 2.0
"""Time after the last arrival of open load in which answers are still awaited."""
CONNECTIONS = 256
"""Most connections of open load, as a gateway's pool has them."""


@dataclass(frozen=True)
class Target:
    """The target of a request: its path, and its key ("" for none)."""

    path: str
    key: str = ""


@dataclass(frozen=True)
class Seen:
    """The client's measurements: milliseconds of each request, and how many requests failed.

    `in_time` counts the good answers within `seconds`.
    """

    ms: list[float]
    failed: dict[str, int]
    """Count by status; status 0: no answer."""
    seconds: float
    in_time: int

    @property
    def a_second(self) -> float:
        """Good answers a second."""
        return self.in_time / self.seconds

    def at(self, share: float) -> float:
        """The time within which `share` of the requests were answered. Raises HmiError without any."""
        return quantile(self.ms, share)


class Client:
    """A client process. One command runs at a time."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self._process = process

    def closed(
        self,
        port: int,
        targets: Sequence[Target],
        bodies: Sequence[str],
        turn: Sequence[tuple[int, int]],
        *,
        seconds: float,
        callers: int = 1,
        least: int = 1,
    ) -> Seen:
        """Let `callers` each send one request at a time, and return what was seen.

        turn: pairs (target, body), used again and again. least: at least this many requests are sent, however
        long that takes.
        """
        given = {"turn": turn, "callers": callers, "seconds": seconds, "least": least}
        self.begin(port, targets, bodies, **given)
        return self.end()

    def opened(
        self,
        port: int,
        targets: Sequence[Target],
        bodies: Sequence[str],
        arrivals: Sequence[tuple[float, int, int]],
    ) -> Seen:
        """Send each request at its time. `arrivals` are (second, target, body) in order of time."""
        given = {"arrivals": arrivals, "connections": CONNECTIONS, "grace": GRACE_S}
        self.begin(port, targets, bodies, **given)
        return self.end()

    def begin(self, port: int, targets: Sequence[Target], bodies: Sequence[str], **given: Any) -> None:
        """Start a command. `end` waits for its result."""
        where = {"port": port, "targets": [[t.path, t.key] for t in targets], "bodies": bodies}
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps({**where, **given}) + "\n")
        self._process.stdin.flush()

    def end(self) -> Seen:
        assert self._process.stdout is not None
        line = self._process.stdout.readline()
        if not line:
            raise HmiError("the client process ended: its error is above")
        return Seen(**json.loads(line))


@contextmanager
def client() -> Iterator[Client]:
    """Run a client process while the context is open."""
    command = [sys.executable, "-m", "bench.cases.serve.http_client"]
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        yield Client(process)
    finally:
        process.kill()
        process.communicate()
