"""The clients whose every answer counts: callers of models, and those who change things."""

from __future__ import annotations

import asyncio
import itertools
import json
import random
import time
from collections.abc import Awaitable
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.cases.serve.churn import VARIANTS
from bench.cases.soak.ground import Soil, asking
from bench.cases.soak.http import LOST, Http, NotOk
from bench.cases.soak.plan import Plan, Seen

TEXTS_A_CALL = (1, 1, 1, 2, 4)
JOB_ROWS = 60
TRAINING = {"epochs": 1, "improve": False}
POLL_S = 0.5


@dataclass
class Patient:
    """Callers of one server, and what they saw."""

    http: Http
    soil: Soil
    plan: Plan
    seen: Seen
    draw: random.Random
    """Everything random of these callers follows from it."""

    async def ask(self) -> int:
        """Make one call, check its answers, and return how many texts it had."""
        model = self._model()
        texts = [self.draw.randrange(self.plan.texts) for _ in range(self.draw.choice(TEXTS_A_CALL))]
        standing = self.soil.standing[model]
        may, change, begun = set(standing.may), standing.change, time.monotonic()
        body = asking([self.soil.texts[text] for text in texts])

        async def call() -> None:
            answer = await self.http.json(
                "POST", f"/infer/{self.soil.path(model)}", body, self.soil.key(model)
            )
            self.seen.late.append((begun, 1e3 * (time.monotonic() - begun)))
            allowed = may | standing.may if standing.change == change else {*range(1, VARIANTS + 1)}
            fault = self.soil.fault(model, allowed, texts, answer)
            if fault is not None:
                self.seen.wrong.append(fault)
            self.seen.answers += len(texts)

        await self._told("infer", call())
        return len(texts)

    def _model(self) -> int:
        """Draw a model. Tenant 0 belongs to the hostile clients."""
        return self.draw.randrange(1, self.plan.tenants)

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
            model = self._model()
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
        await self.http.json("GET", f"/manage/tenants/{name}/usage", None, key)
        await self.http.json("DELETE", f"/manage/tenants/{name}")

    async def train(self) -> None:
        """Fine-tune a model from rows, ask it, and delete it, again and again."""
        await self._told("tenants", self.http.json("POST", "/manage/tenants", {"tenant": "training"}))
        for number in itertools.count():
            await self._told("models", self._train(f"training.m{number}"))

    async def _train(self, model: str) -> None:
        spec = {"model": model, "domain": "minilm", "task": "classification", "options": TRAINING}
        texts = self.draw.choices(self.soil.texts, k=JOB_ROWS)
        rows = [json.dumps({"text": f"{i} {t}", "label": "ab"[i % 2]}) for i, t in enumerate(texts)]
        form = aiohttp.FormData()
        form.add_field("spec", json.dumps(spec), content_type="application/json")
        form.add_field("data", "\n".join(rows).encode(), filename="data")
        job = (await self.http.form("/manage/models", form))["job"]
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
