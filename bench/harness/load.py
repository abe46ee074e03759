"""Load over HTTP: callers that wait for their answers, or requests at given times, and what they saw.

The requests are sent by a process of its own, `bench.harness.sender`.
"""

from __future__ import annotations

import itertools
import json
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from typing import IO, Any

from bench.harness.report import quantile
from hmi.errors import HmiError

GRACE_S = 2.0
"""Time after the last arrival of open load in which answers are still awaited."""
CONNECTIONS = 256
"""Most connections of open load, as a gateway's pool has them."""
TIMEOUT_S = 10.0
"""Longest wait for an answer on a connection of its own."""


@dataclass(frozen=True)
class RequestTarget:
    """The target of a request: its path, its key, and one more header, `Name: value` ("" for none)."""

    path: str
    key: str = ""
    header: str = ""


@dataclass(frozen=True)
class LoadFigures:
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

    @property
    def failures(self) -> int:
        return sum(self.failed.values())

    def at(self, share: float) -> float:
        """The time within which `share` of the requests were answered. Raises HmiError without any."""
        return quantile(self.ms, share)


@dataclass(frozen=True)
class LoadRequests:
    """The requests of a command to the server on `port`: each target with each body. An empty body: a GET."""

    port: int
    targets: Sequence[RequestTarget]
    bodies: Sequence[str]


Turn = Sequence[tuple[int, int]]
"""Requests in turn, by the indices of their targets and bodies."""


class LoadClient:
    """A client process. One command runs at a time."""

    def __init__(self, given: IO[str], told: IO[str]) -> None:
        """given, told: the process's input and output."""
        self._given, self._told = given, told

    def closed(self, requests: LoadRequests, turn: Turn | None = None, **how: Any) -> LoadFigures:
        """Let callers each send one request at a time, and return what was seen: see `begin_closed`."""
        self.begin_closed(requests, turn, **how)
        return self.end()

    def begin_closed(
        self,
        requests: LoadRequests,
        turn: Turn | None = None,
        *,
        seconds: float = 0.0,
        callers: int = 1,
        least: int = 1,
        think_s: float = 0.0,
    ) -> None:
        """Let `callers` each begin to send one request at a time. `end` waits for what they saw.

        turn: used again and again; None: all requests. least: at least this many requests are sent, however
        long that takes. think_s: if it is not 0, each request has a connection of its own, and a caller
        pauses so long between two.
        """
        if turn is None:
            turn = list(itertools.product(range(len(requests.targets)), range(len(requests.bodies))))
        how = {"turn": turn, "seconds": seconds, "callers": callers, "least": least}
        self._begin(requests, **how, think_s=think_s, timeout_s=TIMEOUT_S)

    def opened(
        self,
        requests: LoadRequests,
        arrivals: Sequence[tuple[float, int, int]],
        *,
        connections: int = CONNECTIONS,
        grace_s: float = GRACE_S,
    ) -> LoadFigures:
        """Send each request at its time. `arrivals` are (second, target, body) in order of time."""
        self.begin_opened(requests, arrivals, connections=connections, grace_s=grace_s)
        return self.end()

    def begin_opened(
        self,
        requests: LoadRequests,
        arrivals: Sequence[tuple[float, int, int]],
        *,
        connections: int = CONNECTIONS,
        grace_s: float = GRACE_S,
    ) -> None:
        """Begin to send each request at its time, as `opened`. `end` waits for what was seen."""
        self._begin(requests, arrivals=arrivals, connections=connections, grace=grace_s)

    def _begin(self, requests: LoadRequests, **how: Any) -> None:
        self._given.write(json.dumps({**asdict(requests), **how}) + "\n")
        self._given.flush()

    def end(self) -> LoadFigures:
        """Return what was seen by the command that runs. Raises HmiError if its process has ended."""
        line = self._told.readline()
        if not line:
            raise HmiError("the client process ended: its error is above")
        return LoadFigures(**json.loads(line))


@contextmanager
def client() -> Iterator[LoadClient]:
    """Run a client process while the context is open."""
    with child("bench.harness.sender") as pipes:
        yield LoadClient(*pipes)


@contextmanager
def child(module: str, *arguments: str) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a module as a process while the context is open. Yields its input and its output."""
    with spoken([sys.executable, "-m", module, *arguments]) as pipes:
        yield pipes


@contextmanager
def spoken(command: Sequence[str], **options: Any) -> Iterator[tuple[IO[str], IO[str]]]:
    """Run a process while the context is open. Yields its input and its output.

    options: those of `subprocess.Popen`.
    """
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, **options)
    assert process.stdin is not None
    assert process.stdout is not None
    try:
        yield process.stdin, process.stdout
    finally:
        process.kill()
        process.communicate()
