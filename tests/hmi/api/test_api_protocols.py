"""A second protocol, defined in this file and served by a real server: its own calls, answers and errors."""

from __future__ import annotations

import gzip
import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, ClassVar

import pytest
from pydantic import BaseModel

from hmi.api.handlers.protocols.infer import routes_of
from hmi.api.process import application
from hmi.api.protocols.asks import Ask, AskResult, Input
from hmi.api.protocols.base import JSON, UNNAMED, BodyReader, Endpoint, Failure, Raw, RawBody, Where
from hmi.api.routes.openapi import document
from hmi.api.routes.table import ROUTES
from hmi.core import ModelId
from hmi.engine import TextRequest, TextResult
from hmi.errors import InvalidInput
from tests.hmi.labs.api_world import running


class Lines(BaseModel):
    of: str
    lines: str


class Labels(BaseModel):
    labels: list[str | None]


def decode(body: Lines, where: Where) -> list[Ask]:
    inputs = [
        Input(line, f"line {i + 1}", (f"line {i + 1}",)) for i, line in enumerate(body.lines.split("\n"))
    ]
    return [Ask(ModelId(body.of, "m"), inputs, "of")]


def encode(results: Sequence[AskResult], body: Lines, where: Where) -> Labels:
    return Labels(labels=[output.label for result in results for output in result.outputs])


def read_text(data: bytes, where: Where, reader: BodyReader) -> Lines:
    """A body of plain lines, whose tenant the query names, or JSON."""
    if where.headers.get("content-type") == JSON:
        lines: Lines = reader.json(Lines, data)
        return lines
    return Lines(of=where.query["of"], lines=data.decode())


def encode_text(results: Sequence[AskResult], body: Lines, where: Where) -> Raw:
    labels = [str(output.label) for result in results for output in result.outputs]
    counted = f"{len(labels)} of {where.path['what']}\n" + "\n".join(labels)
    return Raw(counted.encode(), "text/plain", {"X-Lines": str(len(labels))})


class Oops(BaseModel):
    oops: str
    at: str | None


class ByLine:
    endpoints = (
        Endpoint("/by-line", "Label lines.", Lines, Labels, decode, encode, "lines"),
        Endpoint(
            "/by-line/raw/{what}/of/{model}",
            "Label lines of plain text.",
            Lines,
            None,
            decode,
            encode_text,
            "lines",
            raw=RawBody((JSON, UNNAMED, "text/plain"), read_text),
            raw_answer="text/plain",
        ),
    )
    error = Oops
    prefixes = ("/by-line",)
    statuses: ClassVar[Mapping[str, int]] = {}

    def encode_error(self, failure: Failure) -> dict[str, Any]:
        return {"oops": failure.message, "at": failure.details.get("field")}


def error_schemas(contract: Any) -> dict[str, set[str]]:
    """For each path of POST calls, the schemas of its errors' bodies."""
    return {
        path: {
            answer["content"]["application/json"]["schema"]["$ref"]
            for status, answer in calls["post"]["responses"].items()
            if int(status) >= 400
        }
        for path, calls in contract["paths"].items()
        if "post" in calls
    }


