"""A server with its own door on a free port, and bare connections to it."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import ssl
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

from aiohttp import web

from hmi.api.edge.listener import Listener
from hmi.api.edge.tls import certificates_of
from hmi.api.http.services import Services
from hmi.api.process.application import application
from hmi.api.process.building import build_services
from hmi.config import Settings
from tests.hmi.labs.api_world import read_answer
from tests.hmi.labs.flood_lab import head

HEALTH = head("/healthz", None, method="GET")


@contextlib.asynccontextmanager
async def serving(data: Path, **settings: Any) -> AsyncIterator[tuple[Services, Listener, int]]:
    """A server that limits connections, and speaks TLS, as `serve` does: its services, its door, its port."""
    services = build_services(Settings(data=data, **settings))
    certificates = certificates_of(services.settings)
    runner = web.AppRunner(application(services), handler_cancellation=True, access_log=None)
    await runner.setup()
    assert runner.server is not None
    listener = socket.create_server(("127.0.0.1", 0))
    door = Listener(listener, runner.server, services.settings, certificates)
    door.open()
    try:
        yield services, door, listener.getsockname()[1]
    finally:
        await door.stop()
        await runner.cleanup()
    assert not door._all


async def connect(
    port: int, data: bytes = b"", host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> tuple[Any, asyncio.StreamWriter]:
    reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(host, 0), ssl=tls)
    writer.write(data)
    return reader, writer


async def ask(
    port: int, data: bytes = HEALTH, host: str = "127.0.0.1", tls: ssl.SSLContext | None = None
) -> tuple[int, Any, bytes]:
    """Send a request on a new connection; return (status, JSON body, head of the answer)."""
    reader, writer = await connect(port, data, host, tls)
    try:
        return await read_answer(reader)
    finally:
        writer.close()


async def gone(reader: Any) -> None:
    """Wait until the server has closed the connection."""
    with contextlib.suppress(ConnectionError):
        assert await reader.read() == b""
