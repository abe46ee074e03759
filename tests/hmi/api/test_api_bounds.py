"""Calls that need no key, and lists of everything, stay cheap however many things and callers there are."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from pathlib import Path

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from hmi.api.http import events
from hmi.api.routes import table
from hmi.core import JobRecord, ModelId, ModelRecord, TenantRecord, now
from hmi.stores.records import job_table, model_table
from hmi.stores.records.registry_database import RegistryTxn
from hmi.stores.records.table import TENANT, RecordTable
from tests.hmi.labs.api_world import World, running, tenant
from tests.hmi.labs.runner_bodies import version_by


async def test_the_contract_is_rendered_once_and_sent_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rendered: list[object] = []
    document = table.document
    monkeypatch.setattr(table, "document", lambda table: rendered.append(table) or document(table))
    table.contract.cache_clear()
    async with running(tmp_path) as world:
        answers = [await world.call("GET", "/openapi.json") for _ in range(5)]
        assert len(rendered) == 1
        assert all((status, body) == (200, document(table.ROUTES)) for status, body, _ in answers)
        tag = answers[0][2].headers["ETag"]
        for known, status in ((tag, 304), (f'"x", {tag}', 304), ("*", 304), ('"x"', 200), ("nonsense", 200)):
            async with world.client.get("/openapi.json", headers={"If-None-Match": known}) as answer:
                assert (answer.status, answer.headers["ETag"]) == (status, tag), known
                assert bool(await answer.read()) is (status == 200)


async def test_a_hundred_scrapes_are_one_rendering(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.api.views.scrape.SHOWN_S", 3600.0)
    rendered: list[object] = []
    count = job_table.count_jobs
    monkeypatch.setattr(job_table, "count_jobs", lambda txn: rendered.append(1) or count(txn))
    async with running(tmp_path) as world:
        _, admin = world.services.manager.create_key(None, ("admin",))

        async def scrape(key: str | None) -> str:
            headers = {"Authorization": f"Bearer {key}"} if key else {}
            async with world.client.get("/metrics", headers=headers) as answer:
                return await answer.text()

        # Some clients leave before they are answered; what the server began for them is not begun again.
        for _ in range(10):
            gone = asyncio.create_task(scrape(None))
            await asyncio.sleep(0.001)
            gone.cancel()
        texts = await asyncio.gather(*(scrape(None) for _ in range(50)), *(scrape(admin) for _ in range(50)))
        assert len(rendered) == 2, "one for administrators, one for all others"
        assert len(set(texts)) == 2


def fill(world: World, count: int) -> None:
    """Create `count` tenants, each with a model and an ended job."""
    registry = world.services.manager.registry
    table = registry._table

    def body(txn: RegistryTxn) -> None:
        for i in range(count):
            name = f"t{i:05d}"
            table.put(txn, TENANT + name, TenantRecord(tenant=name, created=now()))
            made = ModelRecord(tenant=name, name="m", current=1, versions=(version_by(f"j{i}", version=1),))
            table.put(txn, model_table.model_key(ModelId(name, "m")), made)
            job_table.put_job(
                table,
                txn,
                JobRecord(job=f"j{i:06d}", kind="fine_tune", state="failed", created=now(), tenant=name),
            )

    registry._database.write(body)


async def test_lists_read_a_page_and_not_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(job_table, "LOOKED_AT", 50)
    monkeypatch.setattr("hmi.api.handlers.models.LOOKED_AT", 50)
    async with running(tmp_path, job_workers=0) as world:
        acme = await tenant(world)
        fill(world, 400)
        read: list[str] = []
        parse = RecordTable._parse
        monkeypatch.setattr(
            RecordTable, "_parse", lambda self, key, *a: read.append(key) or parse(self, key, *a)
        )
        for path, key, most in (
            ("/manage/jobs?limit=10", None, 15),
            ("/manage/jobs?limit=10&state=succeeded", None, 55),
            ("/manage/jobs?limit=10&tenant=t00007", None, 15),
            ("/manage/jobs", acme, 5),
            ("/manage/models?limit=10", None, 15),
            ("/manage/models?limit=10&domain=none", None, 55),
            ("/manage/models?tenant=t00007", None, 5),
            ("/manage/models", acme, 5),
            ("/manage/tenants", acme, 5),
            ("/manage/tenants/acme/usage", acme, 5),
            ("/manage/tenants/acme/keys", acme, 10),
            ("/manage/domains", acme, 405),
            ("/manage/domains", acme, 5),  # nothing has changed in between
            ("/metrics", None, 5),
            ("/healthz", None, 0),
            ("/readyz", None, 0),
        ):
            read.clear()
            async with world.client.get(
                path, headers={"Authorization": f"Bearer {key}"} if key else {}
            ) as answer:
                assert answer.status == 200
            assert len(read) <= most, path
        registry = world.services.manager.registry
        seen = registry.generation()
        assert registry.generation() == seen
        registry.store("key", "scope", {})
        assert registry.generation() > seen
        assert await everything(world, "/manage/models?domain=tiny.news&limit=9", "models") == 400
        assert await everything(world, "/manage/models?domain=none&limit=9", "models") == 0
        assert await everything(world, "/manage/jobs?state=failed&limit=9", "jobs") == 400
        assert await everything(world, "/manage/jobs?kind=build_plot&limit=9", "jobs") == 0


async def everything(world: World, path: str, name: str) -> int:
    """The length of a list, read page by page; no entry comes twice."""
    seen: list[str] = []
    after = ""
    while True:
        status, body, _ = await world.call("GET", f"{path}{after}")
        assert status == 200
        seen += [row[name.removesuffix("s")] for row in body[name]]
        if body["next"] is None:
            assert len(set(seen)) == len(seen)
            return len(seen)
        after = f"&after={body['next']}"


async def test_a_client_that_does_not_read_is_taken_to_be_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(events, "UNREAD_S", 0.2)
    ended = asyncio.get_running_loop().create_future()

    async def endless(open_: events.Events) -> None:
        try:
            while True:
                await open_.send("text", '"' + "a" * 65_536 + '"')
        except BaseException as error:
            ended.set_result(error)
            raise

    async def handler(request: web.Request) -> web.StreamResponse:
        return await events.stream(request, endless, lambda error: {})

    app = web.Application()
    app.router.add_get("/", handler)
    async with TestServer(app) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port, limit=1)
        writer.write(b"GET / HTTP/1.1\r\nHost: here\r\n\r\n")
        async with asyncio.timeout(30):
            assert isinstance(await ended, ConnectionResetError)
            got = b""
            with suppress(ConnectionResetError):
                while more := await reader.read(1 << 20):
                    got = more
        assert not got.endswith(b"0\r\n\r\n"), "the stream was ended as if it were whole"
        writer.close()
