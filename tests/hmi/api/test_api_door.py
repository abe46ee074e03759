"""The number of connections and their idle time are bounded, and health calls are
answered beside any flood."""

from __future__ import annotations

import asyncio
import contextlib
import errno
import gc
import json
import logging
import os
import resource
import signal
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from hmi.api.body.shares import Shares
from hmi.api.edge import listener as door_module
from hmi.api.edge.capacity import most_connections
from hmi.api.edge.listener import _address
from hmi.api.http.services import Services
from hmi.config import Settings
from hmi.errors import DeadlineExceeded, InvalidInput
from tests.hmi.labs.api_world import read_answer
from tests.hmi.labs.door_lab import HEALTH, ask, connect, gone, serving
from tests.hmi.labs.flood_lab import head, post
from tests.waiting import until


async def test_a_client_that_goes_at_once_is_not_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path) as (services, door, port):
        for path, method in (("/infer/acme.m", "POST"), ("/manage/jobs", "GET")) * 5:
            with socket.create_connection(("127.0.0.1", port)) as client:
                client.sendall(
                    post(path, None, b"{}") if method == "POST" else head(path, None, method=method)
                )
        assert (await ask(port))[0] == 200, "and whoever came before has been let in"
        # What is left would hold up a stop until the stop's limit.
        await until(lambda: not door._count() and not services.lifecycle.in_flight.count, 20)


async def test_half_sent_heads_hold_nothing(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=8, head_s=2) as (_, door, port):
        held = [await connect(port, HEALTH[:-2]) for _ in range(30)]
        for _ in range(5):
            assert (await ask(port))[0] == 200
        assert door._count() <= 8
        await asyncio.gather(*(gone(reader) for reader, _ in held))
        assert (await ask(port))[0] == 200
        for _, writer in held:
            writer.close()


async def test_a_connection_that_waits_holds_no_answer(tmp_path: Path) -> None:
    async with serving(tmp_path) as (_, _, port):
        earlier = {id(found) for found in gc.get_objects() if type(found) is web.Response}
        for path in ("/openapi.json", "/manage/models/acme.none"):  # an answer, and an error
            reader, writer = await connect(port, head(path, None, method="GET"))
            await read_answer(reader)
            held = [found for found in gc.get_objects() if type(found) is web.Response]
            new = [found for found in held if id(found) not in earlier]
            assert new, "aiohttp keeps the answer's head with the open connection"
            assert not any(found.body for found in new)
            writer.close()


class Held:
    """In place of the engine: requests wait until `go_on` is set."""

    def __init__(self, services: Services) -> None:
        self.working, self.go_on = 0, asyncio.Event()
        services.engine.infer = self._infer  # type: ignore[method-assign,assignment]

    async def _infer(self, _: Any) -> Any:
        self.working += 1
        await self.go_on.wait()
        raise DeadlineExceeded("answered in the end")

    async def has(self, count: int) -> None:
        await until(lambda: self.working >= count)


async def test_answered_connections_give_way_and_those_at_work_do_not(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=4) as (services, _, port):
        key = services.manager.create_tenant("acme")[1]
        engine, request = Held(services), post("/infer/acme.m", key, b'{"inputs": "a"}')
        at_work = [asyncio.create_task(ask(port, request)) for _ in range(2)]
        await engine.has(2)
        status, body, answer = await ask(port, request)
        assert (status, body["error"]["kind"]) == (429, "quota_exceeded"), "half of the places, and no more"
        assert b"Retry-After" in answer
        idle, writer = await connect(port, HEALTH)
        assert (await idle.readline()).split()[1] == b"200"
        others = [await connect(port) for _ in range(6)]
        with contextlib.suppress(ConnectionError):
            await idle.read()  # read to the end: the server closes it, since others need its place
        assert (await ask(port))[0] == 200
        engine.go_on.set()
        assert [status for status, _, _ in await asyncio.gather(*at_work)] == [504] * 2
        for _, other in [*others, (None, writer)]:
            other.close()