async def test_a_protocol_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    routes = routes_of(ByLine())
    monkeypatch.setattr(application, "ROUTES", (*ROUTES, *routes))
    documented = error_schemas(document((*ROUTES, *routes)))
    assert documented["/by-line"] == {"#/components/schemas/Oops"}
    raw = document(routes)["paths"]["/by-line/raw/{what}/of/{model}"]["post"]
    assert set(raw["requestBody"]["content"]) == {JSON, UNNAMED, "text/plain"}
    assert set(raw["responses"]["200"]["content"]) == {"text/plain"}
    assert [p["name"] for p in raw["parameters"]] == ["what", "model"]
    assert documented["/infer"] == {"#/components/schemas/ErrorAnswer"}

    async def infer(requests: list[TextRequest]) -> list[TextResult]:
        if requests[0].text == "bad":
            raise InvalidInput("bad it is", field=requests[0].place)
        return [TextResult(model=r.model, version=1, label=str(r.text).upper()) for r in requests]

    async with running(tmp_path, max_inputs=3) as world:
        world.services.engine.infer = infer  # type: ignore[method-assign,assignment]
        _, made, _ = await world.call("POST", "/manage/tenants", {"tenant": "acme"})
        for sent, status, wanted in (
            ({"of": "acme", "lines": "one\ntwo"}, 200, {"labels": ["ONE", "TWO"]}),
            (
                {"of": "acme", "lines": "one\n "},
                422,
                {"oops": "line 2 is blank: send some text", "at": "line 2"},
            ),
            ({"of": "acme", "lines": "bad"}, 422, {"oops": "bad it is", "at": "line 1"}),
            (
                {"of": "zeta", "lines": "a"},
                404,
                {"oops": "there is no model 'zeta.m': check the name", "at": "of"},
            ),
            (
                {"of": "acme", "lines": "a\n" * 9},
                413,
                {"oops": "lines is over the limit of 3 inputs: send several requests", "at": "lines"},
            ),
            (
                {"of": "acme", "lines": "a", "more": [0] * 5000},
                413,
                {
                    "oops": "lines is over the limit of 2048 JSON values (texts and words): send "
                    "several requests",
                    "at": "lines",
                },
            ),
            ({"of": "acme"}, 422, {"oops": "lines: is missing: add it", "at": "lines"}),
        ):
            given, body, answer = await world.call("POST", "/by-line", sent, key=made["key"])
            assert (given, body) == (status, wanted)
            assert answer.headers["X-Request-Id"]
        _, body, _ = await world.call("POST", "/by-line", {}, key="hmi_wrong")
        assert body["oops"].startswith("this key is unknown")
        await _raw_bodies(world.client, made["key"])
        for path, shape in (("/by-line/else", "oops"), ("/by-lines", "error"), ("/by-line", "oops")):
            _, body, _ = await world.call("GET", path, key=made["key"])
            assert shape in body, "an unknown path has the shape of the protocol that it lies below"
        _, body, _ = await world.call("POST", "/infer/acme.m", {"inputs": "bad"})
        assert body["error"]["message"] == "bad it is", "the native calls keep their shape"


async def _raw_bodies(client: Any, key: str) -> None:
    """Raw bodies pass the same limits as JSON, and raw answers arrive as they are."""
    path, own = "/by-line/raw/words/of/acme.m", {"Authorization": f"Bearer {key}"}

    async def send(data: bytes, **headers: str) -> tuple[int, bytes, Any]:
        async with client.post(f"{path}?of=acme", data=data, headers={**own, **headers}) as answer:
            return answer.status, await answer.read(), answer.headers

    squeezed = {"Content-Encoding": "gzip", "Content-Type": "text/plain"}
    for data, headers in (
        (b"one\ntwo", {"Content-Type": "text/plain"}),
        (gzip.compress(b"one\ntwo"), squeezed),
        (b'{"of": "acme", "lines": "one\\ntwo"}', {"Content-Type": JSON}),
        (b"one\ntwo", {"Content-Type": UNNAMED}),
    ):
        status, body, given = await send(data, **headers)
        assert (status, body, given["X-Lines"]) == (200, b"2 of words\nONE\nTWO", "2")
        assert given["Content-Type"] == "text/plain"
    for data, headers, wanted in (
        (b"one", {"Content-Type": "text/html"}, 415),
        (b"x" * (5 << 20), {"Content-Type": "text/plain"}, 413),
        (gzip.compress(b"x" * (5 << 20)), squeezed, 413),
        (b'{"of": "acme", "lines": "a", "more": [' + b"0," * 5000 + b"0]}", {"Content-Type": JSON}, 413),
        (b'{"of": "acme"', {"Content-Type": JSON}, 400),
    ):
        status, body, _ = await send(data, **headers)
        assert (status, list(json.loads(body))) == (wanted, ["oops", "at"])
