"""The clients of a soak. Patient clients check every answer. Hostile clients disturb the server."""

from __future__ import annotations

import asyncio
import base64
import itertools
import json
import random
import signal
import time
from collections.abc import AsyncIterator, Awaitable, Mapping
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import aiohttp

from bench.cases.serve.churn import VARIANTS
from bench.cases.soak.ground import LOST, ClientFigures, Http, NotOk, SoakPlan, Soil, Standing, asking
from bench.cases.soak.writing import WAYS, WRITING_ROOT, Heard, WritingSoil, events
from bench.harness.home import ROOT

TEXTS_A_CALL = (1, 1, 1, 2, 4)
LEAVING = 0.25
"""The fraction of streams whose reader leaves before the end."""
JOB_ROWS = 60
TRAINING = {"epochs": 1, "improve": False}
POLL_S = 0.5
FLOODERS = 16
FLOOD_TEXTS = 64
PAUSE_S = 1.0
"""The seconds between two bytes of a slow client. Ten clients that leave come in this time."""


@dataclass
class Patient:
    """The patient callers of one server, and what they saw."""

    http: Http
    soil: Soil
    writing: WritingSoil | None
    plan: SoakPlan
    draw: random.Random
    """The source of all their random choices."""
    seen: ClientFigures = field(default_factory=ClientFigures)
    signalled: signal.Signals | None = None
    """The signal that the server has got; None: none yet."""

    @property
    def standing(self) -> list[Standing]:
        """The models whose versions change. Tenant 0 belongs to the hostile clients."""
        return [*self.soil.standing[1:], *(self.writing.standing if self.writing else ())]

    def on(self, http: Http) -> Patient:
        """Return the same callers on another server. They have seen nothing."""
        return Patient(http, self.soil, self.writing, self.plan, self.draw)

    async def warm(self) -> None:
        """Let the server load its roots."""
        await self.label()
        if self.writing is not None:
            await self.read(self.writing)

    def taken(self) -> ClientFigures:
        """Return what they saw, and begin anew."""
        seen, self.seen = self.seen, ClientFigures()
        return seen

    async def ask(self) -> None:
        """Make one call, for labels or for a text, and check its answer."""
        if self.writing is not None and self.draw.random() < self.plan.writing_share:
            await self.read(self.writing)
        else:
            await self.label()

    async def label(self) -> None:
        """Ask for the labels of some texts."""
        model = self.draw.randrange(1, self.plan.tenants)
        texts = [self.draw.randrange(self.plan.texts) for _ in range(self.draw.choice(TEXTS_A_CALL))]
        allowed, begun = self.soil.standing[model].asked(), time.monotonic()
        body = asking([self.soil.texts[text] for text in texts])

        async def call() -> None:
            path, key = f"/infer/{self.soil.path(model)}", self.soil.home.key(model)
            answer = await self.http.json("POST", path, body, key)
            self.seen.late.append(1e3 * (time.monotonic() - begun))
            self._check(self.soil.fault(model, allowed(), texts, answer))
            self.seen.counts["answers"] += len(texts)

        await self._told("infer", call())

    async def read(self, soil: WritingSoil, most: int | None = None) -> None:
        """Ask for a text, whole or as a stream. Some readers leave a stream before its end.

        most: the most tokens of the text; None: as many as the right texts have.
        """
        way = "native" if most else self.draw.choice(("whole", *WAYS))
        model, prompt = self.draw.randrange(self.plan.writers), self.draw.randrange(self.plan.prompts)
        if way == "whole":
            await self._told("texts", self._whole(soil, model, prompt))
            return
        leaves = None
        if not most and self.draw.random() < LEAVING:
            leaves = self.draw.randrange(1, self.plan.tokens)
        await self._told("texts", self._stream(soil, way, (model, prompt), most, leaves))

    async def _whole(self, soil: WritingSoil, model: int, prompt: int) -> None:
        standing, key = soil.standing[model], soil.key(model)
        allowed = standing.asked()
        body = {"prompt": soil.prompts[prompt], "max_tokens": self.plan.tokens}
        answer = await self.http.json("POST", f"/generate/{standing.path}", body, key)
        version, text = answer["version"], answer["text"]
        self._check(soil.fault(model, prompt, allowed(), version, text, whole=True))
        self.seen.counts["texts"] += 1

    async def _stream(
        self, soil: WritingSoil, name: str, which: tuple[int, int], most: int | None, leaves: int | None
    ) -> None:
        """Read a stream. which: the model and the prompt. leaves: the number of events to read; None: all."""
        (model, prompt), way = which, WAYS[name]
        standing = soil.standing[model]
        allowed, heard = standing.asked(), Heard()
        body = {
            **way.body(standing.path),
            "prompt": soil.prompts[prompt],
            "max_tokens": most or self.plan.tokens,
            "stream": True,
        }
        try:
            async with self.http.streamed(way.path(standing.path), body, soil.key(model)) as answer:
                self.seen.counts["streams_accepted"] += 1
                ended = await self._listen(answer, heard, name, leaves)
        except LOST as error:
            if not heard.accepted:
                raise
            ended = "cut" if self.signalled is signal.SIGKILL else ""
            heard.improper = f"broke off: {error!r}"
        ended = ended if ended in ("left", "cut") or not heard.improper else ""
        self.seen.counts[f"streams_{ended or 'improper'}"] += 1
        if not ended:
            self.seen.improper.append(f"{name}, {standing.path}, {heard.events} events: {heard.improper}")
        if ended == "failed" and not self.signalled:
            self.seen.refused[f"streams: {heard.end}"] += 1
        whole = ended == "ended" and not most
        self._check(soil.fault(model, prompt, allowed(), heard.version, heard.text, whole=whole))
        self.seen.counts["texts" if whole else "parts_of_texts"] += 1

    async def _listen(
        self, answer: aiohttp.ClientResponse, heard: Heard, way: str, leaves: int | None
    ) -> str:
        """Read a stream. Returns "left", "ended", "failed" (an error's event), or "" (no last event)."""
        heard.accepted = True
        async for event in events(answer.content):
            heard.take(WAYS[way], *event)
            if heard.events == leaves and not heard.end:
                answer.close()
                return "left"
        if not heard.end:
            heard.improper = heard.improper or "no last event"
            return ""
        return "ended" if heard.end == "end" else "failed"

    def _check(self, fault: str | None) -> None:
        if fault is not None:
            self.seen.wrong.append(fault)

    async def closed(self, seconds: float, callers: int) -> float:
        """Let each of the callers make one call after another. Returns the calls a second."""
        end, count = time.monotonic() + seconds, itertools.count()

        async def caller() -> None:
            while time.monotonic() < end:
                await self.ask()
                next(count)

        await asyncio.gather(*(caller() for _ in range(callers)))
        return next(count) / seconds

    async def opened(self, seconds: float, rate: float) -> None:
        """Begin `rate` calls a second, at random times. No call waits for an earlier one."""
        due, end, calls = time.monotonic(), time.monotonic() + seconds, set[asyncio.Task[None]]()
        while due < end:
            due += self.draw.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.monotonic()))
            call = asyncio.create_task(self.ask())
            calls.add(call)
            call.add_done_callback(calls.discard)
        await asyncio.gather(*calls)

    async def change_versions(self) -> None:
        """Change which version of a model answers, again and again."""
        while True:
            await asyncio.sleep(self.draw.expovariate(1 / self.plan.change_s))
            await self._told("versions", self._change(self.draw.choice(self.standing)))

    async def _change(self, standing: Standing) -> None:
        to = self.draw.randint(1, VARIANTS)
        with standing.changing(to):
            await self.http.json("POST", f"/manage/models/{standing.path}/rollback", {"version": to})

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
        """Again and again, fine-tune a model, ask it and delete it, then publish a model that writes."""
        await self._told("tenants", self.http.json("POST", "/manage/tenants", {"tenant": "training"}))
        for number in itertools.count():
            await self._told("models", self._train(f"training.m{number}"))
            if self.writing is not None:
                await self._told("published", self._publish(self.writing, f"training.w{number}"))

    async def _train(self, model: str) -> None:
        spec = {"model": model, "domain": ROOT, "task": "classification", "options": TRAINING}
        texts = self.draw.choices(self.soil.texts, k=JOB_ROWS)
        rows = [json.dumps({"text": f"{i} {t}", "label": "ab"[i % 2]}) for i, t in enumerate(texts)]
        await self._job("/manage/models", spec, {"data": "\n".join(rows).encode()})
        await self.http.json("POST", f"/infer/{model}", asking(texts[:4]))
        await self.http.json("DELETE", f"/manage/models/{model}")

    async def _publish(self, soil: WritingSoil, model: str) -> None:
        """Publish a writing model's module under another name. The new model must write the same text."""
        source, prompt = self.draw.randrange(self.plan.writers), self.draw.randrange(self.plan.prompts)
        made = await self.http.json("GET", f"/manage/models/{soil.standing[source].path}/module")
        spec = {"model": model, "domain": WRITING_ROOT, "task": "generation"}
        names = {"adapter_config": "adapter_config.json", "adapter": "adapter_model.safetensors"}
        files = {part: base64.b64decode(made["files"][name]) for part, name in names.items()}
        await self._job("/manage/models/import", spec, files)
        body = {"prompt": soil.prompts[prompt], "max_tokens": self.plan.tokens}
        text = (await self.http.json("POST", f"/generate/{model}", body))["text"]
        self._check(soil.fault(source, prompt, {made["version"]}, None, text, whole=True))
        self.seen.counts["texts"] += 1
        await self.http.json("DELETE", f"/manage/models/{model}")

    async def _job(self, path: str, spec: dict[str, Any], files: Mapping[str, bytes]) -> None:
        """Start a job and wait for its end."""
        form = aiohttp.FormData()
        form.add_field("spec", json.dumps(spec), content_type="application/json")
        for name, data in files.items():
            form.add_field(name, data, filename=name)
        job = (await self.http.json("POST", path, form=form))["job"]
        while (view := await self.http.json("GET", f"/manage/jobs/{job}"))["state"] in ("queued", "running"):
            await asyncio.sleep(POLL_S)
        if view["state"] != "succeeded":
            self.seen.wrong.append(f"job {job} ended {view['state']}: {view.get('error')}")

    async def _told(self, what: str, work: Awaitable[Any]) -> bool:
        """Wait for some work, and count how it ended. Returns whether it succeeded."""
        self.seen.counts["calls"] += 1
        try:
            await work
        except NotOk as error:
            if self.signalled and error.args[0].startswith("503"):
                self.seen.counts["refused_while_stopping"] += 1
            else:
                self.seen.refused[f"{what}: {error}"] += 1
            return False
        except LOST as error:
            nobody_listens = self.signalled and isinstance(error, aiohttp.ClientConnectorError)
            if nobody_listens or self.signalled is signal.SIGKILL:
                self.seen.counts["calls_after_the_end" if nobody_listens else "calls_cut"] += 1
            else:
                self.seen.lost.append(f"{what}: {error!r}")
            return False
        if what not in ("infer", "texts"):
            self.seen.counts[f"changes_{what}"] += 1
        return True


