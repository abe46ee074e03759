"""From a route of the table to an aiohttp handler: admit, identify, check, run, answer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable
from typing import Any

from aiohttp import web
from pydantic import BaseModel

from hmi.api.body import parse_query, receive
from hmi.api.caller import NOBODY
from hmi.api.connection import began, is_guest
from hmi.api.errors import INTERNAL as INTERNAL_MESSAGE
from hmi.api.errors import MethodNotAllowed, headers_of, known, status_of
from hmi.api.idempotency import REPLAYED, Once, alone, once_of
from hmi.api.loop import off_loop
from hmi.api.protocols.base import Failure
from hmi.api.protocols.native import NATIVE
from hmi.api.route import Call, Reply, Route
from hmi.api.services import SERVICES, Services, Stopping
from hmi.api.shares import Loan
from hmi.errors import HmiError, NotFound, Unavailable
from hmi.stores.layout import without_paths

log = logging.getLogger("hmi.api")
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
OUTCOME: web.RequestKey[str] = web.RequestKey("outcome", str)
ROUTE: web.RequestKey[Route] = web.RequestKey("route", Route)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
AioHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def handler_of(route: Route) -> AioHandler:
    """The aiohttp handler that serves `route`."""

    async def handle(request: web.Request) -> web.StreamResponse:
        request[ROUTE] = route
        services = request.app[SERVICES]
        if route.draining:
            return await _serve(route, request, services)
        if is_guest(request):
            raise Unavailable("overloaded: all connections are in use; try again shortly")
        services.admit()
        work = asyncio.create_task(_serve(route, request, services))
        services.in_flight.until_done(work)
        try:
            if route.cancellable:
                return await work
            # What creates something is finished even when its client goes away.
            services.working.add(work)
            work.add_done_callback(services.working.discard)
            return await asyncio.shield(work)
        finally:
            # An error's traceback leads here: with the task, which holds the error, what the body took would
            # stay until the garbage collector comes by.
            del work

    return handle


@web.middleware
async def answer_errors(request: web.Request, handler: AioHandler) -> web.StreamResponse:
    """Give every request an id and every error the native shape; count both."""
    wished = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = wished if _SAFE_ID.fullmatch(wished) else uuid.uuid4().hex
    request[OUTCOME] = "ok"
    began(request)
    arrived = time.monotonic()
    try:
        return await handler(request)
    except asyncio.CancelledError:
        request[OUTCOME] = "client_gone"
        raise
    except ConnectionResetError:
        request[OUTCOME] = "client_gone"
        raise
    except Exception as error:  # the edge of the process: nothing may escape unshaped
        return _error(request, error)
    finally:
        route = request.match_info.route.resource
        request.app[SERVICES].metrics.request(
            route.canonical if route is not None else "unknown", request[OUTCOME], time.monotonic() - arrived
        )


async def no_answer_yet(request: web.Request) -> None:
    """For `Expect: 100-continue`: the client is told to send its body once the server begins to read it."""


async def add_request_id(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal: the id goes on every answer, also on one that streams."""
    request_id = request.get(REQUEST_ID)
    if request_id is not None:
        response.headers["X-Request-Id"] = request_id
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    if isinstance(request, web.Request) and request.app[SERVICES].phase == "draining":
        # The header was written from this before the signal; a client is to come back on another connection.
        response.force_close()
        response.headers["Connection"] = "close"


async def _serve(route: Route, request: web.Request, services: Services) -> web.StreamResponse:
    arrived = time.monotonic()
    caller = services.auth.caller(request, route.scope) if route.scope is not None else NOBODY
    if route.changes:
        services.quotas.change(caller.tenant)
    call = Call(services, caller, request.match_info, arrived, request)
    call.query = parse_query(route, request.query)
    # Before anything of the body is read: no holder's requests take more than its share of the server.
    holder = call.holder()
    with services.places.loan(holder, 1 if route.scope else 0), services.bodies.shares.loan(holder) as loan:
        try:
            return await _answered(route, call, request, loan)
        finally:
            services.bodies.finished(loan)


