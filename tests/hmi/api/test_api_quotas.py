"""Quotas of tenants, event streams that end with their key, and what a tenant learns of other tenants."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from hmi.api.access import quotas
from hmi.api.handlers import jobs
from hmi.api.views.records import job_view
from hmi.core import JobRecord, ModelId, Progress, now
from hmi.jobs.runtime.folders import JobFolder, new_job_id
from hmi.stores.records import job_table
from tests.hmi.labs.api_world import MODEL, World, rows, running, tenant
from tests.hmi.labs.manager_lab import add_root
from tests.hmi.labs.runner_bodies import version_by


async def test_a_tenant_holds_so_many_keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "TENANT_KEYS", 3)
    async with running(tmp_path) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")

        async def issue(key: str | None, **headers: str) -> tuple[int, Any]:
            status, body, _ = await world.call(
                "POST", "/manage/tenants/acme/keys", {}, key=key, headers=headers
            )
            return status, body

        once = {"Idempotency-Key": "one"}
        assert (await issue(acme, **once))[0] == 201
        status, second = await issue(acme)
        assert status == 201
        status, body = await issue(acme)
        assert (status, body["error"]["kind"], body["error"]["details"]["limit"]) == (
            429,
            "quota_exceeded",
            3,
        )
        status, replaced = await issue(acme, **once)
        assert status == 201, "a repetition replaces its key and adds none"
        assert (await issue(None))[0] == 201, "an administrator is not bound"
        assert (await world.call("POST", "/manage/tenants/zeta/keys", {}, key=zeta))[0] == 201
        for key in (second["key_id"], *(k.key_id for k in world.services.manager.registry.keys("acme")[-1:])):
            assert (await world.call("DELETE", f"/manage/tenants/acme/keys/{key}", key=acme))[0] == 200
        assert (await issue(acme))[0] == 201
        await world.call("DELETE", f"/manage/tenants/acme/keys/{replaced['key_id']}", key=acme)
        while (await issue(acme))[0] == 201:
            pass
        assert (await issue(acme, **once))[0] == 429, "its key was revoked: a repetition would add one"


async def test_a_cancelled_job_is_no_way_around_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_table, "PER_DAY", 4)
    async with running(tmp_path, job_workers=0) as world:
        add_root(world.services.manager)
        acme, zeta = await tenant(world), await tenant(world, "zeta")

        async def begin(key: str | None, owner: str = "acme") -> tuple[int, Any]:
            given = {**MODEL, "model": f"{owner}.m"}
            status, body, _ = await world.upload("/manage/models", given, {"data": rows(4)}, key=key)
            return status, body

        for _ in range(4):
            status, body = await begin(acme)
            assert status == 202
            assert (await world.call("DELETE", f"/manage/jobs/{body['job']}", key=acme))[0] == 200
        before = sorted(p.name for p in (tmp_path / "jobs").iterdir())
        status, body = await begin(acme)
        assert (status, body["error"]["kind"], body["error"]["details"]["limit"]) == (
            429,
            "quota_exceeded",
            4,
        )
        assert sorted(p.name for p in (tmp_path / "jobs").iterdir()) == before, (
            "refused before anything is written"
        )
        assert (await begin(zeta, "zeta"))[0] == 202
        assert (await begin(None))[0] == 202
        # A day later they no longer count.
        monkeypatch.setattr(job_table, "DAY_S", 0.0)
        assert (await world.call("DELETE", f"/manage/jobs/{(await listed(world, acme))[0]}", key=acme))[
            0
        ] == 200
        await asyncio.sleep(0.002)
        assert (await begin(acme))[0] == 202


async def listed(world: World, key: str) -> list[str]:
    _, body, _ = await world.call("GET", "/manage/jobs", key=key)
    return [job["job"] for job in body["jobs"]]


async def test_a_tenant_changes_things_at_a_bounded_pace(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "CHANGES_AT_ONCE", 5)
    monkeypatch.setattr(quotas, "CHANGES_PER_S", 1e-6)
    async with running(tmp_path) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        path = "/manage/tenants/acme/keys/none"
        assert [(await world.call("DELETE", path, key=acme))[0] for _ in range(6)] == [404] * 5 + [429]
        status, _, answer = await world.call("POST", "/manage/tenants/acme/keys", {}, key=acme)
        assert (status, int(answer.headers["Retry-After"]) > 0) == (429, True)
        assert (await world.call("GET", "/manage/jobs", key=acme))[0] == 200, "reading is not changing"
        checked = await world.upload("/manage/check", {}, {"data": rows(12)}, key=acme)
        assert checked[0] == 200, "nor is checking a file"
        assert (await world.call("DELETE", "/manage/tenants/zeta/keys/none", key=zeta))[0] == 404
        assert (await world.call("DELETE", path))[0] == 404
        monkeypatch.setattr(quotas, "CHANGES_PER_S", 1e6)
        assert (await world.call("DELETE", path, key=acme))[0] == 404, "it may go on after a while"


def add_job(world: World, owner: str | None, state: str = "queued") -> str:
    job = new_job_id()
    record = JobRecord(job=job, kind="fine_tune", state=state, created=now(), tenant=owner)  # type: ignore[arg-type]
    world.services.manager.registry.put_job(record)
    return job


@contextmanager
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    with monkeypatch.context() as patched:
        patched.setattr(jobs, "POLL_S", 0.01)
        yield


async def events_of(world: World, job: str, key: str, after_first: Any) -> list[tuple[str, Any]]:
    """All events of a stream; `after_first` is called after the first one."""
    headers = {"Authorization": f"Bearer {key}"}
    async with world.client.get(f"/manage/jobs/{job}/events", headers=headers) as answer:
        assert answer.status == 200
        first = await answer.content.readuntil(b"\n\n")
        after_first()
        text = (first + await asyncio.wait_for(answer.content.read(), 30)).decode()
    assert "HTTP/1.1" not in text
    events = [block.split("\n") for block in text.strip().split("\n\n") if not block.startswith(":")]
    return [(e.removeprefix("event: "), json.loads(d.removeprefix("data: "))) for e, d in events]


async def test_a_stream_ends_with_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, job_workers=0) as world:
        with fast(monkeypatch):
            acme = await tenant(world)
            job = add_job(world, "acme")
            (key,) = world.services.manager.registry.keys("acme")
            found = await events_of(world, job, acme, lambda: world.services.manager.revoke_key(key.key_id))
            assert [event for event, _ in found] == ["progress", "error"]
            assert found[-1][1]["error"]["kind"] == "unauthorised"
            assert found[-1][1]["error"]["request_id"]


async def test_only_a_job_that_runs_has_a_time_to_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stopped_early = Progress(phase="fine-tuning", step=4, total=12, rate=2.0, eta_ms=4000)
    async with running(tmp_path, job_workers=0) as world:
        acme = await tenant(world)
        with fast(monkeypatch):
            for state in ("queued", "succeeded", "failed", "cancelled"):
                job = add_job(world, "acme", state)
                folder = JobFolder(tmp_path / "jobs", job)
                folder.path.mkdir(parents=True)
                folder.write_progress(stopped_early)
                _, view, _ = await world.call("GET", f"/manage/jobs/{job}")
                _, listed, _ = await world.call("GET", f"/manage/jobs?state={state}")
                assert view["progress"] == {**stopped_early.model_dump(), "eta_ms": None}, state
                assert listed["jobs"] == [view]
                if state != "queued":
                    ((event, told),) = await events_of(world, job, acme, lambda: None)
                    assert (event, told) == ("end", view)
    record = JobRecord(job="j", kind="fine_tune", state="running", created=now())
    assert job_view(record, stopped_early).progress == stopped_early


async def test_an_error_in_a_stream_is_an_event_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, job_workers=0) as world:
        with fast(monkeypatch):
            acme = await tenant(world)
            manager = world.services.manager
            job = add_job(world, "acme")

            def breaks() -> None:
                def broken(_: str) -> None:
                    raise ZeroDivisionError("a secret of the house")

                monkeypatch.setattr(manager, "job", broken)

            found = await events_of(world, job, acme, breaks)
            assert [event for event, _ in found] == ["progress", "error"]
            assert found[-1][1]["error"]["kind"] == "internal"
            assert "secret" not in json.dumps(found)
            # The connection still works: the next request on it is answered.
            assert (await world.call("GET", "/manage/jobs", key=acme))[0] == 200


async def test_a_tenant_follows_so_many_jobs_at_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quotas, "TENANT_STREAMS", 2)
    async with running(tmp_path, job_workers=0) as world:
        with fast(monkeypatch):
            acme = await tenant(world)
            path = f"/manage/jobs/{add_job(world, 'acme')}/events"
            headers = {"Authorization": f"Bearer {acme}"}
            async with (
                world.client.get(path, headers=headers),
                world.client.get(path, headers=headers) as second,
            ):
                status, body, _ = await world.call("GET", path, key=acme)
                assert (status, body["error"]["kind"]) == (429, "quota_exceeded")
                second.close()
                while (await world.client.get(path, headers=headers)).status != 200:
                    await asyncio.sleep(0.01)


async def test_another_tenants_names_and_missing_ones_get_equal_answers(tmp_path: Path) -> None:
    async with running(tmp_path, job_workers=0) as world:
        add_root(world.services.manager)
        acme, _ = await tenant(world), await tenant(world, "zeta")
        registry = world.services.manager.registry
        registry.publish_model(ModelId("zeta", "m"), version_by("j0"))
        theirs, none = add_job(world, "zeta"), new_job_id()
        admins = add_job(world, None)
        (key,) = registry.keys("zeta")
        model = {"inputs": "a"}
        create = {**MODEL, "data": {"path": "x"}}
        cases: list[tuple[str, str, Any, str, str]] = [
            (method, path, body, there, nowhere)
            for there, nowhere, calls in (
                (theirs, none, JOB_CALLS),
                (admins, none, JOB_CALLS),
                ("zeta.m", "zeta.x", MODEL_CALLS),
                (
                    "zeta",
                    "none",
                    [
                        ("GET", "/manage/tenants/ID/usage", None),
                        ("GET", "/manage/tenants/ID/keys", None),
                        ("POST", "/manage/tenants/ID/keys", {}),
                        ("GET", "/manage/models?tenant=ID", None),
                        ("GET", "/manage/jobs?tenant=ID", None),
                    ],
                ),
                (
                    key.key_id,
                    "k0000000000000000",
                    [
                        ("DELETE", "/manage/tenants/acme/keys/ID", None),
                        ("DELETE", "/manage/tenants/zeta/keys/ID", None),
                    ],
                ),
                ("zeta.m", "acme.x", [("POST", "/infer/ID", model), ("GET", "/manage/models/ID", None)]),
                ("zeta.m", "acme.x", [("POST", "/infer", [{**model, "model": "ID"}])]),
                ("zeta.m", "none.m", [("POST", "/manage/models", {**create, "model": "ID"})]),
            )
            for method, path, body in calls
        ]
        for method, path, body, there, nowhere in cases:
            said = [await told(world, method, path, body, name, acme) for name in (there, nowhere)]
            assert said[0] == said[1], path
            assert said[0][0] == 404, (path, said)


JOB, A_MODEL = "/manage/jobs/ID", "/manage/models/ID"
JOB_CALLS = [("GET", JOB, None), ("DELETE", JOB, None), ("GET", f"{JOB}/events", None)]
MODEL_CALLS = [
    ("GET", A_MODEL, None),
    ("DELETE", A_MODEL, None),
    ("GET", f"{A_MODEL}/module", None),
    ("POST", f"{A_MODEL}/rollback", {"version": 1}),
    ("POST", f"{A_MODEL}/update", {"data": {"path": "x"}}),
    ("POST", "/infer/ID", {"inputs": "a"}),
    ("POST", "/infer", [{"inputs": "a", "model": "ID"}]),
]


async def told(
    world: World, method: str, path: str, body: Any, name: str, key: str
) -> tuple[int, str, list[str]]:
    """(status, text, headers) of an answer, without the request's id."""
    sent = None if body is None else json.loads(json.dumps(body).replace("ID", name))
    status, answer, response = await world.call(
        method, path.replace("ID", name), sent, key=key, headers={"X-Request-Id": "one"}
    )
    same = sorted(h for h in response.headers if h != "Date" and h != "Content-Length")
    # A message may name the tenant of a model without the model.
    text = json.dumps(answer).replace(name, "ID").replace(repr(name.partition(".")[0]), "'TENANT'")
    return status, text, same
