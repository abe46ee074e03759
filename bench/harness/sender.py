"""`bench.harness.sender`: sends requests to servers on this machine, and times the answers.

It is a process of its own, so that its work delays no server's thread. It reads one command a line from
standard input, a JSON object, and writes one line for each. Every server gets the same client: HTTP/1.1 over
connections that stay open, or over a new one for each request.
"""

from __future__ import annotations

import asyncio
import json
import re
import sys
from collections import deque
from typing import Any

_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)
LONGEST_S = 120.0
"""Seconds after the planned end. If answers are still missing then, the server has failed and the process
ends with an error."""
_LOST = 0
"""The status of a request whose connection was lost, or that was not answered in time."""


class HttpConnection(asyncio.Protocol):
    """One connection, which carries one request at a time."""

    def __init__(self) -> None:
        self._buffer = bytearray()
        self._waiting: asyncio.Future[int] | None = None
        self._transport: asyncio.Transport | None = None
        self.open = True

    @classmethod
    async def to(cls, port: int) -> HttpConnection:
        """Connect to a port of loopback. Raises OSError."""
        _, connection = await asyncio.get_running_loop().create_connection(cls, "127.0.0.1", port)
        return connection

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._buffer += data
        end = self._buffer.find(b"\r\n\r\n")
        if end < 0:
            return
        found = _LENGTH.search(self._buffer, 0, end + 2)
        if found is None:
            self.close()  # an answer in chunks: no server here sends one
        elif len(self._buffer) >= end + 4 + int(found[1]):
            status = int(self._buffer[9:12])
            self._buffer.clear()
            self._answer(status)

    def connection_lost(self, error: Exception | None) -> None:
        self.open = False
        self._answer(_LOST)

    def close(self) -> None:
        self.open = False
        if self._transport is not None:
            self._transport.abort()

    async def send(self, request: bytes) -> int:
        """Send a request. Returns the status of the answer, or _LOST."""
        if not self.open:
            return _LOST
        assert self._transport is not None
        self._waiting = asyncio.get_running_loop().create_future()
        self._transport.write(request)
        return await self._waiting

    def _answer(self, status: int) -> None:
        if self._waiting is not None and not self._waiting.done():
            self._waiting.set_result(status)


class SentRequests:
    """The requests of a command: each target (path, key, header) with each body. An empty body: a GET."""

    def __init__(self, command: dict[str, Any]) -> None:
        self._targets: list[dict[str, str]] = command["targets"]
        self._bodies: list[bytes] = [body.encode() for body in command["bodies"]]

    def of(self, target: int, body: int) -> bytes:
        to, sent = self._targets[target], self._bodies[body]
        head = f"{'POST' if sent else 'GET'} {to['path']} HTTP/1.1\r\nHost: 127.0.0.1\r\n"
        head += f"Authorization: Bearer {to['key']}\r\n" if to["key"] else ""
        head += f"{to['header']}\r\n" if to["header"] else ""
        head += f"Content-Type: application/json\r\nContent-Length: {len(sent)}\r\n" if sent else ""
        return f"{head}\r\n".encode() + sent


class AnswerTimes:
    """Times in milliseconds, in the order of the answers, and how many requests failed by status."""

    def __init__(self) -> None:
        self.ms: list[float] = []
        self.failed: dict[int, int] = {}

    @property
    def good(self) -> int:
        return len(self.ms) - sum(self.failed.values())

    def add(self, ms: float, status: int) -> None:
        self.ms.append(ms)
        if status != 200:
            self.failed[status] = self.failed.get(status, 0) + 1

    def seen(self, seconds: float, in_time: int) -> dict[str, Any]:
        return {"ms": self.ms, "failed": self.failed, "seconds": seconds, "in_time": in_time}


async def closed(command: dict[str, Any]) -> dict[str, Any]:
    """Let `callers` each send one request at a time for `seconds`, or longer until `least` are sent.

    `in_time` counts the good answers within the time. `ms` has the latency of later answers, too, so that
    slow ones are not missing. `think_s`: if it is given, each request has a connection of its own, whose
    making counts, and a caller pauses for so long between two; a connection that is refused or lost fails.
    """
    loop, answers = asyncio.get_running_loop(), AnswerTimes()
    requests, turn, port = SentRequests(command), command["turn"], command["port"]
    least, think_s, at, in_time = command["least"], command["think_s"], 0, 0
    kept = [None if think_s else await HttpConnection.to(port) for _ in range(command["callers"])]
    began = loop.time()
    until, last = began + command["seconds"], began

    async def caller(connection: HttpConnection | None) -> None:
        nonlocal at, last, in_time
        while at < least or loop.time() < until:
            request, at = requests.of(*turn[at % len(turn)]), at + 1
            sent = loop.time()
            if connection is None:
                status = await _once(port, request, command["timeout_s"])
            else:
                status = await connection.send(request)
            answers.add((loop.time() - sent) * 1e3, status)
            if loop.time() < until or len(answers.ms) <= least:
                in_time, last = in_time + (status == 200), loop.time()
            if connection is None:
                await asyncio.sleep(think_s)
            elif not connection.open:
                connection = await HttpConnection.to(port)
        if connection is not None:
            connection.close()

    async with asyncio.timeout_at(until + LONGEST_S):
        await asyncio.gather(*map(caller, kept))
    return answers.seen(max(last, until) - began, in_time)


async def _once(port: int, request: bytes, timeout_s: float) -> int:
    """Send a request on a new connection. Returns the status, or _LOST."""
    connection = None
    try:
        async with asyncio.timeout(timeout_s):
            connection = await HttpConnection.to(port)
            return await connection.send(request)
    except (TimeoutError, OSError):
        return _LOST
    finally:
        if connection is not None:
            connection.close()


async def opened(command: dict[str, Any]) -> dict[str, Any]:
    """Send each request at its time, whether or not earlier ones have been answered.

    `arrivals` are [second, target, body] in order of time. Latency counts from that second, even if the
    request had to wait for one of `connections`. A request that fails, or is not answered `grace` seconds
    after the last arrival, counts with the time until then.
    """
    loop, answers, requests = asyncio.get_running_loop(), AnswerTimes(), SentRequests(command)
    idle: deque[HttpConnection] = deque()
    places, waiting = asyncio.Semaphore(command["connections"]), set()
    arrivals = command["arrivals"]
    began = loop.time() + 0.05
    end = began + arrivals[-1][0] + command["grace"]

    async def one(due: float, request: bytes) -> None:
        status = _LOST
        try:
            async with asyncio.timeout_at(end), places:
                while idle and not idle[-1].open:
                    idle.pop()
                connection = idle.pop() if idle else await HttpConnection.to(command["port"])
                status = await connection.send(request)
                if connection.open:
                    idle.append(connection)
        except (TimeoutError, OSError):
            pass  # counted as lost, below
        answers.add(((loop.time() if status == 200 else end) - due) * 1e3, status)

    for second, target, body in arrivals:
        due = began + second
        await asyncio.sleep(due - loop.time())
        task = loop.create_task(one(due, requests.of(target, body)))
        waiting.add(task)
        task.add_done_callback(waiting.discard)
    await asyncio.gather(*waiting)
    for connection in idle:
        connection.close()
    return answers.seen(loop.time() - began, answers.good)


def main() -> None:
    for line in sys.stdin:
        command = json.loads(line)
        run = opened if "arrivals" in command else closed
        print(json.dumps(asyncio.run(run(command))), flush=True)


if __name__ == "__main__":
    main()