async def _answered(route: Route, call: Call, request: web.Request, loan: Loan) -> web.StreamResponse:
    services = call.services
    with services.reading(request):
        received = await receive(route, request, services, call.caller.tenant, loan)
    try:
        call.body, call.files, call.size = received.body, received.files, received.size
        once = once_of(route, request, call.caller, received.digest)
        if once is None:
            return await _response(route, *await _rendered(await route.handler(call)))
        async with alone(once, services):
            kept = await once.kept(services)
            if kept is not None:
                return await _repeated(route, call, once, kept)
            reply, body = await _rendered(await route.handler(call))
            assert isinstance(reply, Reply)
            await once.keep(services, reply, body)
            return await _response(route, reply, body)
    finally:
        received.discard()


async def _rendered(reply: Reply | web.StreamResponse) -> tuple[Reply | web.StreamResponse, Any]:
    return reply, await off_loop(reply.large, plain, reply.body) if isinstance(reply, Reply) else None


async def _repeated(route: Route, call: Call, once: Once, kept: dict[str, Any]) -> web.StreamResponse:
    """The first request's answer, or one made anew where the first could not be stored."""
    reply, body = Reply(None, kept["location"]), kept["body"]
    if kept["keep"] is not None:
        assert route.again is not None
        reply = await route.again(call, kept["keep"])
        body = plain(reply.body)
        await once.keep(call.services, reply, body)
    response = await _response(route, reply, body)
    response.headers[REPLAYED] = "true"
    return response


async def _response(route: Route, reply: Reply | web.StreamResponse, body: Any) -> web.StreamResponse:
    if isinstance(reply, web.StreamResponse):
        return reply
    headers = {"Location": reply.location} if reply.location else None
    # Encoding in one piece keeps the interpreter's lock to its end, from whichever thread; in chunks it does
    # not.
    text = await off_loop(reply.large, _text_in_chunks if reply.large else _ENCODER.encode, body)
    return _json(text, route.status, headers)


def plain(body: Any) -> Any:
    """An answer's models as JSON values."""
    if isinstance(body, list):
        return [plain(item) for item in body]
    assert isinstance(body, BaseModel)
    return body.model_dump(mode="json", by_alias=True)


def _error(request: web.Request, error: Exception) -> web.Response:
    shaped, status, headers = shape(request, error)
    return _json(_ENCODER.encode(shaped), status, headers)


def shape(request: web.Request, error: Exception) -> tuple[dict[str, Any], int, dict[str, str]]:
    """(body, status, headers) of an error, which is logged where it is ours and counted in any case."""
    told, headers = _told(request, error)
    request[OUTCOME] = told.kind
    status = status_of(told)
    if status >= 500 and told.kind != "internal" and not isinstance(told, Stopping):
        seldom = request.app[SERVICES].seldom
        seldom.warning(told.kind, "request %s: %s: %s", request[REQUEST_ID], told.kind, told.message)
    # The log names files; whoever calls must not learn where they lie.
    message = without_paths(told.message, request.app[SERVICES].settings.data)
    route = request.get(ROUTE)  # None where no route fits the path
    dialect = NATIVE if route is None else route.dialect
    body = dialect.encode_error(Failure(told.kind, message, told.details, request[REQUEST_ID]))
    return body, status, {**headers_of(status), **headers}


def _told(request: web.Request, error: Exception) -> tuple[HmiError, dict[str, str]]:
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{request.method[:20]} is not for this path: use {allowed}"), {
            "Allow": allowed
        }
    if isinstance(error, web.HTTPNotFound):
        return NotFound(f"there is no {request.path[:120]!r} here: see /openapi.json"), {}
    told = known(error)
    if told is None:
        log.error(
            "request %s: %s %s failed", request[REQUEST_ID], request.method, request.path, exc_info=error
        )
        told = HmiError(INTERNAL_MESSAGE)
    return told, {}


def _text_in_chunks(body: Any) -> str:
    return "".join(_ENCODER.iterencode(body))


def _json(text: str, status: int, headers: dict[str, str] | None) -> web.Response:
    return web.Response(text=text, status=status, headers=headers, content_type="application/json")
