"""Turns a route into an aiohttp handler: admit the request, identify the caller, check, run, answer."""

from __future__ import annotations

import asyncio
import json
import logging
import re
import time
import uuid
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from typing import Any

from aiohttp import web
from pydantic_core import to_json

from hmi.api.body.shares import Loan
from hmi.api.edge.connection import began, is_guest
from hmi.api.http.audited import audit_call, identify_caller, note_reply
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.idempotency import REPLAYED, KeyedRequest, keyed_request
from hmi.api.http.lifecycle import Stopping
from hmi.api.http.observed import HEADER as TRACE_HEADER
from hmi.api.http.observed import Observed
from hmi.api.http.plain import plain
from hmi.api.http.request_body import SENT, parse_query, read_for_inference, receive
from hmi.api.http.route import Route
from hmi.api.http.services import SERVICES, Services
from hmi.api.in_thread import off_loop
from hmi.api.nodes.forward import FORWARDED
from hmi.api.protocols.base import JSON, Dialect, Failure, Raw, is_below
from hmi.api.protocols.errors import INTERNAL as INTERNAL_MESSAGE
from hmi.api.protocols.errors import MethodNotAllowed, headers_of, known, status_of
from hmi.api.protocols.native import NATIVE
from hmi.api.protocols.tei.calls import HEADER as MODEL_HEADER
from hmi.core import check_name
from hmi.errors import HmiError, InvalidInput, NotFound, Unavailable
from hmi.stores.layout import without_paths
from hmi.telemetry.context import note_caller

log = logging.getLogger("hmi.api")
REQUEST_ID: web.RequestKey[str] = web.RequestKey("request_id", str)
OUTCOME: web.RequestKey[str] = web.RequestKey("outcome", str)
PASSED = "passed"
"""The outcome of a call that another server answered, well or not: that server counts which."""
OBSERVED: web.RequestKey[Observed] = web.RequestKey("observed", Observed)
ROUTE: web.RequestKey[Route] = web.RequestKey("route", Route)
TENANT: web.RequestKey[str] = web.RequestKey("tenant", str)
"""The tenant of a call that asks models, if servers share a bucket."""
DIALECTS: web.AppKey[tuple[Dialect, ...]] = web.AppKey("dialects", tuple[Dialect, ...])
"""The protocols that the application serves."""
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)
_SAFE_ID = re.compile(r"[A-Za-z0-9._-]{1,64}")
AioHandler = Callable[[web.Request], Awaitable[web.StreamResponse]]


def handler_of(route: Route) -> AioHandler:
    """The aiohttp handler that serves `route`."""
    other = None if (second := route.instead) is None else (second.wanted, handler_of(second.route))

    async def handle(request: web.Request) -> web.StreamResponse:
        request[ROUTE] = route
        if other is not None and other[0](request.headers):
            return await other[1](request)
        services = request.app[SERVICES]
        if route.while_draining:
            return await _serve(route, request, services)
        if is_guest(request):
            raise Unavailable("overloaded: all connections are in use; try again shortly")
        services.lifecycle.admit()
        following = services.manager.following
        if route.manages and following is not None and (primary := following.elsewhere()) is not None:
            with services.lifecycle.in_flight:
                request[OUTCOME] = PASSED
                return await services.forwarder.pass_on(request, request[REQUEST_ID], primary.url)
        if route.cancellable:
            with services.lifecycle.in_flight:
                return await _serve(route, request, services)
        # A call that may change something is finished even if its client disconnects.
        work = asyncio.create_task(_serve(route, request, services))
        services.lifecycle.in_flight.until_done(work)
        services.lifecycle.working.add(work)
        work.add_done_callback(services.lifecycle.working.discard)
        try:
            return await asyncio.shield(work)
        finally:
            # The traceback of an error refers to this frame, and the task to the error. Without this
            # `del` the cycle would keep the body in memory until the garbage collector runs.
            del work

    return handle


@web.middleware
async def answer_errors(request: web.Request, handler: AioHandler) -> web.StreamResponse:
    """Give every request an id, make an answer of every error, and count the outcome."""
    given = request.headers.get("X-Request-Id", "")
    request[REQUEST_ID] = given if _SAFE_ID.fullmatch(given) else uuid.uuid4().hex
    request[OUTCOME] = "ok"
    began(request)
    arrived = time.monotonic()
    resource, services = request.match_info.route.resource, request.app[SERVICES]
    route = resource.canonical if resource is not None else "unknown"
    response: web.StreamResponse | None = None
    request[OBSERVED] = observed = Observed(
        request.headers, request[REQUEST_ID], request.method, route, services.monitoring.tracer
    )
    try:
        response = await handler(request)
        return response
    except (asyncio.CancelledError, ConnectionResetError):
        request[OUTCOME] = "client_gone"
        raise
    except Exception as error:  # the edge of the process: every error becomes an answer
        response = _error(request, error)
        return response
    finally:
        services.monitoring.metrics.request(route, request[OUTCOME], time.monotonic() - arrived)
        observed.end_http(request[OUTCOME], response, log=services.settings.access_log)


