"""A second protocol, defined in this file and served by a real server: its own calls, answers and errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
from pydantic import BaseModel

from hmi.api import app
from hmi.api.asks import Ask, AskResult, Input
from hmi.api.handlers.infer import routes_of
from hmi.api.openapi import document
from hmi.api.protocols.base import Endpoint, Failure
from hmi.api.routes import ROUTES
from hmi.core import ModelId
from hmi.engine import TextRequest, TextResult
from hmi.errors import InvalidInput
from tests.hmi.api_world import running


class Lines(BaseModel):
    of: str
    lines: str


class Labels(BaseModel):
    labels: list[str | None]


def decode(body: Lines, path: Mapping[str, str]) -> list[Ask]:
    inputs = [
        Input(line, f"line {i + 1}", (f"line {i + 1}",)) for i, line in enumerate(body.lines.split("\n"))
    ]
    return [Ask(ModelId(body.of, "m"), inputs, "of")]


def encode(results: Sequence[AskResult]) -> Labels:
    return Labels(labels=[output.label for result in results for output in result.outputs])


class Oops(BaseModel):
    oops: str
    at: str | None


class ByLine:
    endpoints = (Endpoint("/by-line", "Label lines.", Lines, Labels, decode, encode, "lines"),)
    error = Oops

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
    monkeypatch.setattr(app, "ROUTES", (*ROUTES, *routes))
    documented = error_schemas(document((*ROUTES, *routes)))
    assert documented["/by-line"] == {"#/components/schemas/Oops"}
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
        _, body, _ = await world.call("POST", "/by-line", {}, key="wrong")
        assert body["oops"].startswith("this key is unknown")
        _, body, _ = await world.call("POST", "/infer/acme.m", {"inputs": "bad"})
        assert body["error"]["message"] == "bad it is", "the native calls keep their shape"