async def test_when_all_are_at_work_guests_are_answered(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=2) as (services, door, port):
        services.intake.places = Shares(100, "requests")
        engine = Held(services)
        at_work = [
            asyncio.create_task(ask(port, post("/infer/acme.m", None, b'{"inputs": "a"}'))) for _ in range(2)
        ]
        await engine.has(2)
        status, body, answer = await ask(port, head("/manage/tenants", None, method="GET"))
        assert (status, body["error"]["kind"], b"Retry-After" in answer) == (503, "unavailable", True)
        reader, writer = await connect(port, HEALTH)
        assert (await reader.readline()).split()[1] == b"200"
        await reader.read()  # read to the end: the server closes a guest's connection
        writer.close()
        engine.go_on.set()
        assert [status for status, _, _ in await asyncio.gather(*at_work)] == [504] * 2
        await until(lambda: not door._count())
        assert not door._by_address
        assert (await ask(port, head("/manage/tenants", None, method="GET")))[0] == 200


async def test_guests_that_say_nothing_do_not_close_the_door(tmp_path: Path) -> None:
    async with serving(tmp_path, max_connections=2, head_s=3600) as (services, door, port):
        services.intake.places = Shares(100, "requests")
        engine = Held(services)
        at_work = [
            asyncio.create_task(ask(port, post("/infer/acme.m", None, b'{"inputs": "a"}'))) for _ in range(2)
        ]
        await engine.has(2)
        # All at once, without a turn of the event loop: no connection has sent anything yet.
        silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(100)]
        async with asyncio.timeout(60):
            assert (await ask(port))[0] == 200, "though nobody leaves by itself"
        assert door._count() <= 2 + door_module.GUESTS
        engine.go_on.set()
        await asyncio.gather(*at_work)
        for client in silent:
            client.close()


async def test_an_address_has_its_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(door_module, "_address", lambda host: host)
    async with serving(tmp_path, max_connections=8, max_address_connections=3) as (_, door, port):
        honest, writer = await connect(port, HEALTH)
        assert (await honest.readline()).split()[1] == b"200"
        held = [await connect(port, HEALTH[:-2], "127.0.0.2") for _ in range(20)]
        assert (await ask(port, HEALTH, "127.0.0.2"))[0] == 200, "in the place of its own oldest"
        assert door._by_address["127.0.0.2"] <= 3
        await honest.readuntil(b"}")
        writer.write(HEALTH)
        assert (await honest.readline()).split()[1] == b"200", "another address's are left alone"
        for _, other in [*held, (None, writer)]:
            other.close()


def test_addresses_that_count_together() -> None:
    assert _address("127.0.0.1") == _address("::1") == _address("::ffff:127.0.0.1") == ""
    assert _address("192.0.2.7") == _address("::ffff:192.0.2.7") == "192.0.2.7"
    assert _address("2001:db8::1") == _address("2001:db8::ffff:1") != _address("2001:db8:0:1::1")
    assert _address("fe80::1%eth0") == "fe80::/64"


async def test_a_failing_accept_is_said_once_and_tried_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(door_module, "RETRY_S", 0.01)
    async with serving(tmp_path) as (_, door, port):
        assert (await ask(port))[0] == 200
        listener, failures = door._listener, 5

        class Exhausted:
            def fileno(self) -> int:
                return listener.fileno()

            def accept(self) -> Any:
                nonlocal failures
                failures -= 1
                if failures >= 0:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                return listener.accept()

        door._listener = Exhausted()  # type: ignore[assignment]
        assert (await ask(port))[0] == 200
        door._listener = listener
    said = [r for r in caplog.records if "cannot accept" in r.getMessage()]
    assert (failures < 0, len(said), "Traceback" in caplog.text) == (True, 1, False)


async def test_a_full_table_of_descriptors_closes_nothing_for_nobody(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Linux reports that no descriptor is free before it looks whether anybody waits."""
    async with serving(tmp_path) as (_, door, port):
        listener = door._listener

        class OneDescriptor:
            taken = False

            def fileno(self) -> int:
                return listener.fileno()

            def accept(self) -> Any:
                if self.taken:
                    raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
                self.taken = True
                return listener.accept()

        door._listener = OneDescriptor()  # type: ignore[assignment]
        assert (await ask(port))[0] == 200
        door._listener = listener
    assert "cannot accept" not in caplog.text


FULL = """
import asyncio, resource, signal, sys
from pathlib import Path
from tests.hmi.api.test_api_door import serving

def limit(descriptors):
    resource.setrlimit(resource.RLIMIT_NOFILE, (descriptors, 128))

async def main():
    async with serving(Path(sys.argv[1])) as (_, door, port):
        def exhaust():
            if door._count():  # the last client's connection is about to close, which would end the pause
                asyncio.get_running_loop().call_later(0.01, exhaust)
                return
            limit(3)  # no new descriptor, whatever other threads close
            print("full", flush=True)
        def wait(error, was=door._accept_failed):
            was(error)
            print("pause", flush=True)
        door._accept_failed = wait
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, limit, 128)
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR2, exhaust)
        print(port, flush=True)
        await asyncio.to_thread(sys.stdin.read)

