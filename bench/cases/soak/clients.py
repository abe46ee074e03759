"""The clients of a soak: patient ones, whose every answer counts, and hostile ones."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.cases.serve.churn import VARIANTS
from bench.cases.soak.ground import LOST, ClientFigures, Http, NotOk, SoakPlan, Soil, asking
from bench.harness.home import ROOT

TEXTS_A_CALL = (1, 1, 1, 2, 4)
JOB_ROWS = 60
TRAINING = {"epochs": 1, "improve": False}
POLL_S = 0.5
FLOODERS = 16
FLOOD_TEXTS = 64
PAUSE_S = 1.0
"""Seconds between two bytes of a slow client, and between two clients that leave."""


@dataclass
class Patient:
    """Callers of one server, and what they saw."""

    http: Http
    soil: Soil
    plan: SoakPlan
    seen: ClientFigures
    draw: random.Random
    """Everything random of these callers follows from it."""

    async def ask(self) -> int:
        """Make one call, check its answers, and return how many texts it had."""
        model = self.draw.randrange(1, self.plan.tenants)  # tenant 0 is the hostile clients'
        texts = [self.draw.randrange(self.plan.texts) for _ in range(self.draw.choice(TEXTS_A_CALL))]
        standing = self.soil.standing[model]
        may, change, begun = set(standing.may), standing.change, time.monotonic()
        body = asking([self.soil.texts[text] for text in texts])

        async def call() -> None:
            path, key = f"/infer/{self.soil.path(model)}", self.soil.home.key(model)
            answer = await self.http.json("POST", path, body, key)
            self.seen.late.append((begun, 1e3 * (time.monotonic() - begun)))
            allowed = may | standing.may if standing.change == change else {*range(1, VARIANTS + 1)}
            fault = self.soil.fault(model, allowed, texts, answer)
            if fault is not None:
                self.seen.wrong.append(fault)
            self.seen.answers += len(texts)

        await self._told("infer", call())
        return len(texts)

    async def closed(self, seconds: float, callers: int) -> float:
        """Let callers ask one call after another. Returns the calls a second."""
        end, count = time.monotonic() + seconds, itertools.count()

        async def caller() -> None:
            while time.monotonic() < end:
                await self.ask()
                next(count)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return next(count) / seconds

    async def opened(self, seconds: float, rate: float) -> None:
        """Begin `rate` calls a second, at random times, whatever becomes of those before."""
        due, end, calls = time.monotonic(), time.monotonic() + seconds, set[asyncio.Task[int]]()
        while due < end:
            due += self.draw.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            call = asyncio.create_task(self.ask())
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)

    async def change_versions(self) -> None:
        """Let another version of a model answer, again and again."""
        while True:
            await asyncio.sleep(self.draw.expovariate(1 / self.plan.change_s))
            model = self.draw.randrange(1, self.plan.tenants)  # tenant 0 is the hostile clients'
            standing, to = self.soil.standing[model], self.draw.randint(1, VARIANTS)
            standing.may.add(to)
            standing.change += 1
            path = f"/manage/models/{self.soil.path(model)}/rollback"
            if await self._told("versions", self.http.json("POST", path, {"version": to})):
                standing.may = {to}
            standing.change += 1

    async def change_tenants(self) -> None:
        """Create a tenant with a second key, use it, and delete it, again and again."""
        for number in itertools.count():
            await asyncio.sleep(self.draw.expovariate(1 / self.plan.tenant_s))
            await self._told("tenants", self._tenant(f"passing-{number}"))

    async def _tenant(self, name: str) -> None:
        key = (await self.http.json("POST", "/manage/tenants", {"tenant": name}))["key"]
        await self.http.json("POST", f"/manage/tenants/{name}/keys", {"scopes": ["infer"]}, key)
        await self.http.json("GET", f"/manage/tenants/{name}/usage", key=key)
        await self.http.json("DELETE", f"/manage/tenants/{name}")

    async def train(self) -> None:
        """Fine-tune a model from rows, ask it, and delete it, again and again."""
        await self._told("tenants", self.http.json("POST", "/manage/tenants", {"tenant": "training"}))
        for number in itertools.count():
            await self._told("models", self._train(f"training.m{number}"))

    async def _train(self, model: str) -> None:
        spec = {"model": model, "domain": ROOT, "task": "classification", "options": TRAINING}
        texts = self.draw.choices(self.soil.texts, k=JOB_ROWS)
        rows = [json.dumps({"text": f"{i} {t}", "label": "ab"[i % 2]}) for i, t in enumerate(texts)]
        form = aiohttp.FormData()
        form.add_field("spec", json.dumps(spec), content_type="application/json")
        form.add_field("data", "\n".join(rows).encode(), filename="data")
        job = (await self.http.json("POST", "/manage/models", form=form))["job"]
        while (view := await self.http.json("GET", f"/manage/jobs/{job}"))["state"] in ("queued", "running"):
            await asyncio.sleep(POLL_S)
        if view["state"] != "succeeded":
            self.seen.wrong.append(f"job {job} ended {view['state']}: {view.get('error')}")
        await self.http.json("POST", f"/infer/{model}", asking(texts[:4]))
        await self.http.json("DELETE", f"/manage/models/{model}")

    async def _told(self, what: str, work: Awaitable[Any]) -> bool:
        """Do some work and count how it ended. Returns True if it succeeded."""
        try:
            await work
        except NotOk as error:
            self.seen.refused[f"{what}: {error}"] += 1
            return False
        except LOST as error:
            self.seen.lost.append(f"{what}: {error!r}")
            return False
        if what != "infer":
            self.seen.changes[what] += 1
        return True


@asynccontextmanager
async def hostile(http: Http, plan: SoakPlan, seen: ClientFigures, soil: Soil) -> AsyncIterator[None]:
    """Context manager: hostile clients call the server while the block runs. They use tenant 0."""
    path, key, body = f"/infer/{soil.path(0)}", soil.home.key(0), json.dumps(asking(soil.texts[:4])).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    works = (
        _slow(http.port, request, seen),
        _gone(http.port, request, seen),
        _floods(http, plan, seen, soil),
    )
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _slow(port: int, request: bytes, seen: ClientFigures) -> None:
    """Send a request byte by byte."""
    while True:
        with suppress(*LOST, EOFError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            try:
                writer.write(request[:-20])
                for byte in request[-20:]:
                    writer.write(bytes([byte]))
                    await asyncio.sleep(PAUSE_S)
                await reader.readuntil(b"\r\n\r\n")
                seen.hostile["slow: answered"] += 1
            finally:
                writer.close()


async def _gone(port: int, request: bytes, seen: ClientFigures) -> None:
    """Send a part of a request or the whole, and leave."""
    draw = random.Random(0)
    while True:
        await asyncio.sleep(draw.expovariate(1 / PAUSE_S) / 10)
        with suppress(*LOST):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request[: draw.choice((10, len(request) - 5, len(request)))])
            await writer.drain()
            await asyncio.sleep(draw.random() * 0.01)
            writer.transport.abort()
            seen.hostile["gone"] += 1


async def _floods(http: Http, plan: SoakPlan, seen: ClientFigures, soil: Soil) -> None:
    """Send as many large calls as get through, for a sixth of the time."""
    body, path, key = asking(soil.texts[:FLOOD_TEXTS]), f"/infer/{soil.path(0)}", soil.home.key(0)

    async def flood(end: float) -> None:
        while time.monotonic() < end:
            try:
                await http.json("POST", path, body, key)
                seen.hostile["flood: answered"] += 1
            except (NotOk, *LOST) as error:
                seen.hostile[f"flood: {error}"[:40]] += 1
                await asyncio.sleep(0.1)

    while True:
        await asyncio.sleep(plan.flood_s * 5 / 6)
        end = time.monotonic() + plan.flood_s / 6
        await asyncio.gather(*(flood(end) for _ in range(FLOODERS)))
