"""Bodies that would take the server's memory or time are refused early, at the expense of their sender."""

from __future__ import annotations

import asyncio
import gc
import gzip
import json
import zlib
from pathlib import Path
from typing import Any

import pytest
import zstandard
from aiohttp import FormData
from hypothesis import given
from hypothesis import strategies as st

from hmi.api.body import json_size as census_module
from hmi.api.body.json_size import Census, census
from hmi.api.body.shares import Shares
from hmi.api.http import request_body as body_module
from hmi.errors import QuotaExceeded, TooLarge, Unavailable
from tests.hmi.labs.api_world import MODEL, World, read_answer, running, tenant
from tests.hmi.labs.flood_lab import MIB, bomb, head, objects, post
from tests.waiting import until

JSON = {"Content-Type": "application/json"}
SOUND = json.dumps({"inputs": ["a text"] * 50}).encode()
PACKED = {"gzip": gzip.compress(SOUND), "deflate": zlib.compress(SOUND), "zstd": zstandard.compress(SOUND)}


async def infer(world: World, data: bytes, **headers: str) -> tuple[int, str, str]:
    """Send an infer body; return (status, kind, message)."""
    status, body, _ = await world.call("POST", "/infer/acme.m", data=data, headers={**JSON, **headers})
    return status, body["error"]["kind"], body["error"]["message"]


