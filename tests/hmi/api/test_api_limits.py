"""Limits of tenants over HTTP and on the command line: set, shown, enforced for calls, models and bytes."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.errors import QuotaExceeded
from hmi.manager import Manager
from hmi.stores.records import job_table
from tests.hmi.api.test_inference import Counting
from tests.hmi.labs.api_world import MODEL, World, hmi, rows, running, tenant
from tests.hmi.labs.manager_lab import add_model, add_root, publish_plot

TENANT = "/manage/tenants/acme"


async def limit(world: World, **limits: Any) -> tuple[int, Any]:
    status, body, _ = await world.call("PATCH", TENANT, {"limits": limits})
    return status, body


async def test_a_tenant_over_its_rate_is_told_when_to_come_back(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        assert (await limit(world, requests_per_s=0.2, tokens_per_s=100))[0] == 200

        async def ask(key: str | None = acme, text: str = "abc") -> tuple[int, Any, Any]:
            return await world.call("POST", "/infer/acme.m", {"inputs": text}, key=key)

        status, _, answer = await ask()
        assert (status, answer.headers["RateLimit-Policy"]) == (
            200,
            '"requests";q=2;w=10, "tokens";q=1000;w=10',
        )
        assert answer.headers["RateLimit"].startswith('"requests";r=1;t=')
        assert (await ask())[0] == 200
        status, body, answer = await ask()
        details = body["error"]["details"]
        assert (status, body["error"]["kind"], details["quota"]) == (429, "quota_exceeded", "requests_per_s")
        assert int(answer.headers["Retry-After"]) == details["retry_after_s"] == 5
        assert '"requests";r=0' in answer.headers["RateLimit"]
        status, body, answer = await ask(None)
        assert status == 429, "an administrator's calls for the tenant are the tenant's"
        assert "RateLimit" not in answer.headers
        await limit(world, requests_per_s=None, tokens_per_s=1)
        seen = [(await ask(text="x" * 64))[0] for _ in range(2)]
        assert seen == [200, 429], "the new limit holds at once; a large call may leave a debt"
        _, shown, _ = await world.call("GET", TENANT, key=acme)
        _, used, _ = await world.call("GET", f"{TENANT}/usage", key=acme)
        assert shown["limits"] == {"requests_per_s": None, "tokens_per_s": 1, "models": None, "bytes": None}
        assert shown["quota"]["requests_per_s"] is None
        assert shown["quota"]["tokens_per_s"]["burst"] == used["quota"]["tokens_per_s"]["burst"] == 10


async def test_defaults_hold_for_tenants_without_limits_of_their_own(tmp_path: Path) -> None:
    settings = {"tenant_requests_per_s": 1, "tenant_burst_s": 1, "tenant_models": 7}
    async with running(tmp_path, engine=Counting(), **settings) as world:
        await tenant(world)
        given = {"tenant": "free", "limits": {"requests_per_s": 0}}
        assert (await world.call("POST", "/manage/tenants", given))[0] == 201
        seen = {}
        for name in ("acme", "free"):
            seen[name] = [
                (await world.call("POST", f"/infer/{name}.m", {"inputs": "a"}))[0] for _ in range(5)
            ]
        assert (seen["acme"][0], seen["acme"][-1], seen["free"]) == (200, 429, [200] * 5)
        _, body, _ = await world.call("GET", "/manage/tenants/free")
        assert body["quota"] == {
            "requests_per_s": None,
            "tokens_per_s": None,
            "models": {"limit": 7, "used": 0, "left": 7},
            "bytes": None,
        }


@pytest.mark.parametrize(
    ("limits", "field"),
    [
        ({"requests_per_s": -1}, "limits.requests_per_s"),
        ({"models": 1.5}, "limits.models"),
        ({"bytes": 1 << 60}, "limits.bytes"),
        ({"rps": 1}, "limits.rps"),
    ],
)
async def test_an_impossible_limit_is_named(tmp_path: Path, limits: Any, field: str) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        status, body, _ = await world.call("PATCH", TENANT, {"limits": limits})
        assert (status, body["error"]["details"]["field"]) == (422, field)
        assert (await world.call("PATCH", TENANT, {"limits": {"models": 1}}, key=acme))[0] == 403


async def test_models_are_counted_with_those_in_the_making(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting(), job_workers=0) as world:
        add_root(world.services.manager)
        acme = await tenant(world)
        await limit(world, models=3)

        async def begin(name: str, key: str | None = acme) -> tuple[int, Any, Any]:
            given = {**MODEL, "model": f"acme.{name}"}
            return await world.upload("/manage/models", given, {"data": rows(4)}, key=key)

        answers = await asyncio.gather(*(begin(f"m{i}") for i in range(5)))
        assert sorted(status for status, *_ in answers) == [202] * 3 + [429] * 2
        refused = next(a for a in answers if a[0] == 429)
        told = {"quota": "models", "limit": 3, "used": 3, "retry_after_s": None}
        assert refused[1]["error"]["details"] == told
        assert "Retry-After" not in refused[2].headers, "time alone does not help"
        assert (await begin("m9", None))[0] == 429, "nor does an administrator's key"
        assert len(list((tmp_path / "jobs").iterdir())) == 3, "refused before anything is written"
        job = next(a for a in answers if a[0] == 202)[1]["job"]
        await world.call("DELETE", f"/manage/jobs/{job}", key=acme)
        assert (await begin("m9"))[0] == 202
        _, shown, _ = await world.call("GET", TENANT)
        assert shown["quota"]["models"] == {"limit": 3, "used": 0, "left": 3}


def test_a_version_that_exceeds_the_bytes_is_not_published(manager: Manager) -> None:
    manager.create_tenant("acme")
    add_root(manager)
    plot = publish_plot(manager, "tiny/a")
    add_model(manager, "acme.m", plot)
    before = manager.model("acme.m")
    size = before.live.bytes
    manager.set_tenant("acme", limits={"bytes": 2 * size, "models": 2})
    for job, bigger, model in (("j2", 1, "acme.m"), ("j3", 1, "acme.n")):
        version = before.live.model_copy(update={"version": 0, "job": job, "bytes": size + bigger})
        with pytest.raises(QuotaExceeded) as caught:
            manager.registry.publish_model(ModelId.parse(model), version)
        assert caught.value.details["quota"] == "bytes"
    assert manager.model("acme.m") == before
    version = before.live.model_copy(update={"version": 0, "job": "j4"})
    manager.registry.publish_model(ModelId.parse("acme.n"), version)
    assert manager.registry.rooms.stored("acme").bytes == 2 * size
    with pytest.raises(QuotaExceeded, match="2 models"):
        manager.registry.publish_model(ModelId.parse("acme.o"), version.model_copy(update={"job": "j5"}))
    assert manager.registry.publish_model(ModelId.parse("acme.n"), version).current == 1, "the same job again"
    # A tenant beyond a limit that was lowered may still make its models smaller.
    manager.set_tenant("acme", limits={"bytes": 1})
    for i in range(job_table.PER_DAY):
        smaller = version.model_copy(update={"job": f"s{i}", "bytes": 0})
        if len(manager.registry.publish_model(ModelId.parse("acme.n"), smaller).versions) == 8:
            break
    manager.registry.publish_model(ModelId.parse("acme.n"), smaller.model_copy(update={"job": "last"}))


def test_a_full_tenant_starts_no_training(manager: Manager) -> None:
    manager.create_tenant("acme")
    add_root(manager)
    add_model(manager, "acme.m", publish_plot(manager, "tiny/a"))
    manager.set_tenant("acme", limits={"bytes": manager.model("acme.m").live.bytes})
    with pytest.raises(QuotaExceeded, match="bytes"):
        manager.update_model("acme.m", data=rows(20))
    with pytest.raises(QuotaExceeded, match="bytes"):
        manager.create_model("acme.n", domain="tiny", task="classification", data=rows(20))
    assert list((manager.settings.data / "jobs").iterdir()) == []
    manager.set_tenant("acme", limits={"bytes": None})
    job = manager.update_model("acme.m", data=rows(20))
    manager.set_tenant("acme", limits={"bytes": 1})
    with pytest.raises(QuotaExceeded):
        manager.registry.rooms.check_job(manager.job(job.job))  # as the job does before it trains


def test_the_command_line_sets_and_shows_limits(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = ("--data", tmp_path)
    hmi(capsys, "tenant", "create", "acme", "--requests-per-s", "2.5", "--bytes", "50M", *data)
    hmi(capsys, "tenant", "set", "acme", "--models", 3, "--tokens-per-s", 0, *data)
    shown = json.loads(hmi(capsys, "tenant", "show", "acme", "--json", *data))
    assert shown["limits"] == {"requests_per_s": 2.5, "tokens_per_s": 0, "models": 3, "bytes": 50 << 20}
    assert shown["quota"]["requests_per_s"] == {"per_s": 2.5, "burst": 25, "left": 25, "full_s": 0}
    text = hmi(capsys, "tenant", "show", "acme", *data)
    assert "0 of 3 used" in text
    assert "no limit on tokens a second" in text
    hmi(capsys, "tenant", "set", "acme", "--models", "default", "--weight", 2, *data)
    assert "2.5 requests a second, no limit on tokens a second, 50.0 MiB stored" in hmi(
        capsys, "tenant", "list", *data
    )
    assert "nothing to change" in hmi(capsys, "tenant", "set", "acme", *data, code=2)
    assert "no tenant" in hmi(capsys, "tenant", "show", "none", *data, code=1)
