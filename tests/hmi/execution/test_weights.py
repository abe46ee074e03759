"""Weights, priorities and refusals, from the command line and HTTP to the queue."""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hmi.config import Settings
from hmi.core import KeyRecord, TenantRecord
from hmi.engine import Engine
from hmi.errors import InvalidInput
from hmi.manager import Manager
from hmi.stores.records.tenant_cache import TenantCache
from tests.hmi.labs.api_world import World, hmi, running, tenant
from tests.waiting import until


def test_a_tenants_weight_is_read_from_old_records_and_changes_at_once(tmp_path: Path) -> None:
    manager = Manager(_settings(tmp_path))
    try:
        old = TenantRecord.model_validate_json('{"tenant": "acme", "created": "2026-01-01T00:00:00Z"}')
        key = KeyRecord(key_id="k", sha256="0" * 64, tenant="acme", scopes=("infer",), created="")
        manager.registry.create_tenant(old, key)
        weights = TenantCache(manager.registry)
        assert weights.weight("acme") == 1.0
        assert manager.set_tenant("acme", weight=2.5).weight == 2.5
        assert weights.weight("acme") == 2.5, "a running engine need not restart"
        assert manager.set_tenant("acme").weight == 2.5, "nothing given, nothing changed"
        assert weights.weight("nobody") == 1.0
        for wrong in (0.0, -1.0, 1e9, float("nan")):
            with pytest.raises(InvalidInput, match="weight"):
                manager.set_tenant("acme", weight=wrong)
        manager.delete_tenant("acme")
        assert weights.weight("acme") == 1.0
    finally:
        manager.close()


def test_a_registry_is_read_once_until_it_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    manager = Manager(_settings(tmp_path))
    try:
        manager.create_tenant("acme", weight=3.0)
        weights, read = TenantCache(manager.registry), manager.registry.tenant
        reads: list[str] = []

        def counted(name: str) -> TenantRecord:
            reads.append(name)
            return read(name)

        monkeypatch.setattr(manager.registry, "tenant", counted)
        assert [weights.weight("acme") for _ in range(5)] == [3.0] * 5
        assert reads == ["acme"]
    finally:
        manager.close()


def test_the_command_line_sets_a_weight(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", tmp_path)
    hmi(capsys, "tenant", "create", "acme", "--weight", 2, *data)
    hmi(capsys, "tenant", "create", "zeta", *data)

    def weights() -> dict[str, float]:
        listed = json.loads(hmi(capsys, "tenant", "list", "--json", *data))
        return {row["tenant"]: row["weight"] for row in listed}

    assert weights() == {"acme": 2.0, "zeta": 1.0}
    changed = hmi(capsys, "tenant", "set", "zeta", "--weight", 0.5, "--json", *data)
    assert json.loads(changed)["weight"] == 0.5
    assert weights() == {"acme": 2.0, "zeta": 0.5}
    assert "weight" in hmi(capsys, "tenant", "set", "zeta", "--weight", 0, *data, code=1)


async def test_only_an_administrator_sets_a_weight(tmp_path: Path) -> None:
    async with running(tmp_path, job_workers=0) as world:
        acme, _ = await tenant(world), await tenant(world, "zeta")
        path = "/manage/tenants/acme"
        assert (await world.call("PATCH", path, {"weight": 9}, key=acme))[0] == 403
        status, view, _ = await world.call("PATCH", path, {"weight": 2})
        assert (status, view["weight"]) == (200, 2.0)
        for wrong in (0, -1, 1e9, "2"):
            status, body, _ = await world.call("PATCH", path, {"weight": wrong})
            assert (status, body["error"]["details"]["field"]) == (422, "weight")
        for nothing in ({}, {"weight": None}):
            status, body, _ = await world.call("PATCH", path, nothing)
            assert (status, body["error"]["kind"]) == (422, "invalid_input")
            assert "changes nothing: give one or more of weight" in body["error"]["message"]
        assert (await world.call("PATCH", "/manage/tenants/nobody", {"weight": 2}))[0] == 404
        _, listed, _ = await world.call("GET", "/manage/tenants", key=acme)
        assert [(row["tenant"], row["weight"]) for row in listed["tenants"]] == [("acme", 2.0)]


async def test_a_full_queue_is_429_for_the_tenant_that_fills_it_and_503_for_others(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder, queue_tokens=64, batch_ms=1, job_workers=0) as world:
        engine = world.services.engine
        assert isinstance(engine, Engine)
        queue = engine._queue
        assert (await infer(world))[0] == 200
        with held(engine, monkeypatch) as begun:
            first = asyncio.create_task(infer(world, ["market stock price"] * 40))
            await until(lambda: begun.is_set() and queue.tokens > 64)
            # What waits is predicted to take 7.5 seconds.
            monkeypatch.setattr(queue, "_seconds", lambda work: 7.5)
            status, body, answer = await infer(world)
            assert (status, body["error"]["kind"]) == (429, "quota_exceeded")
            assert answer.headers["Retry-After"] == "8"
            assert "tenant acme has" in body["error"]["message"]
            # To a tenant with less than its share, the server is full.
            monkeypatch.setattr(queue._room, "_share", 1 << 20)
            monkeypatch.setattr(queue._room, "_counted", 1 << 20)
            status, body, answer = await infer(world)
            assert (status, body["error"]["kind"]) == (503, "unavailable")
            assert answer.headers["Retry-After"] == "8"
            # Its client goes: what waits leaves at once, although no batch is cut meanwhile.
            first.cancel()
            await until(lambda: queue.tokens == 0)
        await asyncio.gather(first, return_exceptions=True)


async def test_a_longest_wait_refuses_calls_and_a_drain_answers_those_accepted(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(folder, queue_s=1, batch_ms=1, job_workers=0) as world:
        engine = world.services.engine
        assert isinstance(engine, Engine)
        with held(engine, monkeypatch) as begun:
            calls = [asyncio.create_task(infer(world, priority=p)) for p in ("low", "normal", "high") * 4]
            late = asyncio.create_task(infer(world, deadline_ms=50))
            await until(lambda: begun.is_set() and sum(1 for _ in engine._queue._waiting) >= 11)
            assert (await late)[0] == 504
            assert b"hmi_deadline_misses_total 1.0" in world.services.monitoring.metrics.render()
            with monkeypatch.context() as patch:
                patch.setattr(engine._queue._pace, "seconds", lambda kind, work: 0.3)
                assert (await infer(world))[0] == 429, "a quarter of the longest wait is one tenant's"
            stopping = asyncio.create_task(engine.stop())
            await asyncio.sleep(0)
            status, _, answer = await infer(world)
            assert (status, int(answer.headers["Retry-After"]) >= 1) == (503, True)
        assert [status for status, _, _ in await asyncio.gather(*calls)] == [200] * 12
        await stopping


@contextmanager
def held(engine: Engine, monkeypatch: pytest.MonkeyPatch) -> Iterator[threading.Event]:
    """Batches wait on their thread until the block ends. Yields what is set when the first one begins."""
    begun, go_on, run = threading.Event(), threading.Event(), engine._runner.run

    def wait(*given: Any) -> Any:
        begun.set()
        assert go_on.wait(60)
        return run(*given)

    monkeypatch.setattr(engine._runner, "run", wait)
    try:
        yield begun
    finally:
        go_on.set()


async def infer(world: World, inputs: Any = "market stock", **parameters: Any) -> tuple[int, Any, Any]:
    return await world.call("POST", "/infer/acme.m", {"inputs": inputs, "parameters": parameters})


def _settings(folder: Path) -> Settings:
    return Settings(data=folder / "data")
