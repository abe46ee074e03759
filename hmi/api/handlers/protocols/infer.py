"""Serves the calls of any inference protocol: decode, answer, encode."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.route import Handler, Route
from hmi.api.in_thread import OFF_LOOP_BYTES, OFF_LOOP_VALUES, off_loop
from hmi.api.protocols.asks import AskResult
from hmi.api.protocols.base import Dialect, Endpoint
from hmi.api.protocols.writing import WritingEndpoint
from hmi.telemetry.tracing import span

ERRORS = ("not_found", "collected", "deadline_exceeded", "damaged")
"""The kinds of errors that inference adds to those of every route."""


def routes_of(dialect: Dialect) -> tuple[Route, ...]:
    """One route for each endpoint of `dialect`."""
    return tuple(
        replace(
            route_of(dialect, endpoint, _handler(endpoint)),
            raw_answer=endpoint.raw_answer,
            headers=endpoint.headers,
            inputs_field=endpoint.inputs_field,
            count_members=endpoint.count_members,
        )
        for endpoint in dialect.endpoints
    )


def route_of(dialect: Dialect, endpoint: Endpoint | WritingEndpoint, handler: Handler) -> Route:
    """The route of an endpoint. Its errors have the dialect's shape."""
    return Route(
        "POST",
        endpoint.path,
        handler,
        endpoint.summary,
        endpoint.answer,
        "infer",
        body=endpoint.body,
        raw=endpoint.raw,
        dialect=dialect,
        cancellable=True,
        kinds=ERRORS,
    )


def _handler(endpoint: Endpoint) -> Handler:
    """The handler of one endpoint. A large body is checked, and a large answer encoded, in a thread."""

    async def infer(call: RouteCall) -> Reply:
        where = call.where
        results = await call.services.inference.answer(
            endpoint.decode(call.body, where),
            call.caller,
            call.arrived,
            id=call.id,
            field=endpoint.inputs_field,
            large=call.size > OFF_LOOP_BYTES,
        )
        large = values_in(results) > OFF_LOOP_VALUES
        with span("encode"):
            return Reply(await off_loop(large, endpoint.encode, results, call.body, where), large=large)

    return infer


def values_in(results: Sequence[AskResult]) -> int:
    """About how many labels, tags, entities, words and numbers the answer has."""
    outputs = [output for result in results for output in result.outputs]
    sizes = (
        len(some or ()) for o in outputs for some in (o.scores, o.tags, o.entities, o.embedding, o.words)
    )
    return len(outputs) + sum(sizes)
