"""The HTTP API without a model: keys, errors, uploads, idempotency, draining."""

from __future__ import annotations

import asyncio
import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from hmi.api.process.application import drain
from hmi.errors import Damaged, DeadlineExceeded
from tests.hmi.labs.api_world import MODEL, World, running, tenant


async def test_errors_have_the_native_shape(tmp_path: Path) -> None:
    async with running(tmp_path, max_inputs=4, max_text_bytes=100) as world:
        await tenant(world)
        await many_errors(world)
        status, _, answer = await world.call("GET", "/healthz", headers={"X-Request-Id": "mine-1"})
        assert (status, answer.headers["X-Request-Id"]) == (200, "mine-1")
        status, _, answer = await world.call("GET", "/healthz", headers={"X-Request-Id": "not mine"})
        assert len(answer.headers["X-Request-Id"]) == 32
        status, _, answer = await world.call("DELETE", "/infer")
        assert answer.headers["Allow"] == "POST"


async def many_errors(world: World) -> None:
    def inputs(value: Any) -> dict[str, Any]:
        return {"json": {"inputs": value}}

    text = {"Content-Type": "text/plain"}
    js = {"Content-Type": "application/json"}
    blank = inputs([{"tokens": ["a", " "]}])
    root = {"root": "r", "source": "/none"}
    cases: list[tuple[str, str, dict[str, Any], int, str, str | None]] = [
        ("GET", "/nowhere", {}, 404, "not_found", None),
        ("DELETE", "/infer", {}, 405, "method_not_allowed", None),
        ("POST", "/infer/acme.m", {"data": b"{", "headers": js}, 400, "malformed", "body"),
        ("POST", "/infer/acme.m", {"data": b"{}", "headers": text}, 415, "unsupported_media_type", None),
        ("POST", "/infer/acme.m", inputs(["a", {"text": ""}]), 422, "invalid_input", "inputs[1].text"),
        ("POST", "/infer/acme.m", inputs(["a", " "]), 422, "invalid_input", "inputs[1]"),
        ("POST", "/infer/acme.m", blank, 422, "invalid_input", "inputs[0].tokens[1]"),
        ("POST", "/infer/acme.m", inputs(["a"] * 5), 413, "too_large", "inputs"),
        ("POST", "/infer/acme.m", inputs(["a", "é" * 51]), 413, "too_large", "inputs[1]"),
        ("POST", "/infer/acme.m", inputs([{"tokens": ["a" * 60] * 2}]), 413, "too_large", "inputs[0].tokens"),
        ("POST", "/infer/acme.m", inputs("a"), 404, "not_found", None),
        ("POST", "/infer/acme", inputs("a"), 422, "invalid_input", "model"),
        ("POST", "/infer/A.b", inputs("a"), 422, "invalid_input", "model"),
        ("GET", "/manage/models?limit=0", {}, 422, "invalid_input", "limit"),
        ("GET", "/manage/models?colour=red", {}, 422, "invalid_input", "colour"),
        ("GET", "/manage/models?task=poetry", {}, 422, "invalid_input", "task"),
        ("GET", "/manage/jobs/" + "x" * 300, {}, 404, "not_found", None),
        ("GET", "/manage/jobs/%00", {}, 404, "not_found", None),
        ("GET", "/manage/jobs?after=none", {}, 200, "", None),
        ("GET", "/manage/domains/tiny", {}, 404, "not_found", "domain"),
        ("GET", "/manage/domains/" + ".".join("abcdefghi"), {}, 422, "invalid_input", "domain"),
        ("DELETE", "/manage/tenants/nobody", {}, 404, "not_found", "tenant"),
        ("POST", "/manage/tenants", {"json": {"tenant": "acme"}}, 409, "conflict", "tenant"),
        ("POST", "/manage/tenants", {"json": {"tenant": "-"}}, 422, "invalid_input", "tenant"),
        ("POST", "/manage/roots", {"json": root}, 422, "unsupported_model", "source"),
        ("POST", "/manage/models", {"json": MODEL}, 422, "invalid_input", "data"),
    ]
    for method, path, given, status, kind, field in cases:
        got, body, answer = await world.call(method, path, **given)
        assert got == status, (path, body)
        if status != 200:
            error = body["error"]
            assert (error["kind"], error["details"].get("field")) == (kind, field), path
            assert error["request_id"] == answer.headers["X-Request-Id"]
            assert set(error) == {"kind", "message", "details", "request_id"}


