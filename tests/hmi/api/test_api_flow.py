"""A model's whole life over HTTP, with real jobs on a tiny root: root, domain, tenant,
model, infer, version, delete."""

from __future__ import annotations

import asyncio
import gzip
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.hmi.labs.api_world import World, corpus, made_folder, rows, running

OPTIONS = {"epochs": 2, "module": {"rank": 2}, "max_length": 32}


async def succeeds(world: World, job: str) -> None:
    ended = await world.finish(job)
    assert (ended["state"], ended["error"]) == ("succeeded", None)


async def test_life(
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    tiny_source: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made = await asyncio.to_thread(made_folder, tmp_path_factory.getbasetemp(), tiny_source, capsys)
    shutil.copytree(made, tmp_path / "d")
    async with running(tmp_path / "d") as world:
        _, found, _ = await world.call("GET", "/manage/roots")
        assert [r["root"] for r in found["roots"]] == ["tiny"]
        await domain_life(world)
        key, other = await two_tenants(world)
        await model_life(world, key)
        await inference(world, key, other)
        await figures(world, key, other)
        await endings(world)


async def domain_life(world: World) -> None:
    """A domain's life, with the events of its build."""
    spec = {"domain": "tiny/finance", "alpha": 80}
    status, body, _ = await world.upload("/manage/domains", spec, {"corpus": gzip.compress(corpus(seed=4))})
    assert status == 202
    async with world.client.get(f"/manage/jobs/{body['job']}/events") as response:
        assert response.headers["Content-Type"].startswith("text/event-stream")
        assert response.headers["X-Request-Id"]
        text = await asyncio.wait_for(response.text(), 60)
    kinds = [line.removeprefix("event: ") for line in text.splitlines() if line.startswith("event: ")]
    assert kinds[-1] == "end"
    assert "progress" in kinds[:-1]
    assert '"state":"succeeded"' in text.rpartition("data: ")[2]
    status, shown, _ = await world.call("GET", "/manage/domains/tiny.finance")
    assert (status, shown["parent"], len(shown["versions"])) == (200, "tiny", 1)
    assert shown["entries"]["trigrams"] > 0
    _, listed, _ = await world.call("GET", "/manage/domains")
    assert [d["domain"] for d in listed["domains"]] == ["tiny", "tiny/finance"]
    version = {"version": shown["current"]}
    status, back, _ = await world.call("POST", "/manage/domains/tiny.finance/rollback", version)
    assert (status, back["current"]) == (200, shown["current"])
    status, body, _ = await world.call("POST", "/manage/domains/tiny.finance/rollback", {"version": "none"})
    assert status in (404, 422)


async def two_tenants(world: World) -> tuple[str, str]:
    _, made, _ = await world.call("POST", "/manage/tenants/acme/keys", {})
    status, other, _ = await world.call("POST", "/manage/tenants", {"tenant": "zeta"})
    assert (status, other["tenant"]) == (201, "zeta")
    return made["key"], other["key"]


async def model_life(world: World, key: str) -> None:
    spec = {"model": "acme.topic", "domain": "tiny/finance", "task": "classification", "options": OPTIONS}
    status, body, answer = await world.upload("/manage/models", spec, {"data": rows()}, key=key)
    assert (status, answer.headers["Location"]) == (202, f"/manage/jobs/{body['job']}")
    assert (await world.upload("/manage/models", spec, {"data": rows()}, key=key))[0] == 409
    await succeeds(world, body["job"])
    assert (await world.call("DELETE", f"/manage/jobs/{body['job']}", key=key))[0] == 409
    status, shown, _ = await world.call("GET", "/manage/models/acme.topic", key=key)
    assert (status, shown["current"], sorted(shown["labels"])) == (200, 1, ["biology", "finance"])
    _, body, _ = await world.upload("/manage/models/acme.topic/update", {}, {"data": rows()}, key=key)
    assert (await world.call("DELETE", f"/manage/jobs/{body['job']}", key=key))[0] == 200
    assert (await world.finish(body["job"]))["state"] == "cancelled"
    status, back, _ = await world.call("POST", "/manage/models/acme.topic/rollback", {"version": 1}, key=key)
    assert (status, back["current"], len(back["versions"])) == (200, 1, 1)
    assert (await world.call("POST", "/manage/models/acme.topic/rollback", {"version": 2}, key=key))[0] == 404
    _, page, _ = await world.call("GET", "/manage/models?limit=1", key=key)
    _, rest, _ = await world.call("GET", f"/manage/models?limit=1&after={page['next']}", key=key)
    assert [m["model"] for m in page["models"] + rest["models"]] == ["acme.m", "acme.topic"]
    assert rest["next"] is None
    _, some, _ = await world.call("GET", "/manage/models?domain=tiny.finance", key=key)
    assert [m["model"] for m in some["models"]] == ["acme.topic"]


async def inference(world: World, key: str, other: str) -> None:
    sent = {
        "inputs": ["the market falls", {"text": "a gene binds"}],
        "parameters": {"return": ["scores", "provenance"]},
    }
    status, answer, _ = await world.call("POST", "/infer/acme.topic", sent, key=key)
    assert (status, answer["model"], answer["version"], len(answer["outputs"])) == (200, "acme.topic", 1, 2)
    assert abs(sum(answer["outputs"][0]["scores"].values()) - 1) < 1e-4
    await provenance(world, key, answer["provenance"])
    assert all(name.endswith("_ms") for name in answer["timing"])
    mixed = [{"model": "acme.m", "inputs": "the market falls"}, {"model": "acme.topic", **sent}]
    before = await requests_of(world, key)
    status, answers, _ = await world.call("POST", "/infer", mixed, key=key)
    assert (status, [len(a["outputs"]) for a in answers]) == (200, [1, 2])
    assert await requests_of(world, key) == before + 2
    assert [a["model"] for a in answers] == ["acme.m", "acme.topic"]
    assert answers[1]["outputs"][0]["label"] == answer["outputs"][0]["label"]
    await wrong_inputs(world, key, other)


async def requests_of(world: World, key: str) -> int:
    _, use, _ = await world.call("GET", "/manage/tenants/acme/usage", key=key)
    return int(use["requests"])


async def provenance(world: World, key: str, of_two: dict[str, Any]) -> None:
    """Over a call's inputs, counts are added up; what belongs to the one model is stated once."""
    each = []
    for text in ("the market falls", "a gene binds"):
        sent = {"inputs": text, "parameters": {"return": ["provenance"]}}
        _, answer, _ = await world.call("POST", "/infer/acme.topic", sent, key=key)
        each.append(answer["provenance"])
    known = {"plot", "layers", "exact", "versions", "stages", "confidence", "level", "planner", "inputs"}
    assert set(of_two) == known
    assert (of_two["stages"], of_two["confidence"], of_two["level"]) == ({}, None, None), "no early exits"
    assert of_two["inputs"] == [*each[0]["inputs"], *each[1]["inputs"]]
    assert [each["layers"] for each in of_two["inputs"]] == [of_two["layers"]] * 2
    assert set(of_two["versions"]) == {"model", "plot", "domain", "root"}
    assert of_two["versions"] == each[0]["versions"] == each[1]["versions"]
    assert (of_two["layers"], of_two["exact"]) == (each[0]["layers"], False)
    assert of_two["plot"] == {name: each[0]["plot"][name] + each[1]["plot"][name] for name in each[0]["plot"]}
    assert of_two["versions"]["model"] == 1


async def wrong_inputs(world: World, key: str, other: str) -> None:
    call = world.call
    status, body, _ = await call(
        "POST", "/infer/acme.topic", {"inputs": [{"text": "a", "text_pair": "b"}]}, key=key
    )
    assert (status, body["error"]["details"]["field"]) == (422, "inputs[0]")
    mixed = [{"model": "acme.topic", "inputs": "a"}, {"model": "acme.topic", "inputs": [{"tokens": ["a"]}]}]
    status, body, _ = await call("POST", "/infer", mixed, key=key)
    assert (status, body["error"]["details"]["field"]) == (422, "[1].inputs[0]")
    assert body["error"]["message"].endswith("in [1].inputs[0]")
    for name in ("acme.none", "zeta.topic"):  # one that does not exist, and one that may be another tenant's
        mixed = [{"model": "acme.topic", "inputs": "a"}, *[{"model": name, "inputs": "a"}] * 2]
        status, body, _ = await call("POST", "/infer", mixed, key=key)
        assert (status, body["error"]["details"]) == (404, {"field": "[1].model"})
        assert body["error"]["message"] == f"there is no model {name!r}: check the name"
        status, body, _ = await call("POST", f"/infer/{name}", {"inputs": "a"}, key=key)
        assert (status, body["error"]["details"]) == (404, {})
    late = {"inputs": ["a"] * 50, "parameters": {"deadline_ms": 0.001}}
    status, body, _ = await call("POST", "/infer/acme.topic", late, key=key)
    assert (status, body["error"]["kind"]) == (504, "deadline_exceeded")
    for path in ("/manage/models/acme.topic", "/manage/tenants/acme/usage", "/manage/models?tenant=acme"):
        assert (await call("GET", path, key=other))[0] == 404
    assert (await call("POST", "/infer/acme.topic", {"inputs": "a"}, key=other))[0] == 404
    assert (await call("POST", "/infer", [{"model": "acme.topic", "inputs": "a"}], key=other))[0] == 404
    _, jobs, _ = await call("GET", "/manage/jobs", key=other)
    assert jobs["jobs"] == []
    _, jobs, _ = await call("GET", "/manage/jobs", key=key)
    assert [j["target"] for j in jobs["jobs"]] == ["acme.topic", "acme.topic", "acme.m"]
    assert (await call("GET", f"/manage/jobs/{jobs['jobs'][0]['job']}", key=other))[0] == 404


async def figures(world: World, key: str, other: str) -> None:
    _, use, _ = await world.call("GET", "/manage/tenants/acme/usage", key=key)
    assert (use["models"], use["requests"] > 0, use["tokens"] > 0) == (2, True, True)
    _, none, _ = await world.call("GET", "/manage/tenants/zeta/usage", key=other)
    assert (none["models"], none["requests"]) == (0, 0)
    status, stats, _ = await world.call("GET", "/manage/stats")
    assert (status, stats["counts"]["models"]) == (200, 2)
    async with world.client.get("/metrics") as response:
        text = await response.text()
    assert 'hmi_tenant_requests_total{tenant="acme"}' in text
    assert 'hmi_requests_total{outcome="deadline_exceeded",route="/infer/{model}"} 1.0' in text
    assert 'hmi_jobs{state="succeeded"}' in text


async def endings(world: World) -> None:
    status, body, _ = await world.call("DELETE", "/manage/domains/tiny.finance")
    assert (status, "acme.topic" in body["error"]["message"]) == (409, True)
    status, gone, _ = await world.call("DELETE", "/manage/tenants/acme")
    assert (status, gone["removed"]["models"]) == (200, 2)
    assert (await world.call("POST", "/infer/acme.topic", {"inputs": "a"}))[0] == 404
    assert (await world.call("DELETE", "/manage/domains/tiny.finance"))[0] == 200
    assert (await world.call("GET", "/manage/domains/tiny.finance"))[0] == 404