async def no_answer_yet(request: web.Request) -> None:
    """Do nothing yet about `Expect: 100-continue`: `Inflow.begin` answers it when the body is wanted."""


async def add_request_id(request: web.BaseRequest, response: web.StreamResponse) -> None:
    """Signal handler: put the request's id on every answer, streams included, and close it while draining."""
    request_id = request.get(REQUEST_ID)
    if request_id is not None:
        response.headers["X-Request-Id"] = request_id
    observed = request.get(OBSERVED)
    if observed is not None and observed.context.trace is not None:
        response.headers[TRACE_HEADER] = observed.context.trace.traceresponse
    if isinstance(request, web.Request) and (tenant := request.get(TENANT)) is not None:
        servers = request.app[SERVICES].servers
        if servers is not None and FORWARDED in request.headers:
            servers.note_wait(tenant, response.headers)
    response.headers.setdefault("X-Content-Type-Options", "nosniff")
    if isinstance(request, web.Request) and request.app[SERVICES].lifecycle.phase == "draining":
        # aiohttp chose the Connection header before this signal, so it is set here, too. The
        # client has to connect again.
        response.force_close()
        response.headers["Connection"] = "close"


async def _serve(route: Route, request: web.Request, services: Services) -> web.StreamResponse:
    arrived = time.monotonic()
    if services.servers is not None and route.asks_models and FORWARDED in request.headers:
        await services.servers.follow(request)  # before the key is looked up, which may be a new one
    caller = identify_caller(route, request, request[REQUEST_ID], services.access)
    note_caller(tenant=caller.tenant, model=request.match_info.get("model"), key_id=caller.key_id)
    call = RouteCall(services, caller, request.match_info, arrived, request, id=request[REQUEST_ID])
    async with audit_call(route, call, request):
        call.query = parse_query(route, request.query)
        # Reserved before any of the body is read, so that no tenant takes more than its share of the server.
        holder = call.holder()
        note_caller(tenant=holder)
        places = services.intake.places.loan(holder, 1 if route.scope else 0)
        with places, services.intake.bodies.shares.loan(holder) as loan:
            try:
                if services.servers is not None and route.asks_models:
                    with services.lifecycle.reading(request):
                        await read_for_inference(request, services.intake, loan)
                    tenant = caller.tenant or call.path.get("model", "").partition(".")[0]
                    if (answer := await _elsewhere(call, request, tenant)) is not None:
                        return answer
                return await _run(route, call, request, loan)
            finally:
                services.intake.bodies.finished(loan)


async def _elsewhere(call: RouteCall, request: web.Request, tenant: str) -> web.StreamResponse | None:
    """Let the tenant's own server answer a call that asks its models. None: it is this one, or `tenant` is
    ""."""
    servers = call.services.servers
    if servers is None or not tenant:
        return None
    request[TENANT] = tenant
    answer = await servers.answer(request, call.id, tenant, request[SENT])
    if answer is not None:
        request[OUTCOME] = PASSED
    return answer


def _tenant_named(call: RouteCall, request: web.Request) -> str:
    """The tenant whose models a call names in its body or by a header; "" if it names none, or those of
    several tenants."""
    bodies = call.body if isinstance(call.body, list) else [call.body]
    other = request.headers.get(MODEL_HEADER) or call.services.settings.default_model
    tenants = {str(getattr(body, "model", other)).partition(".")[0] for body in bodies}
    with suppress(InvalidInput):
        return check_name(tenants.pop(), "tenant") if len(tenants) == 1 else ""
    return ""


async def _run(route: Route, call: RouteCall, request: web.Request, loan: Loan) -> web.StreamResponse:
    services = call.services
    with services.lifecycle.reading(request):
        received = await receive(route, call, request, loan)
    try:
        call.body, call.files, call.size = received.body, received.files, received.size
        call.file_names = {} if received.form is None else received.form.file_names
        if SENT in request and TENANT not in request:  # only the body tells whose models are asked
            answer = await _elsewhere(call, request, _tenant_named(call, request))
            if answer is not None:
                return answer
        keyed = keyed_request(request, call.caller, received.digest) if route.creates else None
        if keyed is None:
            return await _answer(route, await _run_handler(route, call))
        async with services.keyed.exclusively(keyed):
            kept = await services.keyed.of(keyed)
            if kept is not None:
                return await _replay(route, call, keyed, kept)
            reply, body = await _reply_and_body(await _run_handler(route, call))
            assert isinstance(reply, Reply)
            await services.keyed.store(keyed, reply.location, body, reply.keep)
            return await _response(route, reply, body)
    finally:
        received.discard()


async def _run_handler(route: Route, call: RouteCall) -> Reply | web.StreamResponse:
    reply = await route.handler(call)
    note_reply(call, reply)
    return reply


