"""Keys that expire and rotate, their labels and their last use, over HTTP and on the command line."""

from __future__ import annotations

import json
from collections.abc import Callable
from contextlib import closing
from datetime import UTC, datetime, timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from hmi import tenancy
from hmi.api.access import quotas
from hmi.core import TenantLimits
from hmi.manager.tenants import new_key
from hmi.record import time_text
from hmi.stores.records import key_table
from hmi.stores.records.registry import Registry
from hmi.stores.records.sealed import RegistryTxn
from tests.hmi.api.test_inference import Counting
from tests.hmi.labs.api_world import World, hmi, running, tenant

KEYS = "/manage/tenants/acme/keys"
Later = Callable[..., None]


@pytest.fixture
def later(monkeypatch: pytest.MonkeyPatch) -> Later:
    """Set the clock by which keys expire."""

    def set_clock(**ahead: float) -> None:
        at = time_text(datetime.now(UTC) + timedelta(**ahead))
        monkeypatch.setattr(tenancy, "now", lambda: at)

    return set_clock


async def issue(world: World, key: str | None, **body: Any) -> Any:
    status, made, _ = await world.call("POST", KEYS, body, key=key)
    assert status == 201, made
    return made


async def works(world: World, key: str) -> bool:
    status, body, _ = await world.call("GET", "/manage/tenants", key=key)
    assert status in (200, 401), body
    return bool(status == 200)


def in_(**ahead: float) -> str:
    return (datetime.now(UTC) + timedelta(**ahead)).isoformat()


async def test_an_expired_key_says_so_to_who_holds_it(tmp_path: Path, later: Later) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        made = await issue(world, acme, expires=in_(days=30), label="a contractor's")
        assert (made["label"], made["expired"]) == ("a contractor's", False)
        assert await works(world, made["key"])
        later(days=29.9)
        assert await works(world, made["key"])
        later(days=30.1)
        status, body, answer = await world.call("GET", "/manage/tenants", key=made["key"])
        assert (status, body["error"]["kind"]) == (401, "unauthorised")
        assert "expired" in body["error"]["message"]
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        _, other, _ = await world.call("GET", "/manage/tenants", key=made["key"][:-1])
        assert "expired" not in other["error"]["message"]
        _, listed, _ = await world.call("GET", KEYS, key=acme)
        assert [(k["expired"], k["label"]) for k in listed["keys"]] == [(False, ""), (True, "a contractor's")]


async def test_a_key_and_its_successor_overlap(tmp_path: Path, later: Later) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        old = await issue(world, acme, scopes=["manage"], label="ci", expires=in_(days=10))
        path = f"{KEYS}/{old['key_id']}/rotate"
        status, new, _ = await world.call("POST", path, {"overlap_s": 600}, key=old["key"])
        assert (status, new["scopes"], new["label"], new["replaces"]) == (
            201,
            ["manage"],
            "ci",
            old["key_id"],
        )
        lasts = datetime.fromisoformat(new["expires"]) - datetime.now(UTC)
        assert timedelta(days=9.9) < lasts < timedelta(days=10.1), "as long as the old one was issued for"
        assert await works(world, old["key"])
        assert await works(world, new["key"])
        status, again, _ = await world.call("POST", path, {}, key=acme)
        assert (status, new["key_id"] in again["error"]["message"]) == (409, True)
        later(seconds=590)
        assert await works(world, old["key"])
        later(seconds=610)
        assert not await works(world, old["key"])
        assert await works(world, new["key"])
        _, listed, _ = await world.call("GET", KEYS, key=acme)
        (shown,) = (k for k in listed["keys"] if k["key_id"] == old["key_id"])
        assert shown["successor"] == new["key_id"]
        status, _, _ = await world.call("POST", path, {}, key=acme)
        assert status == 409, "an expired key cannot be rotated"