async def opened(world: World, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    assert world.client.port is not None
    reader, writer = await asyncio.open_connection("127.0.0.1", world.client.port)
    writer.write(data)
    await writer.drain()
    return reader, writer


async def raw(world: World, data: bytes) -> tuple[int, Any]:
    """Send raw bytes on a new connection; return (status, JSON body)."""
    reader, writer = await opened(world, data)
    try:
        status, body, _ = await read_answer(reader)
        return status, body
    finally:
        writer.close()


async def test_compressed_bodies(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        for encoding, packed in PACKED.items():
            coded = {"Content-Encoding": encoding}
            assert (await infer(world, packed, **coded))[:2] == (404, "not_found"), (
                "read, and the model is not there"
            )
            assert (await infer(world, packed[:-9], **coded))[:2] == (400, "malformed")
            assert (await infer(world, b"\0" + packed[1:], **coded))[:2] == (400, "malformed")
            assert (await infer(world, b"", **coded))[:2] == (400, "malformed")
            assert (await infer(world, bomb(encoding, 16 * MIB), **coded))[:2] == (413, "too_large")
        for unknown in ("br", "gzip, gzip", "nonsense"):
            status, kind, message = await infer(world, PACKED["gzip"], **{"Content-Encoding": unknown})
            assert (status, kind, unknown in message) == (415, "unsupported_media_type", True)
        assert (await infer(world, SOUND, **{"Content-Encoding": "identity"}))[0] == 404
        multipart = {"Content-Type": "multipart/form-data; boundary=b", "Content-Encoding": "gzip"}
        assert (await world.call("POST", "/manage/models", data=b"x", headers=multipart))[0] == 415


async def test_a_refused_body_is_not_kept(tmp_path: Path) -> None:
    # An error's traceback must not be part of a reference cycle, or megabytes would wait for the garbage
    # collector.
    async with running(tmp_path) as world:
        packed = bomb("gzip", 16 * MIB)
        gc.collect()
        gc.disable()
        gc.set_debug(gc.DEBUG_SAVEALL)
        try:
            for _ in range(3):
                assert (await infer(world, packed, **{"Content-Encoding": "gzip"}))[0] == 413
            gc.collect()
            assert not [left for left in gc.garbage if isinstance(left, TooLarge)]
        finally:
            gc.set_debug(0)
            gc.garbage.clear()
            gc.enable()


async def test_values_are_counted_before_they_are_parsed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parsed: list[int] = []
    parse = body_module.parse
    monkeypatch.setattr(
        body_module, "parse", lambda model, data, *more: parsed.append(len(data)) or parse(model, data, *more)
    )
    words = {"inputs": [{"tokens": ["ab"] * 10_000}] * 14}
    many_fields = b'{"inputs":"a",' + b",".join(b'"k%d":0' % i for i in range(9_000)) + b"}"
    nested = objects(3 * MIB, b'{"a":{"a":{"a":{}}}}')
    async with running(tmp_path) as world:
        for data in (
            objects(3 * MIB),
            nested,
            objects(3 * MIB, b'{"text":"a"}'),
            json.dumps(words).encode(),
            many_fields,
        ):
            status, body, _ = await world.call("POST", "/infer/acme.m", data=data, headers=JSON)
            details = body["error"]["details"]
            assert (status, details["field"]) == (413, "inputs"), body
        status, body, _ = await world.call("POST", "/infer", data=b"[" + objects(MIB) + b"]", headers=JSON)
        assert (status, body["error"]["details"]["field"]) == (413, "body")
        status, body, _ = await world.call("POST", "/manage/tenants", data=many_fields, headers=JSON)
        assert (status, body["error"]["details"]["field"]) == (413, "body")
        assert parsed == []
        commas = json.dumps({"inputs": [",{[:" * 20_000] * 10}).encode()
        assert (await infer(world, commas))[0] == 404, "what stands in a text counts for nothing"
        assert parsed == [len(commas)]
        most = json.dumps({"inputs": ["é" * 2044] * 1024}, ensure_ascii=False).encode().ljust(4 * MIB)
        assert (len(most), (await infer(world, most))[0]) == (4 * MIB, 404), (
            "1024 texts of 512 tokens of 8 bytes"
        )
        status, kind, message = await infer(world, most + b" ")
        assert (status, kind) == (413, "too_large")
        assert "4194304 bytes" in message
        assert "max_body_bytes" in message
        assert (await world.call("POST", "/manage/tenants", data=b" " * (MIB + 1), headers=JSON))[0] == 413


async def test_a_body_that_is_no_json_says_which_of_the_reasons_it_is(tmp_path: Path) -> None:
    twice = b'{"inputs": ["' + b"a: " * MIB + b'", {"text": "b", "text": "c"}]}'
    cases = [
        ("/infer/acme.m", b"[" * 200_000, 400, "body", "nested more than 200 levels deep"),
        (
            "/infer/acme.m",
            b'{"inputs": ' + b'{"text": ' * 200_000,
            400,
            "body",
            "nested more than 200 levels deep",
        ),
        ("/manage/tenants", b"[" * 200_000, 400, "body", "nested more than 200 levels deep"),
        ("/infer/acme.m", rb'{"inputs": ["\ud800"]}', 400, "inputs[0]", "half of a surrogate pair"),
        ("/manage/tenants", b'\xef\xbb\xbf{"tenant": "acme"}', 400, "body", "byte-order mark"),
        ("/manage/tenants", b'{"tenant": "acme", "tenant": "zeta"}', 422, "tenant", "given 2 times"),
        ("/infer/acme.m", twice, 422, "inputs[1].text", "given 2 times"),
    ]
    async with running(tmp_path) as world:
        for path, data, status, field, message in cases:
            got, body, _ = await world.call("POST", path, data=data, headers=JSON)
            error = body["error"]
            assert (got, error["details"]["field"], message in error["message"]) == (status, field, True), (
                error
            )
        _, body, _ = await world.call("GET", "/manage/tenants")
        assert body["tenants"] == []
        got, body, _ = await world.call("GET", "/manage/jobs?limit=1&limit=2")
        assert (got, body["error"]["details"]["field"]) == (422, "limit")
        half = {"model": "acme.m", "domain": "tiny", "task": "classification"}
        form = FormData()
        form.add_field("spec", json.dumps(half)[:-1] + ', "task": "pair"}', content_type="application/json")
        form.add_field("data", b"{}", filename="data")
        got, body, _ = await world.call("POST", "/manage/models", data=form)
        assert (got, body["error"]["details"]["field"]) == (422, "task")


def size_of(value: Any) -> tuple[int, int]:
    """(values, members), counted by walking the parsed JSON."""
    if isinstance(value, dict):
        inner = [size_of(v) for v in value.values()]
        return 1 + sum(v for v, _ in inner), len(value) + sum(m for _, m in inner)
    if isinstance(value, list):
        inner = [size_of(v) for v in value]
        return 1 + sum(v for v, _ in inner), sum(m for _, m in inner)
    return 1, 0


def depth_of(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else None
    return 0 if inner is None else 1 + max(map(depth_of, inner), default=0)


TEXT = st.text(alphabet='\\",:[]{}a\né', max_size=12)
VALUE = st.recursive(
    TEXT | st.integers(), lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=20
)


@given(VALUE, st.integers(2, 40))
def test_the_census_is_no_less_than_what_is_parsed(value: Any, step: int) -> None:
    values, members = size_of(value)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(census_module, "STEP", step)
        found = census(json.dumps(value).encode(), Census(0, 0))
    containers = json.dumps(value).count("[") + json.dumps(value).count("{")
    assert (found.members, found.values >= values) == (members, True)
    assert found.values <= values + containers, "nor much more"
    assert found.depth == depth_of(value)


def test_shares_leave_room_for_others() -> None:
    shares = Shares(1200, "things")
    greedy = shares.loan("greedy")
    greedy.cover(600)
    with pytest.raises(QuotaExceeded):
        greedy.cover(601)
    second = shares.loan("second", 300)
    with pytest.raises(QuotaExceeded):
        shares.loan("second", 1)
    third = shares.loan("third", 150)
    with pytest.raises(Unavailable):
        shares.loan("fourth", 76)
    with greedy, second, third, shares.loan("fourth", 75):
        assert shares.used == 1125
    assert shares.used == 0
    with pytest.raises(Unavailable):
        greedy.cover(1)  # a thread that does not yet know that the client has gone
    assert shares.used == 0
    assert shares.loan("second", 600).amount == 600


async def test_a_tenant_holds_its_own_share_of_bodies_only(tmp_path: Path) -> None:
    async with running(tmp_path, body_bytes=8 * MIB) as world:
        keys = [await tenant(world), await tenant(world, "zeta")]
        large = b'{"inputs": "' + b"a" * (MIB // 2) + b'"}'
        unfinished = [
            await opened(world, post("/infer/acme.m", keys[0], b"{", declared=MIB)) for _ in range(2)
        ]
        shares = world.services.intake.bodies.shares
        await until(lambda: shares.used >= 4 * MIB)
        status, body, answer = await world.call(
            "POST", "/infer/acme.m", data=large, headers=JSON, key=keys[0]
        )
        assert (status, body["error"]["kind"], int(answer.headers["Retry-After"]) > 0) == (
            429,
            "quota_exceeded",
            True,
        )
        assert (await world.call("POST", "/infer/zeta.m", data=large, headers=JSON, key=keys[1]))[0] == 413
        for _, writer in unfinished:
            writer.transport.abort()
        await until(lambda: not shares.used)
        assert (await world.call("POST", "/infer/acme.m", data=large, headers=JSON, key=keys[0]))[0] == 413
        assert world.services.intake.places.used == 0


async def test_a_body_may_be_slow_but_must_come(tmp_path: Path) -> None:
    async with running(tmp_path, body_idle_s=2) as world:
        key = await tenant(world)
        data = json.dumps({"inputs": "a" * 10_000}).encode()
        reader, writer = await opened(world, post("/infer/acme.m", key, b"", declared=len(data)))
        for i in range(0, len(data), 800):
            await asyncio.sleep(0.2)
            writer.write(data[i : i + 800])
        assert (await reader.readline()).split()[1] == b"404", "longer than the pause, and read to its end"
        writer.close()
        status, body = await raw(world, post("/infer/acme.m", key, data, declared=len(data) + 1))
        assert (status, body["error"]["kind"], "pause" in body["error"]["message"]) == (
            400,
            "malformed",
            True,
        )
        lines = ("Content-Type: application/json", "Transfer-Encoding: chunked")
        whole = head("/infer/acme.m", key, *lines) + b"%x\r\n%s\r\n" % (len(data), data)
        assert (await raw(world, whole + b"0\r\n\r\n"))[0] == 404
        assert world.services.intake.bodies.shares.used == 0


async def test_the_key_is_checked_before_the_body_is_sent(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        acme, zeta = await tenant(world), await tenant(world, "zeta")
        expect = "Expect: 100-continue"
        for key, status in (("hmi_wrong", b"401"), (zeta, b"404")):
            reader, writer = await opened(world, post("/infer/acme.m", key, b"", expect, declared=1000))
            assert (await reader.readline()).split()[1] == status, "with nothing of the body sent"
            writer.close()
        data = json.dumps({"inputs": "a"}).encode()
        reader, writer = await opened(world, post("/infer/acme.m", acme, b"", expect, declared=len(data)))
        assert (await reader.readuntil(b"\r\n\r\n")).split()[1] == b"100"
        writer.write(data)
        assert (await reader.readline()).split()[1] == b"404", "the model is not there"
        writer.close()


# As `serve` sets it; the logger quotes bytes that cannot be printed.
@pytest.mark.filterwarnings("ignore::aiohttp.BadContentDispositionHeader")
async def test_malformed_multipart(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        sound = b'--b\r\nContent-Disposition: form-data; name="spec"\r\n\r\n{}\r\n'
        data = b'--b\r\nContent-Disposition: form-data; name="data"\r\n'
        end = b"\r\n--b--\r\n"
        malformed = (
            b"--b\r\nno colon here\r\n\r\nx" + end,
            b'--b\r\nContent-Disposition: form-data; name="\xff\xfe\r\n\r\nx' + end,
            sound + b"--b\r\nX: y\x00z\r\n\r\nx" + end,
            b"--b\r\n" + b"X-A: b\r\n" * 50_000 + b"\r\nx" + end,
            b"--b\r\nX: " + b"y" * 50_000 + b"\r\n\r\nx" + end,
            b"\n" * 50_000 + sound + end,
            b"x" * 50_000 + sound + end,
            b'--b\r\nContent-Disposition: form-data; name="_charset_"\r\n\r\n' + b"x" * 40 + end,
            sound[:-30],
        )
        multipart = {"Content-Type": "multipart/form-data; boundary=b"}
        cases = [(body, 400, "malformed") for body in malformed]
        cases.append((data + b"\r\n{}" + end, 422, "invalid_input"))
        cases.append(
            (
                sound + data + b"Content-Transfer-Encoding: base64\r\n\r\ne30=" + end,
                415,
                "unsupported_media_type",
            )
        )
        for body, status, kind in cases:
            got, answer, _ = await world.call("POST", "/manage/models", data=body, headers=multipart)
            assert (got, answer["error"]["kind"]) == (status, kind), (body[:60], answer)
        for path, name in (
            ("/manage/models/acme.m/update", b"data"),
            ("/manage/domains/tiny/update", b"corpus"),
        ):
            part = data.replace(b'"data"', b'"%s"' % name) + b"\r\n{}" + end
            got, answer, _ = await world.call("POST", path, data=part, headers=multipart)
            assert (got, answer["error"]["details"].get("field")) == (422, "spec"), answer
        assert not list((tmp_path / "incoming").iterdir())


async def test_a_source_that_no_file_can_be_called(tmp_path: Path) -> None:
    async with running(tmp_path) as world:
        for source in ("a" * 1000, "é" * 200, "a\0b", "~nobody-of-this-name/x", "__main__", "/" + "x" * 900):
            status, body, _ = await world.call("POST", "/manage/roots", {"root": "r", "source": source})
            assert (status, body["error"]["kind"]) == (422, "unsupported_model"), body
        spec = {**MODEL, "data": {"path": "x" * 1000}}
        assert (await world.call("POST", "/manage/models", spec))[0] == 404
