"""The audit log over HTTP: who did what, who was refused, and what survives a kill and a full disk."""

from __future__ import annotations

import asyncio
import json
import os
import signal
from contextlib import ExitStack, suppress
from pathlib import Path
from typing import Any

import pytest

from hmi.api.access import audit as audit_module
from hmi.api.access.audit import Audit
from hmi.cli.framework.client import HttpClient
from hmi.errors import HmiError
from hmi.stores.audit.lines import files
from hmi.stores.audit.log import AuditLog
from hmi.stores.audit.reading import read_page
from hmi.stores.audit.verifying import verify
from tests.disks import small_disk
from tests.hmi.api.test_inference import Counting
from tests.hmi.labs.api_world import World, hmi, running, tenant
from tests.hmi.labs.server_lab import ready, serving

KEYS = "/manage/tenants/acme/keys"


async def lines_of(world: World, key: str | None = None, **query: Any) -> list[dict[str, Any]]:
    """The lines that a caller sees."""
    page: dict[str, Any] = {"more": True, "position": None}
    found: list[dict[str, Any]] = []
    await world.services.access.audit.settled()
    while page["more"]:
        asked = query if page["position"] is None else {**query, "after": page["position"]}
        status, page, _ = await world.call("GET", "/manage/audit", params=asked, key=key)
        assert status == 200, page
        found += page["lines"]
    return found


def events(lines: list[dict[str, Any]], event: str) -> list[dict[str, Any]]:
    return [line for line in lines if line["event"] == event]


