"""Serves the calls of any protocol that let models write: decode, write, encode whole or as a stream."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import aclosing
from dataclasses import replace
from typing import TYPE_CHECKING

from hmi.api.handlers.protocols.infer import route_of
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.events import HEARTBEAT_S, Events, stream
from hmi.api.http.route import Handler, Route
from hmi.api.protocols.base import EVENTS, Dialect
from hmi.api.protocols.writing import Codec, Event, WritingCall, WritingEndpoint

if TYPE_CHECKING:
    from aiohttp import web


def routes_of(dialect: Dialect, endpoints: Iterable[WritingEndpoint]) -> tuple[Route, ...]:
    """One route for each endpoint."""
    return tuple(
        replace(
            route_of(dialect, endpoint, handler_of(endpoint.codec, endpoint.media)), raw_answer=endpoint.media
        )
        for endpoint in endpoints
    )


def handler_of(codec_of: Callable[[WritingCall], Codec], media: str = EVENTS) -> Handler:
    """The handler of the calls that a codec decodes. media: that of a stream."""

    async def write(call: RouteCall) -> Reply | web.StreamResponse:
        codec = codec_of(WritingCall(call.body, call.where, call.id, call.arrived))
        async with call.services.inference.write(codec.wants, call.caller) as texts:
            if not codec.streams or call.request is None:
                return Reply(codec.whole(await texts.whole()))
            async with aclosing(codec.events(texts)) as events:
                return await _streamed(call.request, codec, events, media)

    return write


async def _streamed(
    request: web.Request, codec: Codec, events: AsyncIterator[Event], media: str
) -> web.StreamResponse:
    """Answer with events. What fails before the first one is an answer of its own status, if that is soon
    enough: a stream that sends nothing for long may be taken to be dead, so then it begins with a comment."""
    from hmi.api.http.dispatch import shape  # which loads the web server

    waiting = asyncio.ensure_future(anext(events, None))

    async def send(sink: Events) -> None:
        nonlocal waiting
        if not waiting.done():
            await sink.alive()
        while (event := await _kept_open(waiting, sink)) is not None:
            await sink.send(event.name, event.data)
            waiting = asyncio.ensure_future(anext(events, None))

    try:
        if (await asyncio.wait({waiting}, timeout=HEARTBEAT_S))[0]:
            waiting.result()  # which raises
        return await stream(
            request, send, lambda error: shape(request, error)[0], error_event=codec.error_event, media=media
        )
    finally:
        waiting.cancel()
        await asyncio.wait({waiting})  # else `events` is still running when it is closed


async def _kept_open(waiting: asyncio.Future[Event | None], sink: Events) -> Event | None:
    """The next event, None after the last. Comments keep the connection open while it is waited for."""
    while not (await asyncio.wait({waiting}, timeout=HEARTBEAT_S))[0]:
        await sink.alive()
    return waiting.result()
