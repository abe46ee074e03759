"""The OpenAPI document is complete, current, and true of the server's answers."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest

from hmi.api.process.application import application
from hmi.api.process.building import build_services
from hmi.api.protocols.errors import status_of
from hmi.api.routes.openapi import document, error_kinds
from hmi.api.routes.table import ROUTES, openapi_text
from hmi.config import Settings

DOCUMENT = document(ROUTES)
PINNED = Path(__file__).parents[3] / "docs" / "openapi.json"


def test_the_pinned_document_is_current() -> None:
    assert PINNED.read_text(encoding="utf-8") == openapi_text(), "run: hmi openapi --out docs/openapi.json"


def test_every_route_is_documented(tmp_path: Path) -> None:
    services = build_services(Settings(data=tmp_path))
    try:
        served = {
            (r.method, r.resource.canonical) for r in application(services).router.routes() if r.resource
        }
    finally:
        services.manager.close()
    documented = {(m.upper(), path) for path, item in DOCUMENT["paths"].items() for m in item}
    assert served == documented
    assert len(served) == len(ROUTES)


@pytest.mark.parametrize("route", ROUTES, ids=lambda r: f"{r.method} {r.path}")
def test_operations_are_whole(route: object) -> None:
    from hmi.api.http.route import Route

    assert isinstance(route, Route)
    operation = DOCUMENT["paths"][route.path][route.method.lower()]
    named = {p["name"] for p in operation["parameters"] if p["in"] == "path"}
    assert named == set(route.parameters)
    unchanged = {"304"} if route.etag else set()
    assert {str(status_of(k, route.dialect)) for k in error_kinds(route)} == set(operation["responses"]) - {
        str(route.status)
    } - unchanged
    for status, response in operation["responses"].items():
        assert ("content" in response) is (status not in unchanged), status
    if route.scope is not None:
        assert operation["x-scope"] == route.scope
        assert {"401", "403"} <= set(operation["responses"])
    if route.body is not None:
        media = ("application/json",) if route.raw is None else route.raw.media
        wanted = ("multipart/form-data",) if route.form else media
        assert set(wanted) <= set(operation["requestBody"]["content"])


def test_references_resolve_and_schemas_are_schemas() -> None:
    known = DOCUMENT["components"]["schemas"]
    text = json.dumps(DOCUMENT)
    for part in text.split('"$ref": "')[1:]:
        assert part.partition('"')[0].removeprefix("#/components/schemas/") in known
    for schema in known.values():
        jsonschema.Draft202012Validator.check_schema(schema)
    ids = [op["operationId"] for item in DOCUMENT["paths"].values() for op in item.values()]
    assert len(ids) == len(set(ids))
