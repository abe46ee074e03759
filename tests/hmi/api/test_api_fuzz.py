"""Requests drawn from the OpenAPI document, sound and spoilt: each answer is
documented, and none is a 5xx."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any
from urllib.parse import quote

import jsonschema
from aiohttp import FormData

from hmi.api.protocols.base import UNNAMED
from hmi.api.routes.openapi import document
from hmi.api.routes.table import ROUTES
from tests.hmi.labs.api_world import World, running

DOCUMENT = document(ROUTES)
NUMBERS: list[Any] = [None, True, -1, 0, 1e308, 2**80]
TEXTS = ["", " ", "a", "a.b", "a/b", "../x", "\0", "é🙂", "a" * 300]
NESTED: list[Any] = [[], {}, [None], {"a": 1}, ["a"], {"path": "../x"}, {"text": "x"}]
ODD = [*NUMBERS, *TEXTS, *NESTED]
ROUNDS, MOST_ROUNDS = 15, 60
WANTED = {200, 201, 404, 422}
"""The answers that must come. What is drawn depends on all schemas, so it may take more than ROUNDS."""


def resolve(schema: dict[str, Any]) -> dict[str, Any]:
    while "$ref" in schema:
        schema = DOCUMENT["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    return schema


def draw(schema: dict[str, Any], rng: random.Random, spoil: float) -> Any:
    """A value of the schema; at each place, with probability `spoil`, an odd value instead."""
    schema = resolve(schema)
    if rng.random() < spoil:
        return rng.choice(ODD)
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return draw(rng.choice(schema[choice]), rng, spoil)
    if "enum" in schema:
        return rng.choice(schema["enum"])
    if "const" in schema:
        return schema["const"]
    kind = schema.get("type")
    if kind == "object":
        required = set(schema.get("required", []))
        names = [n for n in schema.get("properties", {}) if n in required or rng.random() < 0.4]
        return {n: draw(schema["properties"][n], rng, spoil) for n in names}
    if kind == "array":
        return [draw(schema.get("items", {}), rng, spoil) for _ in range(rng.randint(1, 3))]
    if kind == "string":
        return rng.choice(["tiny", "acme", "acme.m", "tiny/a"])
    if kind in ("integer", "number"):
        return max(schema.get("minimum", 1), schema.get("exclusiveMinimum", 0) + 1)
    return {"boolean": True, "null": None}.get(str(kind), "any")


def request_of(
    path: str, operation: dict[str, Any], rng: random.Random, spoil: float
) -> tuple[str, dict[str, Any]]:
    query: dict[str, str] = {}
    headers: dict[str, str] = {}
    for parameter in operation["parameters"]:
        value = draw(parameter["schema"], rng, spoil)
        text = value if isinstance(value, str) else json.dumps(value)
        if parameter["in"] == "path":
            path = path.replace("{" + parameter["name"] + "}", quote(text or "-", safe=""))
        elif parameter["in"] == "query" and rng.random() < 0.5:
            query[parameter["name"]] = text
        elif text.isascii() and text.isprintable() and text.strip():
            headers[parameter["name"]] = text
    given: dict[str, Any] = {"params": query, "headers": headers}
    if "requestBody" in operation:
        content = operation["requestBody"]["content"]
        if UNNAMED in content and len(content) == 1:
            headers["Content-Type"] = UNNAMED
            return path, {**given, "data": rng.randbytes(rng.randint(0, 30))}
        if "application/json" not in content:
            return path, {**given, "data": form_of(content["multipart/form-data"]["schema"], rng, spoil)}
        given["data"] = json.dumps(draw(content["application/json"]["schema"], rng, spoil)).encode()
        headers["Content-Type"] = "application/json"
        if rng.random() < 0.05:
            given["data"] = given["data"][:-1]
    return path, given


def form_of(schema: dict[str, Any], rng: random.Random, spoil: float) -> FormData:
    """A multipart body, some of whose parts may be missing."""
    form = FormData()
    for name, part in schema["properties"].items():
        file = part.get("format") == "binary"
        if rng.random() >= spoil / 2:
            if file:
                form.add_field(name, b"a", filename=name)
            else:
                form.add_field(name, str(draw(part, rng, spoil)))
    return form


async def check(world: World, method: str, path: str, rng: random.Random) -> int:
    operation = DOCUMENT["paths"][path][method]
    url, given = request_of(path, operation, rng, rng.choice([0, 0.1, 0.5]))
    async with world.client.request(method.upper(), url, allow_redirects=False, **given) as response:
        text = await response.text()
        where = f"{method} {url} {given} → {response.status} {text[:300]}"
        # A drawn deadline of a millisecond may pass, which is an answer; any other 5xx is a fault.
        assert response.status < 500 or response.status == 504, where
        if response.status == 404 and "see /openapi.json" in text:
            return 404  # the odd value turned it into another path
        assert str(response.status) in operation["responses"], where
        content = operation["responses"][str(response.status)]["content"]
        assert response.content_type in content, where
        schema = content[response.content_type]["schema"]
        if response.content_type == "application/json":
            validator = jsonschema.Draft202012Validator({**schema, "components": DOCUMENT["components"]})
            validator.validate(json.loads(text))
        return response.status


async def test_fuzz(tmp_path: Path) -> None:
    rng = random.Random(3)
    seen: set[int] = set()
    async with running(tmp_path) as world:
        await world.call("POST", "/manage/tenants", {"tenant": "acme"})
        for done in range(MOST_ROUNDS):
            if done >= ROUNDS and seen >= WANTED:
                break
            for path, item in DOCUMENT["paths"].items():
                for method in item:
                    if path.startswith("/readyz"):
                        continue
                    seen.add(await check(world, method, path, rng))
    assert seen >= WANTED