async def test_a_change_has_a_line_before_it_and_one_after_it(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        (stored,) = world.services.manager.registry.keys("acme")
        headers = {"X-Request-Id": "one", "X-Forwarded-For": "10.1.2.3, <b>"}
        status, made, _ = await world.call("POST", KEYS, {"label": "secret label"}, key=acme, headers=headers)
        assert status == 201
        await world.call(
            "PATCH", "/manage/tenants/acme", {"weight": 2, "limits": {"models": 3, "bytes": None}}
        )
        await world.call("DELETE", f"{KEYS}/none", key=acme)
        await world.call("POST", "/manage/tenants", {"tenant": "acme"})
        begun, change = [events(await lines_of(world), name) for name in ("begun", "change")]
        assert [line["n"] for line in begun] == [line["begun"] for line in change]
        assert [line["outcome"] for line in change] == ["ok", "ok", "ok", "not_found", "conflict"]
        told = {
            name: change[1][name]
            for name in ("who", "key", "tenant", "call", "request", "address", "forwarded")
        }
        assert told == {
            "who": "acme",
            "key": stored.key_id,
            "tenant": "acme",
            "call": "POST /manage/tenants/{tenant}/keys",
            "request": "one",
            "address": "127.0.0.1",
            "forwarded": None,
        }
        assert change[1]["object"] == {"tenant": "acme", "key_id": made["key_id"]}
        assert change[2]["object"] == {
            "tenant": "acme",
            "weight": 2,
            "limits": {"models": 3, "bytes": "default"},
        }
        assert (change[2]["who"], change[4]["object"]) == ("administrator", {"tenant": "acme"})
        text = b"".join(file.read_bytes() for file in files(tmp_path / "audit")).decode()
        assert not any(secret in text for secret in (acme, made["key"], stored.sha256, "secret label"))
    report = verify(tmp_path / "audit")
    assert (report.faults, report.notes) == ([], [])


async def test_the_line_is_durable_before_the_answer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    synced: list[int] = []
    fsync = os.fsync
    async with running(tmp_path, engine=Counting()) as world:

        def watched(fd: int) -> None:
            fsync(fd)
            synced.append(os.fstat(fd).st_ino)

        monkeypatch.setattr(os, "fsync", watched)
        await tenant(world)
        (file,) = files(tmp_path / "audit")
        assert synced[-1] == file.stat().st_ino
        assert events(read_page(file.parent, None, None, lambda _: True, 99).lines, "change")


async def test_a_tenant_sees_its_own_lines_without_others_keys(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        manager = world.services.manager
        _, admin = manager.create_key(None, ["admin"])
        await world.call("POST", KEYS, {}, key=acme)
        await world.call("PATCH", "/manage/tenants/acme", {"weight": 3}, key=admin)
        await world.call("DELETE", "/manage/tenants/acme/keys/none", key=zeta)
        seen = await lines_of(world, acme)
        assert {line["tenant"] for line in seen} == {"acme"}
        (by_admin,) = (e for e in events(seen, "change") if (e["object"] or {}).get("weight"))
        assert (by_admin["who"], by_admin["key"], by_admin["address"]) == ("administrator", None, None)
        assert any(line["key"] and line["address"] for line in seen if line["who"] == "acme")
        assert {line["who"] for line in await lines_of(world, zeta)} == {"zeta", "administrator"}
        everything = await lines_of(world, admin)
        assert {"acme", "zeta"} < {line["who"] for line in everything}
        assert await lines_of(world, admin, tenant="zeta") != everything
        infer = manager.create_key("acme", ["infer"])[1]
        for key, status in ((infer, 403), (zeta, 404)):
            asked = await world.call("GET", "/manage/audit", params={"tenant": "acme"}, key=key)
            assert asked[0] == status


async def test_refused_callers_are_written_and_floods_are_counted(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        infer = world.services.manager.create_key("acme", ["infer"])
        for key in ("hmi_wrong", infer[1], acme):
            await world.call("DELETE", "/manage/tenants/acme", key=key)
        refused = events(await lines_of(world), "refused")
        assert [(line["outcome"], line["key"]) for line in refused[:1]] == [("unauthorised", None)]
        assert [line["outcome"] for line in refused] == ["unauthorised", "forbidden", "forbidden"]
        assert "hmi_wrong" not in json.dumps(refused)
        for _ in range(40):
            await world.call("POST", "/infer/acme.m", {"inputs": "a"}, key="hmi_guess")
    lines = read_page(tmp_path / "audit", None, None, lambda _: True, 999).lines
    refused = events(lines, "refused")
    assert len(refused) < 20
    assert sum(line.get("left_out", 0) + (line.get("outcome") is not None) for line in refused) == 43


async def test_an_administrators_calls_are_summed_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        for _ in range(30):
            assert (await world.call("POST", "/infer/acme.m", {"inputs": "a secret text"}))[0] == 200
            assert (await world.call("POST", "/infer/acme.m", {"inputs": "a"}, key=acme))[0] == 200
        await world.call("GET", "/manage/tenants")
        monkeypatch.setattr(audit_module, "REPEATED_S", 0.0)
        world.services.access.audit.sum_up()
        access = events(await lines_of(world), "access")
    infers = [line for line in access if line["call"] == "POST /infer/{model}"]
    assert [line["repeated"] for line in infers] == [None, 29]
    assert infers[0]["object"] == {"model": "acme.m"}
    assert "GET /manage/tenants" in {line["call"] for line in access}
    assert "secret" not in json.dumps(access)


async def test_many_changes_at_once_share_waits_for_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        writes: list[int] = []
        append = AuditLog.append

        def watched(log: AuditLog, events: Any, **how: bool) -> int:
            writes.append(len(events))
            return append(log, events, **how)

        monkeypatch.setattr(AuditLog, "append", watched)
        made = await asyncio.gather(*(tenant(world, f"t{i}") for i in range(40)))
        assert len(set(made)) == 40
        change = events(await lines_of(world), "change")
        assert sorted(line["object"]["tenant"] for line in change) == sorted(f"t{i}" for i in range(40))
        assert len(writes) < 60, writes
    assert verify(tmp_path / "audit").faults == []


async def test_on_a_full_disk_changes_are_refused_and_inference_goes_on(tmp_path: Path) -> None:
    with ExitStack() as stack:
        disk = stack.enter_context(small_disk(tmp_path / "data" / "audit", 1 << 19))
        async with running(tmp_path / "data", engine=Counting()) as world:
            acme = await tenant(world)
            with suppress(OSError), (disk / "filler").open("wb", buffering=0) as filler:
                while True:
                    filler.write(b"x" * 4096)
            status = 201
            while status == 201:  # until the last page of the log is full
                status, body, _ = await world.call("POST", KEYS, {})
            assert (status, body["error"]["kind"]) == (507, "storage_full")
            keys = len(world.services.manager.registry.keys("acme"))
            for _ in range(3):
                assert (await world.call("POST", KEYS, {}, key=acme))[0] == 507
                assert (await world.call("POST", "/infer/acme.m", {"inputs": "a"}))[0] == 200
            assert len(world.services.manager.registry.keys("acme")) == keys
            (disk / "filler").unlink()
            assert (await world.call("POST", KEYS, {}, key=acme))[0] == 201
        report = verify(disk)
        assert report.faults == []
        change = events(read_page(disk, None, None, lambda _: True, 9999).lines, "change")
        assert [line["outcome"] for line in change].count("ok") == keys + 1, "each change has its line"


async def test_repeated_accesses_take_bounded_memory(tmp_path: Path) -> None:
    written = Audit(AuditLog(tmp_path))
    for i in range(3 * audit_module.MOST_REPEATED):
        for _ in range(2):
            written.access({"event": "access", "call": "GET /x", "tenant": f"t{i}"})
    assert len(written._accesses) == audit_module.MOST_REPEATED
    await written.close()
    lines = read_page(tmp_path, None, None, lambda _: True, 10**6).lines
    assert len(events(lines, "access")) == 6 * audit_module.MOST_REPEATED


def test_what_was_acknowledged_is_in_the_log_after_a_kill(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = []
    with serving(tmp_path, "--job-workers", "0") as (url, server):
        ready(url)
        client = HttpClient(url)
        client.request("POST", "/manage/tenants", {"tenant": "acme"})
        for _ in range(25):
            made.append(client.request("POST", KEYS, {})["key_id"])
        os.kill(server.pid, signal.SIGKILL)
        with suppress(HmiError):
            made.append(client.request("POST", KEYS, {})["key_id"])
    (file,) = files(tmp_path / "audit")
    with file.open("ab") as opened:
        opened.write(b'{"n":1000,"at":"20')  # torn, as by a kill within a write
    data = ("--data", tmp_path)
    hmi(capsys, "key", "revoke", made[0], "acme", *data)
    lines = json.loads(hmi(capsys, "audit", "list", "--tenant", "acme", "--json", *data))
    logged = [line["object"].get("key_id") for line in lines if line["event"] == "change"]
    assert set(made) <= set(logged)
    assert lines[-1]["who"].startswith("os:")
    told = json.loads(hmi(capsys, "audit", "verify", "--json", *data))
    assert (told["faults"], len(told["notes"])) == ([], 1)
    hmi(capsys, "audit", "verify", "--head", f"{told['last']}:{told['hash']}", *data)
    followed = hmi(capsys, "audit", "follow", "--seconds", 0, "--tenant", "acme", *data)
    assert len(followed.splitlines()) >= 2 * len(made)
    text = file.read_bytes()
    file.write_bytes(text.replace(b'"outcome":"ok"', b'"outcome":"no"', 1))
    assert "it was changed" in hmi(capsys, "audit", "verify", *data, code=1)
