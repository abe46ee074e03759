"""The HTTP API against curious tenants, behind proxies, and with inputs that would block the event loop."""

from __future__ import annotations

import json
import re
import threading
from pathlib import Path
from typing import Any

import pytest

from hmi.api.access import quotas
from hmi.api.http import dispatch
from hmi.api.http import request_body as body_module
from hmi.metrics import Metrics
from tests.hmi.labs.api_world import MODEL, World, rows, running, tenant
from tests.hmi.labs.manager_lab import add_root


async def named(world: World, key: str | None, path: str) -> tuple[int, str]:
    """Create a model whose data is the file `path`; return (status, message without the path)."""
    owner = {**MODEL, "data": {"path": path}}
    status, body, _ = await world.call("POST", "/manage/models", owner, key=key)
    return status, body["error"]["message"].replace(repr(path), "PATH")


async def test_a_tenant_names_its_own_uploads_only(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        uploads = tmp_path / "uploads"
        for name in ("acme", "zeta"):
            (uploads / name / "sub").mkdir(parents=True)
            (uploads / name / f"{name}.jsonl").write_bytes(rows(4))
        (uploads / "acme" / "there").symlink_to(uploads / "zeta" / "zeta.jsonl")
        (uploads / "acme" / "nowhere").symlink_to(uploads / "zeta" / "none.jsonl")
        own = await named(world, acme, "acme.jsonl")
        assert (own[0], "tiny" in own[1]) == (404, True), "the file is found, its domain is not"
        for there, nowhere in (
            ("zeta/zeta.jsonl", "zeta/none.jsonl"),
            ("zeta/sub", "none/sub"),
            ("../zeta/zeta.jsonl", "../zeta/none.jsonl"),
            (str(uploads / "zeta" / "zeta.jsonl"), str(uploads / "zeta" / "none.jsonl")),
            ("there", "nowhere"),
        ):
            said = await named(world, acme, there)
            assert said == await named(world, acme, nowhere)
            assert said[0] in (404, 422)
            assert "tiny" not in said[1]
        assert (await named(world, acme, "sub"))[0] == 422
        assert "tiny" in (await named(world, None, "zeta/zeta.jsonl"))[1], "an administrator names any"
        assert "tiny" not in (await named(world, zeta, "acme.jsonl"))[1]


async def test_a_proxy_in_front_needs_keys(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        key = await tenant(world)
        for header in ("Forwarded", "X-Forwarded-For", "x-forwarded-proto", "Via", "X-Real-IP"):
            status, body, _ = await world.call("GET", "/manage/tenants", headers={header: "10.0.0.1"})
            assert (status, "hmi key create --admin" in body["error"]["message"]) == (403, True), header
            assert (await world.call("GET", "/manage/models", key=key, headers={header: "10.0.0.1"}))[
                0
            ] == 200


async def test_metrics_name_tenants_to_administrators_only(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        acme = await tenant(world)
        usage = world.services.monitoring.metrics.usage
        usage.add("acme", requests=2, tokens=5, compute_ms=1000)
        usage.add("zeta", requests=3, tokens=7, compute_ms=500)

        async def scrape(**headers: str) -> str:
            async with world.client.get("/metrics", headers=headers) as response:
                assert response.status == 200
                return await response.text()

        assert 'hmi_tenant_requests_total{tenant="acme"} 2.0' in await scrape()
        _, admin = world.services.manager.create_key(None, ("admin",))
        assert 'tenant="acme"' in await scrape(Authorization=f"Bearer {admin}")
        for headers in ({}, {"Authorization": f"Bearer {acme}"}, {"Authorization": "Bearer wrong"}):
            text = await scrape(**headers)
            assert "acme" not in text
            assert "hmi_tenant_requests_total 5.0" in text
            assert "hmi_tenant_compute_seconds_total 1.5" in text
            assert "hmi_request_seconds_bucket{" in text
        assert isinstance(world.services.monitoring.metrics, Metrics)


async def test_metrics_answer_beside_a_damaged_count_of_jobs(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        key = b"jobcount/queued"
        with (world.services.settings.data / "registry" / "data.mdb").open("r+b") as file:
            raw = file.read()
            for found in re.finditer(key, raw):
                file.seek(found.end())  # the first byte of the checksum
                file.write(bytes([raw[found.end()] ^ 1]))
        async with world.client.get("/metrics") as response:
            text = await response.text()
            assert response.status == 200
        assert "hmi_jobs_unread 1.0" in text
        assert 'hmi_jobs{state="running"} 0.0' in text
        assert 'hmi_jobs{state="queued"}' not in text
        assert "hmi_batch_inputs_count" in text


async def test_huge_inputs_do_not_hold_up_the_loop(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path) as world:
        await tenant(world)
        small = {"inputs": [{"tokens": ["a"] * 10_001}]}
        status, body, _ = await world.call("POST", "/infer/acme.m", small)
        details = body["error"]["details"]
        assert (status, body["error"]["kind"], details["field"]) == (413, "too_large", "inputs[0].tokens")
        assert details["limit"] == 10_000
        js = {"Content-Type": "application/json"}
        many = json.dumps({"inputs": [{"tokens": ["ab"] * 10_000}] * 12}).encode()
        parsed_in: list[str] = []
        parse = body_module.parse

        def watched(model: Any, data: bytes, *more: Any) -> Any:
            parsed_in.append(threading.current_thread().name)
            return parse(model, data, *more)

        monkeypatch.setattr(body_module, "parse", watched)
        assert (await world.call("POST", "/infer/acme.m", data=many, headers=js))[0] == 404
        assert (await world.call("POST", "/infer/acme.m", {"inputs": ["a"] * 100}))[0] == 404
        assert parsed_in[0].startswith("hmi-bodies"), "nothing large on the event loop"
        assert parsed_in[1] == threading.main_thread().name, "nothing small away from it"
        empty = json.dumps({"inputs": [{"tokens": [""] * 10_000}] * 12}).encode()
        status, body, _ = await world.call("POST", "/infer/acme.m", data=empty, headers=js)
        assert (status, body["error"]["details"]["field"]) == (422, "inputs[0].tokens[0]")


def test_large_answers_are_written_as_small_ones() -> None:
    body = {"a": [0.1, 1e-9, "é", None, True], "b": {"c": []}}
    assert dispatch._text_in_chunks(body) == dispatch._ENCODER.encode(body)


async def test_a_tenant_cannot_fill_the_queue(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "TENANT_JOBS", 2)
    async with running(tmp_path, job_workers=0) as world:
        add_root(world.services.manager)
        acme, zeta = await tenant(world), await tenant(world, "zeta")

        async def create(name: str, key: str | None) -> tuple[int, dict[str, str]]:
            given = {**MODEL, "model": name}
            status, _, answer = await world.upload("/manage/models", given, {"data": rows(4)}, key=key)
            return status, dict(answer.headers)

        assert [(await create(f"acme.m{i}", acme))[0] for i in range(2)] == [202, 202]
        status, headers = await create("acme.m2", acme)
        assert (status, int(headers["Retry-After"]) > 0) == (429, True)
        assert len(list((tmp_path / "jobs").iterdir())) == 2
        assert (await create("zeta.m", zeta))[0] == 202
        assert (await create("acme.m2", None))[0] == 202, "an administrator is not limited"