async def _answer(route: Route, reply: Reply | web.StreamResponse) -> web.StreamResponse:
    if isinstance(reply, Reply) and isinstance(reply.body, Raw):
        raw = reply.body
        return _bytes(raw.body, route.status, {**_headers(reply), **raw.headers}, raw.media)
    if isinstance(reply, Reply) and not reply.large:
        text = to_json(reply.body, by_alias=True, inf_nan_mode="null")
        return _json(text, route.status, _headers(reply))
    return await _response(route, *await _reply_and_body(reply))


async def _reply_and_body(reply: Reply | web.StreamResponse) -> tuple[Reply | web.StreamResponse, Any]:
    return reply, await off_loop(reply.large, plain, reply.body) if isinstance(reply, Reply) else None


async def _replay(
    route: Route, call: RouteCall, keyed: KeyedRequest, kept: dict[str, Any]
) -> web.StreamResponse:
    """Answer a repeated request: with the first one's answer, or with a new one if that was not stored."""
    reply, body = Reply(None, kept["location"]), kept["body"]
    if kept["keep"] is not None:
        assert route.again is not None
        reply = await route.again(call, kept["keep"])
        body = plain(reply.body)
        await call.services.keyed.store(keyed, reply.location, body, reply.keep)
    response = await _response(route, reply, body)
    response.headers[REPLAYED] = "true"
    return response


async def _response(route: Route, reply: Reply | web.StreamResponse, body: Any) -> web.StreamResponse:
    if isinstance(reply, web.StreamResponse):
        return reply
    # JSONEncoder.encode holds the interpreter's lock to its end, in any thread. Encoding in chunks does not.
    text = await off_loop(reply.large, _text_in_chunks if reply.large else _ENCODER.encode, body)
    return _json(text.encode(), route.status, _headers(reply))


def _headers(reply: Reply) -> dict[str, str]:
    return {"Location": reply.location} if reply.location else {}


def _error(request: web.Request, error: Exception) -> web.Response:
    shaped, status, headers = shape(request, error)
    # A message may quote bytes of the request that are no text: "?" stands for each.
    return _json(_ENCODER.encode(shaped).encode(errors="replace"), status, headers)


def shape(request: web.Request, error: Exception) -> tuple[dict[str, Any], int, dict[str, str]]:
    """The answer to an error: its body, status and headers.

    It counts the error, and logs those of the server. An internal error is logged with its traceback.
    """
    ours, headers = _as_hmi_error(request, error)
    request[OUTCOME] = ours.kind
    dialect = _dialect(request)
    status = status_of(ours.kind, dialect)
    if status >= 500 and ours.kind != "internal" and not isinstance(ours, Stopping):
        limited_log = request.app[SERVICES].monitoring.limited_log
        limited_log.warning(ours.kind, "request %s: %s: %s", request[REQUEST_ID], ours.kind, ours.message)
    # The log names files, but a caller must not learn where they lie.
    message = without_paths(ours.message, request.app[SERVICES].settings)
    body = dialect.encode_error(Failure(ours.kind, message, ours.details, request[REQUEST_ID]))
    return body, status, {**headers_of(status, ours.details), **headers}


def _dialect(request: web.Request) -> Dialect:
    """The protocol of a request, which shapes its errors. A path without a route has one by its prefix."""
    route: Route | None = request.get(ROUTE)
    if route is not None:
        return route.dialect
    for dialect in request.app[DIALECTS]:
        if any(is_below(request.path, prefix) for prefix in dialect.prefixes):
            return dialect
    return NATIVE


def _as_hmi_error(request: web.Request, error: Exception) -> tuple[HmiError, dict[str, str]]:
    """The HmiError that a client gets for `error`, and headers of its own. A bug becomes `internal`."""
    if isinstance(error, web.HTTPMethodNotAllowed):
        allowed = ", ".join(sorted(error.allowed_methods))
        return MethodNotAllowed(f"{request.method[:20]} is not for this path: use {allowed}"), {
            "Allow": allowed
        }
    if isinstance(error, web.HTTPNotFound):
        return NotFound(f"there is no {request.path[:120]!r} here: see /openapi.json"), {}
    ours = known(error)
    if ours is None:
        log.error(
            "request %s: %s %s failed", request[REQUEST_ID], request.method, request.path, exc_info=error
        )
        ours = HmiError(INTERNAL_MESSAGE)
    return ours, {}


def _text_in_chunks(body: Any) -> str:
    return "".join(_ENCODER.iterencode(body))


def _json(text: bytes, status: int, headers: Mapping[str, str]) -> web.Response:
    return _bytes(text, status, headers, JSON)  # JSON is UTF-8: the media type has no charset (RFC 8259)


def _bytes(body: bytes, status: int, headers: Mapping[str, str], media: str) -> web.Response:
    return web.Response(body=body, status=status, headers={**headers, "Content-Type": media})
