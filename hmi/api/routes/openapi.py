"""The OpenAPI 3.1 document, generated from the route table alone."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from pydantic import TypeAdapter
from pydantic.json_schema import JsonSchemaMode

import hmi
from hmi.api.http.route import OPAQUE_PATTERN, PARAMETERS, Route
from hmi.api.protocols.base import EVENTS, JSON
from hmi.api.protocols.errors import RETRY_AFTER_S, status_of

REF = "#/components/schemas/{model}"
SUMMARY = "A language model of its own for each of thousands of tenants, served from one machine."


def document(routes: Iterable[Route]) -> dict[str, Any]:
    """The whole document. Equal routes give an equal document, so that a test can compare it with a file."""
    routes = list(routes)
    schemas = _Schemas(routes)
    paths: dict[str, Any] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "HMI", "version": hmi.__version__, "summary": SUMMARY},
        "servers": [{"url": "/"}],
        "paths": paths,
        "components": {
            "schemas": schemas.definitions,
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def error_kinds(route: Route) -> set[str]:
    """The kinds of errors that `route` may answer: those that follow from its fields, and its `kinds`."""
    kinds = {"internal", *route.kinds}
    if not route.while_draining:
        kinds.add("unavailable")
    if route.changes:
        kinds.add("quota_exceeded")
    if route.scope is not None:
        kinds |= {"unauthorised", "forbidden", "quota_exceeded"}
    if route.parameters:
        kinds |= {"not_found", "invalid_input"}
    if route.query is not None or route.creates:
        kinds.add("invalid_input")
    if route.body is not None:
        kinds |= {"malformed", "unsupported_media_type", "too_large", "invalid_input"}
    if route.files:
        kinds |= {"storage_full", "not_found"}
    return kinds


class _Schemas:
    """The schemas of all bodies, answers and errors of the routes. Models are named in `components`."""

    def __init__(self, routes: Sequence[Route]) -> None:
        wanted: list[tuple[str, JsonSchemaMode, TypeAdapter[Any]]] = []
        for route in routes:
            if route.body is not None:
                wanted.append((f"{_key(route)}:body", "validation", TypeAdapter(route.body)))
            if route.answer is not None:
                wanted.append((f"{_key(route)}:answer", "serialization", TypeAdapter(route.answer)))
            wanted.append((f"{_key(route)}:error", "serialization", TypeAdapter(route.dialect.error)))
        by_key, rest = TypeAdapter.json_schemas(wanted, ref_template=REF)
        self._by_key = {key: schema for (key, _mode), schema in by_key.items()}
        self.definitions: dict[str, Any] = dict(sorted(rest.get("$defs", {}).items()))

    def body(self, route: Route) -> Any:
        return self._by_key[f"{_key(route)}:body"]

    def fields(self, route: Route) -> Any:
        """The schema of an object that is the body, not a reference to it."""
        return self.definitions[self.body(route)["$ref"].rpartition("/")[2]]

    def answer(self, route: Route) -> Any:
        return self._by_key[f"{_key(route)}:answer"]

    def error(self, route: Route) -> Any:
        return self._by_key[f"{_key(route)}:error"]


def _key(route: Route) -> str:
    return f"{route.method} {route.path}"


def _operation(route: Route, schemas: _Schemas) -> dict[str, Any]:
    words = [w.strip("{}") for w in route.path.split("/") if w]
    operation: dict[str, Any] = {
        "operationId": "_".join([route.method.lower(), *words]).replace(".", "_"),
        "summary": route.summary,
        "tags": [words[0] if words else "page"],
        "parameters": _parameters(route),
        "responses": _responses(route, schemas),
        "security": [{"key": []}, {}] if route.scope is not None else [],
    }
    if route.scope is not None:
        operation["x-scope"] = route.scope
    if route.body is not None:
        operation["requestBody"] = {"required": True, "content": _content(route, schemas)}
    return operation


def _content(route: Route, schemas: _Schemas) -> dict[str, Any]:
    if route.form:
        return _form(route, schemas)
    json_schema = schemas.body(route)
    content: dict[str, Any] = {}
    if route.raw is None or JSON in route.raw.media:
        content[JSON] = {"schema": json_schema}
    if route.raw is not None:
        content |= {media: {"schema": {}} for media in route.raw.media if media != JSON}
    if route.files:
        binary = {"type": "string", "format": "binary"}
        content["multipart/form-data"] = {
            "schema": {
                "type": "object",
                "properties": {"spec": json_schema, **dict.fromkeys(route.files, binary)},
                "required": ["spec", *(name for name, required in route.files.items() if required)],
                "additionalProperties": False,
            },
            "encoding": {"spec": {"contentType": JSON}},
        }
    return content


def _form(route: Route, schemas: _Schemas) -> dict[str, Any]:
    """The content of a body whose fields are multipart parts of their own."""
    fields, binary = schemas.fields(route), {"type": "string", "format": "binary"}
    return {
        "multipart/form-data": {
            "schema": {
                "type": "object",
                "properties": {**fields["properties"], **dict.fromkeys(route.files, binary)},
                "required": [
                    *fields.get("required", ()),
                    *(n for n, needed in route.files.items() if needed),
                ],
                "additionalProperties": False,
            }
        }
    }


def _parameters(route: Route) -> list[dict[str, Any]]:
    found = []
    for name in route.parameters:
        schema = (
            _inline(PARAMETERS[name]) if name in PARAMETERS else {"type": "string", "pattern": OPAQUE_PATTERN}
        )
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    if route.query is not None:
        for name, schema in route.query.model_json_schema()["properties"].items():
            found.append({"name": name, "in": "query", "required": False, "schema": _not_null(schema)})
    for name, described in route.headers.items():
        header = {"name": name, "in": "header", "required": False, "schema": {"type": "string"}}
        found.append({**header, "description": described})
    if route.etag:
        schema = {"type": "string"}
        found.append({"name": "If-None-Match", "in": "header", "required": False, "schema": schema})
    if route.creates:
        schema = {"type": "string", "pattern": "^[!-~]{1,255}$"}
        found.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": schema})
    return found


def _responses(route: Route, schemas: _Schemas) -> dict[str, Any]:
    success: dict[str, Any] = {"description": "Done." if route.status != 202 else "Accepted as a job."}
    content: dict[str, Any] = {}
    if route.answer is not None:
        content[JSON] = {"schema": schemas.answer(route)}
    other = route.raw_answer or (route.media if route.answer is None else None)
    if other:
        # A stream of events gets no schema: tools read one as the whole text's, or as each event's.
        text = other.startswith("text/") and other != EVENTS
        content[other] = {"schema": {"type": "string"} if text else {}}
    if content:
        success["content"] = content
    if route.status == 202:
        success["headers"] = {"Location": {"schema": {"type": "string"}, "description": "The job."}}
    if route.etag:
        success.setdefault("headers", {})["ETag"] = {"schema": {"type": "string"}}
    responses = {str(route.status): success}
    if route.etag:
        responses["304"] = {"description": "Unchanged: If-None-Match gives the current ETag."}
    by_status: dict[int, list[str]] = {}
    for kind in sorted(error_kinds(route)):
        by_status.setdefault(status_of(kind, route.dialect), []).append(kind)
    for status, kinds in sorted(by_status.items()):
        responses[str(status)] = _error_response(status, kinds, schemas.error(route))
    return responses


def _error_response(status: int, kinds: list[str], schema: Any) -> dict[str, Any]:
    response: dict[str, Any] = {"description": ", ".join(kinds), "content": {JSON: {"schema": schema}}}
    if status in RETRY_AFTER_S:
        response["headers"] = {"Retry-After": {"schema": {"type": "integer"}}}
    return response


def _inline(kind: Any) -> dict[str, Any]:
    return TypeAdapter(kind).json_schema()


def _not_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of an optional query parameter without null: a parameter is left out, never sent as null."""
    plain = {k: v for k, v in schema.items() if k not in ("anyOf", "default", "title")}
    choices = [c for c in schema.get("anyOf", []) if c.get("type") != "null"]
    return {**plain, **(choices[0] if len(choices) == 1 else {"anyOf": choices} if choices else {})}
