"""From the bytes of a request to its checked models."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from aiohttp import ContentTypeError, web
from pydantic import TypeAdapter, ValidationError

from hmi.api.errors import Malformed, UnsupportedMediaType, from_validation, over
from hmi.api.loop import OFF_LOOP_BYTES, off_loop
from hmi.api.route import Route
from hmi.api.services import Services
from hmi.api.uploads import Form
from hmi.errors import InvalidInput

MAX_JSON_BYTES = 32 << 20


@dataclass
class Received:
    """A request's body, checked; `digest` identifies what was sent."""

    body: Any
    files: Mapping[str, Path]
    form: Form | None
    digest: str
    size: int = 0
    """Bytes of the JSON body."""

    def discard(self) -> None:
        if self.form is not None:
            self.form.discard()


def parse(model: Any, data: bytes) -> Any:
    """JSON bytes → the model; raises Malformed or InvalidInput naming each field."""
    try:
        return _adapter(model).validate_json(data, strict=True)
    except ValidationError as error:
        raise from_validation(error, model) from error


async def receive(route: Route, request: web.Request, services: Services, tenant: str | None) -> Received:
    """Read what `route` expects; `tenant` is the caller's, None reaches all.

    Raises Malformed, UnsupportedMediaType, TooLarge, InvalidInput, NotFound.
    """
    if route.body is None:
        return Received(None, {}, None, "")
    if route.files and request.content_type == "multipart/form-data":
        return await _multipart(route, request, services, tenant)
    if request.content_type != "application/json":
        wanted = "application/json" + (" or multipart/form-data" if route.files else "")
        raise UnsupportedMediaType(f"send the body as {wanted}, not as {request.content_type[:80]}")
    data = await _read(request)
    body = await off_loop(len(data) > OFF_LOOP_BYTES, parse, route.body, data)
    if not route.files:
        return Received(body, {}, None, _digest(data), len(data))
    form = Form(services.uploads.new_folder())
    try:
        files = await asyncio.to_thread(_named_files, route, body, services, form, tenant)
    except BaseException:
        form.discard()
        raise
    return Received(body, files, form, _digest(data), len(data))


def parse_query(route: Route, query: Mapping[str, str]) -> Any:
    if route.query is None:
        return None
    try:
        return route.query.model_validate(dict(query))
    except ValidationError as error:
        raise from_validation(error, route.query) from error


async def _multipart(route: Route, request: web.Request, services: Services, tenant: str | None) -> Received:
    form = await services.uploads.receive(request, tuple(route.files))
    try:
        body = parse(route.body, form.spec)
        for name in route.files:
            if getattr(body, name, None) is not None and name in form.files:
                raise InvalidInput(f"{name} is both a part and a path: give one of them", field=name)
        named = await asyncio.to_thread(_named_files, route, body, services, form, tenant, form.files)
    except BaseException:
        form.discard()
        raise
    return Received(body, named, form, form.digest)


def _named_files(
    route: Route,
    body: Any,
    services: Services,
    form: Form,
    tenant: str | None,
    given: Mapping[str, Path] | None = None,
) -> dict[str, Path]:
    """The files of a request, uploaded or named by a path; raises InvalidInput where one is missing."""
    files = dict(given or {})
    for name, required in route.files.items():
        ref = getattr(body, name, None)
        if ref is not None:
            files[name] = services.uploads.copy_below(tenant, ref.path, name, form.folder)
        if required and name not in files:
            raise InvalidInput(
                f'{name} is missing: send it as a multipart part, or as {{"path": …}} below <data>/uploads',
                field=name,
            )
    return files


async def _read(request: web.Request) -> bytes:
    try:
        return await request.read()
    except web.HTTPRequestEntityTooLarge as error:
        raise over("body", MAX_JSON_BYTES, "bytes", "send fewer inputs in a request") from error
    except (ContentTypeError, web.PayloadAccessError) as error:
        raise Malformed(f"the body cannot be read ({error}): check its Content-Encoding") from error


def _digest(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


@cache
def _adapter(model: Any) -> TypeAdapter[Any]:
    return TypeAdapter(model)
