"""Clients that a server must survive: slow ones, ones that leave, and floods of one tenant."""

from __future__ import annotations

import asyncio
import json
import random
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress

from bench.cases.soak.ground import asking
from bench.cases.soak.http import LOST, Http, NotOk
from bench.cases.soak.plan import Plan, Seen
from bench.harness.home import key_of, tenant_of

FLOODERS = 16
FLOOD_TEXTS = 64
PAUSE_S = 1.0
"""Seconds between two bytes of a slow client, and between two clients that leave."""


@asynccontextmanager
async def hostile(http: Http, plan: Plan, seen: Seen, texts: list[str]) -> AsyncIterator[None]:
    """Context manager: hostile clients call the server while the block runs. They use tenant 0."""
    draw = random.Random(plan.seed)
    body = json.dumps(asking(texts[:4])).encode()
    works = (
        _slow(http.port, body, seen),
        _gone(http.port, body, seen, draw),
        _floods(http, plan, seen, texts[:FLOOD_TEXTS]),
    )
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def _request(body: bytes) -> bytes:
    tenant = tenant_of(0)
    head = f"POST /infer/{tenant}.m HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return (
        f"{head}Authorization: Bearer {key_of(tenant)}\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body
    )


async def _slow(port: int, body: bytes, seen: Seen) -> None:
    """Send a request byte by byte."""
    while True:
        with suppress(*LOST, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                request = _request(body)
                writer.write(request[:-20])
                for byte in request[-20:]:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(PAUSE_S)
                await reader.readuntil(b"\r\n\r\n")
                seen.hostile["slow: answered"] += 1
            finally:
                writer.close()


async def _gone(port: int, body: bytes, seen: Seen, draw: random.Random) -> None:
    """Send a part of a request or the whole, and leave."""
    request = _request(body)
    while True:
        await asyncio.sleep(draw.expovariate(1 / PAUSE_S) / 10)
        with suppress(*LOST):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request[: draw.choice((10, len(request) - 5, len(request)))])
            await writer.drain()
            await asyncio.sleep(draw.random() * 0.01)
            writer.transport.abort()
            seen.hostile["gone"] += 1


async def _floods(http: Http, plan: Plan, seen: Seen, texts: list[str]) -> None:
    """Send as many large calls as get through, for a sixth of the time."""
    while True:
        await asyncio.sleep(plan.flood_s * 5 / 6)
        end = time.monotonic() + plan.flood_s / 6
        await asyncio.gather(*(_flood(http, seen, texts, end) for _ in range(FLOODERS)))


async def _flood(http: Http, seen: Seen, texts: list[str], end: float) -> None:
    tenant = tenant_of(0)
    while time.monotonic() < end:
        try:
            await http.json("POST", f"/infer/{tenant}.m", asking(texts), key_of(tenant))
            seen.hostile["flood: answered"] += 1
        except (NotOk, *LOST) as error:
            seen.hostile[f"flood: {error}"[:40]] += 1
            await asyncio.sleep(0.1)