async def test_rotation_without_overlap_ends_the_old_key_at_once(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        (stored,) = world.services.manager.registry.keys("acme")
        path = f"{KEYS}/{stored.key_id}/rotate"
        once = {"Idempotency-Key": "r"}
        status, new, _ = await world.call("POST", path, {"overlap_s": 0}, key=None, headers=once)
        assert status == 201
        assert not await works(world, acme)
        assert new["expires"] is None
        status, again, answer = await world.call("POST", path, {"overlap_s": 0}, key=None, headers=once)
        assert (status, answer.headers["Idempotency-Replayed"]) == (201, "true")
        assert (again["key_id"], again["replaces"]) == (new["key_id"], stored.key_id)
        assert (await works(world, new["key"]), await works(world, again["key"])) == (False, True)


async def test_nobody_gets_scopes_or_keys_of_others_by_rotation(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        (full,) = world.services.manager.registry.keys("acme")
        manages = await issue(world, acme, scopes=["manage"])
        status, _, _ = await world.call("POST", f"{KEYS}/{full.key_id}/rotate", {}, key=manages["key"])
        assert status == 403, "it would get a key that may infer"
        for path in (f"{KEYS}/{full.key_id}", f"/manage/tenants/zeta/keys/{full.key_id}"):
            status, _, _ = await world.call("POST", f"{path}/rotate", {}, key=zeta)
            assert status == 404
        assert await works(world, acme)


@pytest.mark.parametrize(
    "expires", ["2020-01-01T00:00:00Z", "9999-12-31T23:59:59-23:00", "2200-01-01T00:00:00Z", "2030-01-01"]
)
async def test_an_impossible_expiry_is_refused(tmp_path: Path, expires: str) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        status, body, _ = await world.call("POST", KEYS, {"expires": expires}, key=acme)
        assert (status, body["error"]["details"]["field"]) == (422, "expires")


async def test_expired_keys_make_room_and_are_tidied_up(
    tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(quotas, "TENANT_KEYS", 3)
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        for _ in range(2):
            await issue(world, acme, expires=in_(hours=1))
        assert (await world.call("POST", KEYS, {}, key=acme))[0] == 429
        later(hours=2)
        made = await issue(world, acme, expires=in_(hours=3))
        registry = world.services.manager.registry
        assert [k.expired for k in registry.keys("acme")] == [False, False]
        later(hours=4)
        assert registry.key_ring.drop_expired() == 0, "its holder still learns why it fails"
        monkeypatch.setattr(key_table, "KEPT_DAYS", -1)
        assert registry.key_ring.drop_expired() == 1
        _, body, _ = await world.call("GET", "/manage/tenants", key=made["key"])
        assert "unknown" in body["error"]["message"]


async def test_a_servers_last_administrator_may_expire_without_opening_it(
    tmp_path: Path, later: Later, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        tenants = world.services.manager.tenants
        _, admin = tenants.create_key(None, ["admin"], expires=datetime.now(UTC) + timedelta(days=1))
        assert await works(world, admin)
        later(days=2)
        monkeypatch.setattr(key_table, "KEPT_DAYS", -9)
        assert world.services.manager.registry.key_ring.drop_expired() == 0
        assert not await works(world, admin)
        assert (await world.call("GET", "/manage/tenants"))[0] == 401, "nobody is the administrator"


async def test_the_last_use_of_a_key_is_kept_by_the_hour(tmp_path: Path) -> None:
    async with running(tmp_path, engine=Counting()) as world:
        acme = await tenant(world)
        ring = world.services.manager.registry.key_ring
        _, body, _ = await world.call("GET", KEYS)
        assert body["keys"][0]["last_used"] is None
        _, body, _ = await world.call("GET", KEYS, key=acme)
        used = body["keys"][0]["last_used"]
        assert abs((datetime.fromisoformat(used) - datetime.now(UTC)).total_seconds()) < 300
        ring.store_used()
        generation = world.services.manager.registry.generation()
        for _ in range(3):
            await works(world, acme)
            ring.store_used()
        assert world.services.manager.registry.generation() == generation, "stored once in an hour"
        (key,) = world.services.manager.registry.keys("acme")
        assert ring.last_used([key]) == {key.key_id: used}


def test_records_of_the_release_before_are_read(tmp_path: Path) -> None:
    """They were written by the release before keys expired and tenants had limits."""
    records = json.loads((Path(__file__).parent / "records_before_limits.json").read_text())
    opened = Registry.open(tmp_path / "registry")
    for name, body in records.items():
        opened._database.write(partial(RegistryTxn.put, key=name, value=body.encode()))
    opened.close()
    with closing(Registry.open(tmp_path / "registry", defaults=TenantLimits(models=5))) as registry:
        assert (registry.tenant("acme").weight, registry.rooms.limits("acme")) == (
            2.0,
            TenantLimits(models=5),
        )
        assert registry.rooms.stored("acme").models == 1
        assert [(k.expires, k.label, k.expired) for k in registry.keys("acme")] == [(None, "", False)] * 2
        (admin,) = registry.keys(None)
        until = in_(seconds=60)
        old, new = registry.key_ring.rotate(admin.key_id, until, lambda key: new_key(None, key.scopes)[0])
        assert (old.successor, len(registry.keys(None))) == (new.key_id, 2)
        assert registry.problems() == []


def test_the_command_line_makes_rotates_and_lists_keys(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = ("--data", tmp_path)
    hmi(capsys, "tenant", "create", "acme", *data)
    hmi(capsys, "key", "create", "acme", "--days", 7, "--label", "ci", *data)
    first = json.loads(hmi(capsys, "key", "create", "--admin", "--expires", in_(days=9), "--json", *data))
    turned = json.loads(hmi(capsys, "key", "rotate", first["key_id"], "--overlap", 60, "--json", *data))
    old, new = json.loads(hmi(capsys, "key", "list", "--json", *data))
    assert (old["successor"], new["scopes"], new["expires"] > old["expires"]) == (
        turned["key_id"],
        ["admin"],
        True,
    )
    _, ci = json.loads(hmi(capsys, "key", "list", "acme", "--json", *data))
    made = json.loads(hmi(capsys, "key", "rotate", ci["key_id"], "acme", "--label", "ci 2", "--json", *data))
    assert (made["label"], made["replaces"]) == ("ci 2", ci["key_id"])
    assert "ci 2" in hmi(capsys, "key", "list", "acme", *data)
    assert "not both" in hmi(
        capsys, "key", "create", "acme", "--days", 1, "--expires", in_(days=1), *data, code=2
    )
    assert "offset" in hmi(capsys, "key", "create", "acme", "--expires", "2030-01-01", *data, code=2)
    hmi(capsys, "key", "revoke", turned["key_id"], *data)
    with_lines = json.loads(hmi(capsys, "audit", "list", "--json", *data))
    calls = [line["call"] for line in with_lines if line["outcome"] == "ok"]
    assert "hmi key create --admin" in calls
    assert "hmi key revoke" in calls
    assert {line["who"].partition(":")[0] for line in with_lines if line["call"]} == {"os"}
    text = json.dumps(with_lines)
    assert not any(secret in text for secret in (first["key"], turned["key"], made["key"], "ci 2"))