limit(128)
asyncio.run(main())
"""


async def test_descriptors_freed_elsewhere_open_the_door_again(tmp_path: Path) -> None:
    """The descriptors were held by something other than connections, and no connection closes meanwhile."""
    server = await asyncio.create_subprocess_exec(
        sys.executable, "-c", FULL, str(tmp_path), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert server.stdin is not None
    assert server.stdout is not None
    async with asyncio.timeout(120):
        port = int(await server.stdout.readline())
        assert (await ask(port))[0] == 200
        for _ in range(2):
            server.send_signal(signal.SIGUSR2)
            await server.stdout.readuntil(b"full\n")
            waiting = asyncio.create_task(ask(port))
            await server.stdout.readuntil(b"pause\n")
            server.send_signal(signal.SIGUSR1)
            assert (await waiting)[0] == 200
        server.stdin.close()
        assert await server.wait() == 0


async def test_what_is_no_request_has_the_native_shape(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    async with serving(tmp_path) as (_, _, port):
        for nonsense in (
            b"nonsense\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\nX: " + b"y" * 9000 + b"\r\n\r\n",
            b"GET /" + b"y" * 9000 + b" HTTP/1.1\r\nHost: a\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\nHost: a\r\n" + b"X: y\r\n" * 200 + b"\r\n",
            b"POST /infer HTTP/1.1\r\nHost: a\r\nContent-Length: -1\r\n\r\n",
            b"GET /healthz HTTP/1.1\r\n\r\n",
        ):
            status, body, answer = await ask(port, nonsense)
            assert (status, body["error"]["kind"], set(body["error"])) == (
                400,
                "malformed",
                {"kind", "message", "details", "request_id"},
            )
            assert body["error"]["request_id"].encode() in answer
        assert (await ask(port))[0] == 200
    assert [r for r in caplog.records if r.levelno >= logging.WARNING] == []


async def test_a_client_that_does_not_read_is_not_waited_for(tmp_path: Path) -> None:
    async with serving(tmp_path, idle_s=1) as (_, door, port):
        with socket.socket() as deaf:
            deaf.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
            deaf.setblocking(False)
            loop = asyncio.get_running_loop()
            await loop.sock_connect(deaf, ("127.0.0.1", port))
            with contextlib.suppress(TimeoutError, ConnectionError):
                async with asyncio.timeout(1):
                    await loop.sock_sendall(deaf, head("/openapi.json", None, method="GET") * 20)
            # The connection is closed, though the client still reads nothing.
            await until(lambda: not door._count())
            assert not door._count()


def test_the_limit_follows_the_files() -> None:
    files, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(files, 300), hard))
        assert most_connections(Settings()) == min(files, 300) // 2
        assert most_connections(Settings(max_connections=20)) == 20
        with pytest.raises(InvalidInput) as caught:
            most_connections(Settings(max_connections=300))
        assert caught.value.details["field"] == "max_connections"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (files, hard))


async def test_a_real_server_out_of_descriptors(tmp_path: Path) -> None:
    log = tmp_path / "log"
    with log.open("w") as out:
        server = subprocess.Popen(
            [sys.executable, "-m", "hmi", "serve", "--port", "0", "--data", str(tmp_path / "data")],
            stderr=out,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128)),
        )
    try:
        note = tmp_path / "data" / "server.json"
        await until(lambda: note.exists() or server.poll() is not None)
        assert server.poll() is None, log.read_text()
        port = int(json.loads(note.read_text())["url"].rpartition(":")[2])
        while True:
            with contextlib.suppress(OSError):
                if (await ask(port))[0] == 200:
                    break
            await asyncio.sleep(0.05)
        held = [await connect(port, HEALTH[:-2]) for _ in range(300)]
        for _ in range(10):
            assert (await ask(port))[0] == 200
        assert len(os.listdir(f"/proc/{server.pid}/fd")) < 120
        for _, writer in held:
            writer.close()
    finally:
        server.send_signal(signal.SIGTERM)
        server.wait(60)
    assert "Traceback" not in log.read_text()
    assert len(log.read_text().splitlines()) < 10