@asynccontextmanager
async def hostile(patient: Patient) -> AsyncIterator[None]:
    """Context manager: hostile clients call the server while the block runs. They use tenant 0."""
    soil, port = patient.soil, patient.http.port
    path, key, body = f"/infer/{soil.path(0)}", soil.home.key(0), json.dumps(asking(soil.texts[:4])).encode()
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    head += f"Authorization: Bearer {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    request = head.encode() + body
    works = (_slow(port, request, patient), _gone(port, request, patient), _floods(patient))
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


async def _slow(port: int, request: bytes, patient: Patient) -> None:
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
                patient.seen.counts["hostile_slow_answered"] += 1
            finally:
                writer.close()


async def _gone(port: int, request: bytes, patient: Patient) -> None:
    """Send a request, or a part of it, and leave at once."""
    draw = random.Random(0)
    while True:
        await asyncio.sleep(draw.expovariate(1 / PAUSE_S) / 10)
        with suppress(*LOST):
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            writer.write(request[: draw.choice((10, len(request) - 5, len(request)))])
            await writer.drain()
            await asyncio.sleep(draw.random() * 0.01)
            writer.transport.abort()
            patient.seen.counts["hostile_gone"] += 1


async def _floods(patient: Patient) -> None:
    """For a sixth of the time, send as many large calls as the server takes."""
    http, plan, soil = patient.http, patient.plan, patient.soil
    body, path, key = asking(soil.texts[:FLOOD_TEXTS]), f"/infer/{soil.path(0)}", soil.home.key(0)

    async def flood(end: float) -> None:
        while time.monotonic() < end:
            try:
                await http.json("POST", path, body, key)
                patient.seen.counts["hostile_flood_answered"] += 1
            except (NotOk, *LOST) as error:
                patient.seen.counts[f"hostile_flood_{error}"[:40].replace(" ", "_")] += 1
                await asyncio.sleep(0.1)

    while True:
        await asyncio.sleep(plan.flood_s * 5 / 6)
        end = time.monotonic() + plan.flood_s / 6
        await asyncio.gather(*(flood(end) for _ in range(FLOODERS)))
