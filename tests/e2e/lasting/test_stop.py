"""SIGTERM under load: every complete request is answered, and slow clients do not delay the stop.

One round with few clients and little patience in `make test`, twenty with 24 clients and real times
in `make stress`.
"""

from __future__ import annotations

import asyncio
import json
import random
import socket
import subprocess
import sys
import time
import uuid
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from bench.harness.server import free_port
from hmi.api.process.application import STALL_S
from tests.hmi.labs.api_world import made_folder

LONGEST_S = 35.0
SERVE = """
import sys
from hmi.api.process import application
application.STALL_S = float(sys.argv.pop(1))
from hmi.cli import main
main()
"""
TEXTS = {"inputs": ["the market falls", "a gene binds"] * 8}


def request(method: str, path: str, body: object = None) -> bytes:
    data = b"" if body is None else json.dumps(body).encode()
    head = f"{method} {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {len(data)}\r\n"
    return f"{head}Content-Type: application/json\r\n\r\n".encode() + data


@dataclass
class Round:
    """The fate of all requests during one stop."""

    port: int
    statuses: Counter[int] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    refused: int = 0
    over: bool = False

    async def connect(self, window: int = 0) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        sock = socket.socket()
        if window:
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, window)
        sock.setblocking(False)
        try:
            await asyncio.get_running_loop().sock_connect(sock, ("127.0.0.1", self.port))
        except BaseException:
            sock.close()
            raise
        return await asyncio.open_connection(sock=sock)

    async def busy(self, number: int) -> None:
        """Send one request after another, on one connection while the server keeps it open,
        until the server is gone."""
        count = 0
        while not self.over:
            try:
                reader, writer = await self.connect()
            except OSError:
                self.refused += 1
                return
            used = 0
            keep = True
            while keep and not self.over:
                count += 1
                sent = self.some(number, count)
                try:
                    writer.write(sent)
                    keep = await self.answer(reader)
                except (OSError, EOFError) as error:
                    self.lost.append(f"request {used} of a connection: {sent[:40]!r}: {error!r}")
                    keep = False
                used += 1
            writer.close()

    def some(self, number: int, count: int) -> bytes:
        kind = (number + count) % 8
        if kind == 0:
            return request("POST", "/manage/tenants", {"tenant": f"t-{uuid.uuid4().hex}"})
        if kind == 1:
            return request("GET", "/manage/jobs")
        if kind == 2:
            return request("GET", "/openapi.json")
        return request("POST", "/infer/acme.m", TEXTS)

    async def answer(self, reader: asyncio.StreamReader, pause_s: float = 0.0) -> bool:
        """Read one whole answer; whether the connection stays open. Raises EOFError or OSError
        if the answer breaks off."""
        head = (await reader.readuntil(b"\r\n\r\n")).decode("ascii").lower().split("\r\n")
        headers = dict(line.split(": ", 1) for line in head[1:] if line)
        left = int(headers["content-length"])
        while left:
            some = await reader.read(min(left, 4096))
            if not some:
                raise EOFError(f"{left} bytes of the body are missing")
            left -= len(some)
            await asyncio.sleep(pause_s)
        self.statuses[int(head[0].split()[1])] += 1
        return headers.get("connection") != "close"

    async def unfinished_body(self) -> None:
        """A request without its whole body; it is answered, since its head has arrived."""
        assert b" 503 " in await self.hang(request("POST", "/infer/acme.m", TEXTS)[:-10])

    async def half_header(self) -> None:
        await self.hang(b"GET /healthz HTTP/1.1\r\nHost: 127.")

    async def hang(self, part: bytes) -> bytes:
        reader, writer = await self.connect()
        writer.write(part)
        said = b""
        with suppress(OSError):
            said = await reader.read()
        writer.close()
        return said

    async def slow_reader(self) -> None:
        """A client with a small receive window, whose answer is hundreds of kilobytes."""
        reader, writer = await self.connect(4096)
        texts = ["the market falls"] * 1000
        writer.write(
            request("POST", "/infer/acme.m", {"inputs": texts, "parameters": {"return": ["scores"]}})
        )
        try:
            await self.answer(reader, 0.02)
        except (OSError, EOFError) as error:
            self.lost.append(f"slow reader: {error!r}")
        writer.close()


async def stop_under_load(
    data: Path, log: Path, clients: int, stall_s: float, rng: random.Random
) -> tuple[Round, float]:
    port = free_port()
    command = [sys.executable, "-c", SERVE, str(stall_s), "serve", "--data", str(data), "--port", str(port)]
    with (
        log.open("wb") as out,
        subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=out, stderr=out) as server,
    ):
        found = Round(port)
        try:
            await listening(found, server, log)
            clients_at_work = [asyncio.create_task(found.busy(i)) for i in range(clients)]
            slow = [
                asyncio.create_task(c())
                for c in (found.unfinished_body, found.half_header, found.slow_reader)
            ]
            await asyncio.sleep(rng.uniform(1.0, 2.5))
            server.terminate()
            began = time.monotonic()
            await asyncio.wait_for(asyncio.to_thread(server.wait), 120)
            took = time.monotonic() - began
            await asyncio.wait_for(asyncio.gather(*clients_at_work, *slow), 60)
        finally:
            found.over = True
            server.kill()
        assert server.returncode == 0, log.read_text()[-2000:]
        return found, took


async def listening(found: Round, server: subprocess.Popen[bytes], log: Path) -> None:
    until = time.monotonic() + 90
    while True:
        assert server.poll() is None, log.read_text()[-2000:]
        assert time.monotonic() < until, "the server was not ready in time"
        try:
            reader, writer = await found.connect()
            writer.write(request("GET", "/readyz"))
            await found.answer(reader)
            writer.close()
        except (OSError, EOFError):
            await asyncio.sleep(0.1)
        if found.statuses[200]:
            return


async def one_round(data: Path, log: Path, clients: int, stall_s: float, rng: random.Random) -> None:
    found, took = await stop_under_load(data, log, clients, stall_s, rng)
    lines = log.read_text().splitlines()
    print(
        f"{took:.1f} s, {dict(found.statuses)}, {found.refused} refused at the end, {len(lines)} lines",
        flush=True,
    )
    assert not found.lost, found.lost[:5]
    assert set(found.statuses) <= {200, 201, 503}
    assert found.statuses[200] > clients
    assert found.statuses[503] > 0
    assert found.refused == clients, "every busy client went on until nobody listened"
    assert took <= LONGEST_S
    assert len(lines) < 20, "a refusal is no line of the log"
    assert not any("Traceback" in line for line in lines), log.read_text()[-2000:]


@pytest.fixture
def data(
    tmp_path_factory: pytest.TempPathFactory, tiny_source: Path, capsys: pytest.CaptureFixture[str]
) -> Path:
    return made_folder(tmp_path_factory.getbasetemp(), tiny_source, capsys)


async def test_a_stop_answers_everybody(data: Path, tmp_path: Path) -> None:
    await one_round(data, tmp_path / "log", clients=6, stall_s=1.0, rng=random.Random(1))


@pytest.mark.slow
async def test_twenty_stops(data: Path, tmp_path: Path) -> None:
    rng = random.Random(time.time_ns())
    for _ in range(20):
        await one_round(data, tmp_path / "log", clients=24, stall_s=STALL_S, rng=rng)