async def test_no_message_tells_where_the_data_lie(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The store's own message about an unreadable catalogue names the store's folder; that is for the log."""
    async with running(tmp_path / "d") as world:

        def broken(*_: Any, **__: Any) -> None:
            raise Damaged(f"the catalogue of {tmp_path / 'd' / 'plots'} is damaged: restore it")

        world.services.manager.domains = broken  # type: ignore[method-assign,assignment]
        status, body, _ = await world.call("GET", "/manage/domains")
    assert (status, body["error"]["kind"]) == (500, "damaged")
    assert body["error"]["message"] == "the catalogue of <data>/plots is damaged: restore it"
    assert str(tmp_path) in caplog.text


async def test_unknown_exceptions_tell_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    async with running(tmp_path) as world:

        def broken(*_: Any, **__: Any) -> None:
            raise ZeroDivisionError("a secret of the house")

        world.services.manager.domains = broken  # type: ignore[method-assign,assignment]
        status, body, _ = await world.call("GET", "/manage/domains")
    assert (status, body["error"]["kind"], body["error"]["details"]) == (500, "internal", {})
    assert "secret" not in json.dumps(body)
    assert "a secret of the house" in caplog.text
    assert body["error"]["request_id"] in caplog.text


async def test_keys_and_scopes(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        call = world.call
        assert (await call("GET", "/manage/tenants"))[
            0
        ] == 200  # without an administrator's key, calls from this machine are open
        status, body, answer = await call("GET", "/manage/tenants", key="hmi_wrong")
        assert (status, answer.headers["WWW-Authenticate"]) == (401, "Bearer")
        assert (await call("GET", "/manage/tenants", headers={"Authorization": "Basic x"}))[0] == 401
        _, listed, _ = await call("GET", "/manage/tenants", key=acme)
        assert [t["tenant"] for t in listed["tenants"]] == ["acme"]
        for method, path in (("DELETE", "/manage/tenants/zeta"), ("GET", "/manage/stats")):
            assert (await call(method, path, key=acme))[0] == 403
        for path in ("/manage/tenants/zeta/keys", "/manage/tenants/none/keys", "/manage/tenants/zeta/usage"):
            assert (await call("GET", path, key=acme))[0] == 404
        status, body, _ = await world.upload(
            "/manage/models", {**MODEL, "model": "zeta.m"}, {"data": b"{}"}, key=acme
        )
        assert (status, body["error"]["kind"]) == (404, "not_found")
        status, weak, _ = await call("POST", "/manage/tenants/acme/keys", {"scopes": ["infer"]}, key=acme)
        assert status == 201
        assert (await call("GET", "/manage/models", key=weak["key"]))[0] == 403
        assert (await call("POST", "/manage/tenants/acme/keys", {"scopes": ["admin"]}, key=acme))[0] == 403
        _, only, _ = await call("POST", "/manage/tenants/acme/keys", {"scopes": ["manage"]}, key=acme)
        assert (await call("POST", "/manage/tenants/acme/keys", {}, key=only["key"]))[0] == 403
        assert (await call("POST", "/infer/acme.m", {"inputs": "a"}, key=only["key"]))[0] == 403
        assert (await call("DELETE", f"/manage/tenants/zeta/keys/{weak['key_id']}", key=zeta))[0] == 404
        assert (await call("DELETE", f"/manage/tenants/acme/keys/{weak['key_id']}", key=acme))[0] == 200
        assert (await call("POST", "/infer/acme.m", {"inputs": "a"}, key=weak["key"]))[0] == 401
        _, keys, _ = await call("GET", "/manage/tenants/acme/keys", key=acme)
        assert len(keys["keys"]) == 2
        assert "hmi_" not in json.dumps(keys)


async def test_an_admin_key_closes_the_server(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        for headers in ({"Host": "evil.example"}, {"Origin": "https://evil.example"}, {"Origin": "null"}):
            assert (await world.call("GET", "/manage/tenants", headers=headers))[0] == 403
        assert (await world.call("GET", "/manage/tenants", headers={"Origin": "http://localhost:3000"}))[
            0
        ] == 200
        _, admin = world.services.manager.create_key(None, ("admin",))
        assert (await world.call("GET", "/manage/tenants"))[0] == 401
        assert (await world.call("GET", "/healthz"))[0] == 200
        assert (await world.call("GET", "/manage/stats", key=admin))[0] == 200
        assert (await world.call("POST", "/infer/a.b", {"inputs": "a"}, key=admin))[0] == 404
        status, _, _ = await world.call("GET", "/manage/stats", key=admin, headers={"Host": "public.example"})
        assert status == 200


async def test_a_public_server_never_opens(tmp_path: Path) -> None:
    async with running(tmp_path, host="0.0.0.0") as world:
        assert (await world.call("GET", "/manage/tenants"))[0] == 401


async def test_uploads(tmp_path: Path) -> None:
    async with running(tmp_path, max_upload_bytes=10_000) as world:
        await tenant(world)
        cases: list[tuple[dict[str, bytes], int, str]] = [
            ({"data": b"x" * 10_001}, 413, "data"),
            ({"data": gzip.compress(b"x" * 100_000)}, 413, "data"),
            ({"data": gzip.compress(b"x" * 1000)[:-5]}, 422, "data"),
            ({"data": b"{}", "model": b""}, 422, "model"),
            ({"dev": b"{}"}, 422, "data"),
            ({"data": b"{}"}, 404, "domain"),
        ]
        for files, status, field in cases:
            got, body, _ = await world.upload("/manage/models", MODEL, files)
            assert (got, body["error"]["details"]["field"]) == (status, field), body
        both = {**MODEL, "data": {"path": "a"}}
        assert (await world.upload("/manage/models", both, {"data": b"{}"}))[0] == 422
        for path in ("../registry/data.mdb", "/etc/hostname", ".."):
            status, body, _ = await world.call("POST", "/manage/models", {**MODEL, "data": {"path": path}})
            assert (status, body["error"]["details"]["field"]) == (422, "data.path")
        (tmp_path / "uploads" / "rows.jsonl").write_text("{}")
        sent = {**MODEL, "data": {"path": "rows.jsonl"}}
        assert (await world.call("POST", "/manage/models", sent))[1]["error"]["details"]["field"] == "domain"
        raw = {"Content-Type": "multipart/form-data; boundary=b"}
        for data in (
            b"",
            b"--b",
            b"--b\r\n\r\nx",
            b"nothing",
            b"--b\r\nContent-Disposition: x\r\n\r\ny\r\n--b--",
        ):
            status, body, _ = await world.call("POST", "/manage/models", data=data, headers=raw)
            assert status in (400, 422), body
        for kind in ("multipart/form-data", "multipart/form-data; boundary="):
            status, _, _ = await world.call(
                "POST", "/manage/models", data=b"x", headers={"Content-Type": kind}
            )
            assert status == 400
        assert list((tmp_path / "incoming").iterdir()) == []
        assert (tmp_path / "uploads" / "rows.jsonl").exists()


async def test_idempotency(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        once = {"Idempotency-Key": "k1"}
        calls = [world.call("POST", "/manage/tenants", {"tenant": "acme"}, headers=once) for _ in range(4)]
        answers = await asyncio.gather(*calls)
        assert [status for status, _, _ in answers] == [201] * 4
        assert sum(a.headers.get("Idempotency-Replayed") == "true" for _, _, a in answers) == 3
        _, keys, _ = await world.call("GET", "/manage/tenants/acme/keys")
        assert {body["key_id"] for _, body, _ in answers} == {key["key_id"] for key in keys["keys"]}
        tried = [await world.call("GET", "/manage/models", key=body["key"]) for _, body, _ in answers]
        assert sorted(status for status, _, _ in tried) == [200, 401, 401, 401]
        status, body, _ = await world.call("POST", "/manage/tenants", {"tenant": "zeta"}, headers=once)
        assert (status, body["error"]["details"]["field"]) == (422, "Idempotency-Key")
        again = {"Idempotency-Key": "k2"}
        assert (await world.call("POST", "/manage/tenants", {"tenant": "acme"}, headers=again))[0] == 409
        assert (await world.call("DELETE", "/manage/tenants/acme"))[0] == 200
        # An error's answer is not stored: the same request may succeed later.
        assert (await world.call("POST", "/manage/tenants", {"tenant": "acme"}, headers=again))[0] == 201
        bad = {"Idempotency-Key": "x" * 256}
        assert (await world.call("POST", "/manage/tenants", {"tenant": "b"}, headers=bad))[0] == 422
        assert not world.services.keyed.in_use


async def test_readiness_says_what_is_down(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        assert (await world.call("GET", "/readyz"))[0] == 200
        engine: Any = world.services.engine
        engine.ready = lambda: False
        failed = f"stream 1 failed: OSError: {tmp_path / 'plots'}"
        told = "stream 1 failed: OSError: <data>/plots"
        down = f", but a part of the engine failed and is being restarted ({told})"
        for trouble, why in ((None, ""), (failed, down)):
            engine.trouble = lambda trouble=trouble: trouble
            status, body, answer = await world.call("GET", "/readyz")
            assert (status, answer.headers["Retry-After"]) == (503, "2")
            assert body["error"]["kind"] == "unavailable"
            assert body["error"]["message"] == f"the server is serving{why}: try again in a few seconds"
            assert body["error"]["details"] == {"phase": "serving"}


async def test_draining_answers_what_was_accepted(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        held, seen = asyncio.Event(), asyncio.Event()

        async def slow(_: Any) -> Any:
            seen.set()
            await held.wait()
            raise DeadlineExceeded("answered after the signal")

        world.services.engine.infer = slow  # type: ignore[method-assign,assignment]
        accepted = asyncio.create_task(world.call("POST", "/infer/a.b", {"inputs": "a"}))
        await seen.wait()
        draining = asyncio.create_task(drain(world.services))
        await asyncio.sleep(0.05)
        status, body, answer = await world.call("GET", "/manage/tenants")
        assert (status, body["error"]["kind"]) == (503, "unavailable")
        assert int(answer.headers["Retry-After"]) >= 1
        assert (await world.call("GET", "/healthz"))[0] == 200
        assert (await world.call("GET", "/readyz"))[0] == 503
        assert not draining.done()
        held.set()
        assert (await accepted)[0] == 504
        await draining
