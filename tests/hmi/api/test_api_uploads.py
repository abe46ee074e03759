"""Uploaded files: where they may lie, and that one tenant's do not hold up another's."""

from __future__ import annotations

import asyncio
import gzip
import os
import threading
from pathlib import Path

import pytest

from hmi.api.body import uploads as uploads_module
from hmi.api.body.uploads import Uploads
from hmi.config import Settings
from hmi.errors import InvalidInput, NotFound
from tests.hmi.api.test_api_bodies import opened
from tests.hmi.labs.api_world import MODEL, World, running, tenant
from tests.hmi.labs.flood_lab import MIB, head
from tests.waiting import until

TEXT = b"a line of text\n" * 5000
KIB = 1 << 10
SPEC = b'{"model": "acme.m", "domain": "d", "task": "classification"}'
MULTIPART = (
    b"--b\r\nContent-Disposition: form-data; name=spec\r\n\r\n%s\r\n"
    b"--b\r\nContent-Disposition: form-data; name=data\r\n\r\n%s" % (SPEC, b"x" * 40 * KIB)
)


def some(data: Path, **settings: int) -> Uploads:
    uploads = Uploads(Settings(data=data, **settings))  # type: ignore[arg-type]
    uploads.clear()
    return uploads


async def begun(world: World, key: str) -> asyncio.StreamWriter:
    """Begin an upload whose file never ends, and send its first 40 KiB."""
    kind = "Content-Type: multipart/form-data; boundary=b"
    _, writer = await opened(world, head("/manage/models", key, kind, f"Content-Length: {MIB}") + MULTIPART)
    return writer


async def test_paths_stay_below_uploads(tmp_path: Path) -> None:
    uploads = some(tmp_path / "data", max_upload_bytes=MIB)
    below = tmp_path / "data" / "uploads"
    (below / "acme").mkdir()
    (below / "acme" / "rows.jsonl").write_bytes(gzip.compress(TEXT))
    secret = tmp_path / "secret"
    secret.write_text("secret")
    (below / "link").symlink_to(secret)
    (below / "up").symlink_to(tmp_path)
    form = uploads.form(None)
    assert (await uploads.copy_named(None, "acme/rows.jsonl", "data", form)).read_bytes() == TEXT
    for bad in ("../../secret", "acme/../../../secret", str(secret), "link", "up/secret", "acme", "a\0b"):
        with pytest.raises(InvalidInput) as caught:
            await uploads.copy_named(None, bad, "data", form)
        assert caught.value.details["field"] == "data.path"
    with pytest.raises(NotFound):
        await uploads.copy_named(None, "acme/other.jsonl", "data", form)
    uploads.close()


async def test_one_tenants_uploads_hold_up_nobody_else(tmp_path: Path) -> None:
    uploads, go_on = some(tmp_path), threading.Event()
    held = [asyncio.create_task(uploads.in_thread("acme", go_on.wait)) for _ in range(64)]
    try:
        await asyncio.sleep(0)
        async with asyncio.timeout(60):
            assert await uploads.in_thread("globex", lambda: "written") == "written"
        assert await asyncio.to_thread(lambda: "answered") == "answered"
    finally:
        go_on.set()
    assert all(await asyncio.gather(*held))
    uploads.close()


async def test_large_files_give_way_while_they_expand(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads_module, "SLICE_S", 0.0)
    uploads = some(tmp_path)
    (tmp_path / "uploads" / "large").write_bytes(gzip.compress(bytes(32 * MIB)))
    holders = ("acme", "globex", "initech")
    large = [asyncio.create_task(uploads.copy_named(None, "large", "data", uploads.form(h))) for h in holders]
    await until(lambda: len([*(tmp_path / "incoming").glob("*/data")]) == 3)
    for _ in range(5):
        await uploads.in_thread("quiet", os.getpid)
    assert not any(task.done() for task in large), "pieces of work came after the whole of three others'"
    assert [path.stat().st_size for path in await asyncio.gather(*large)] == [32 * MIB] * 3
    uploads.close()


@pytest.mark.parametrize("settings", [{"max_uploads": 4}, {"upload_bytes": 200 * KIB}])
async def test_a_tenant_has_its_share_of_places_and_of_the_disk(
    tmp_path: Path, settings: dict[str, int]
) -> None:
    async with running(tmp_path, **settings) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        slow = [await begun(world, acme) for _ in range(2)]
        uploads = world.services.intake.uploads
        while uploads._space.used < 80 * KIB:
            for writer in slow:
                writer.write(b"x")  # this makes the server write what it has received
            await asyncio.sleep(0.01)
        file = {"data": b"x" * 40 * KIB}
        status, body, answer = await world.upload("/manage/models", MODEL, file, key=acme)
        assert (status, body["error"]["kind"], int(answer.headers["Retry-After"]) > 0) == (
            429,
            "quota_exceeded",
            True,
        )
        status, body, _ = await world.upload("/manage/models", {**MODEL, "model": "zeta.m"}, file, key=zeta)
        assert (status, body["error"]["details"]) == (404, {"field": "domain"}), "another tenant's is taken"
        for writer in slow:
            writer.transport.abort()
        await until(lambda: not uploads._places.used and not uploads._space.used)
        assert (await world.upload("/manage/models", MODEL, file, key=acme))[0] == 404
        assert list((tmp_path / "incoming").iterdir()) == []


async def test_what_no_waiting_makes_room_for_is_too_large(tmp_path: Path) -> None:
    async with running(tmp_path, upload_bytes=200 * KIB) as world:
        (tmp_path / "uploads" / "large").write_bytes(gzip.compress(bytes(101 * KIB)))
        for answer in (
            await world.upload("/manage/models", MODEL, {"data": b"x" * 60 * KIB, "dev": b"x" * 60 * KIB}),
            await world.upload("/manage/models", MODEL, {"data": gzip.compress(bytes(101 * KIB))}),
            await world.call("POST", "/manage/models", {**MODEL, "data": {"path": "large"}}),
        ):
            status, body, _ = answer
            assert (status, body["error"]["details"]) == (413, {"field": "files", "limit": 100 * KIB})
            assert "raise upload_bytes" in body["error"]["message"]
        assert list((tmp_path / "incoming").iterdir()) == []
