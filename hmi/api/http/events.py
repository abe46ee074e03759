"""Streams: server-sent events, or lines of JSON. The status is sent before, so a later error becomes a piece
of the stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hmi.api.protocols.base import EVENTS, LINES

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


UNREAD_S = 60.0
"""A client that reads nothing for this long, while there is something to send, is taken to be gone."""
HEARTBEAT_S = 15.0
"""A stream that has sent nothing for this long sends a comment."""
HEADERS = {"Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Events:
    """An open stream of server-sent events, or of lines, which have no names."""

    def __init__(self, request: web.Request, response: web.StreamResponse, media: str) -> None:
        self._request, self._response, self._lines = request, response, media == LINES

    async def _write(self, sent: bytes) -> None:
        """Send bytes. Raises ConnectionError if the client has gone, or does not read."""
        try:
            async with asyncio.timeout(UNREAD_S):
                await self._response.write(sent)
        except TimeoutError as error:
            if self._request.transport is not None:
                self._request.transport.abort()  # closing it would wait for what is not read
            raise ConnectionResetError("the client does not read") from error

    async def send(self, event: str | None, data: str) -> None:
        """Send an event, or one without a name. `data` is text without line breaks."""
        if self._lines:
            await self._write(f"{data}\n".encode())
            return
        name = "" if event is None else f"event: {event}\n"
        await self._write(f"{name}data: {data}\n\n".encode())

    async def alive(self) -> None:
        """Send what keeps the connection open: a comment, or a space before the next line's JSON."""
        await self._write(b" " if self._lines else b": still here\n\n")


async def stream(
    request: web.Request,
    body: Callable[[Events], Awaitable[None]],
    shaped: Callable[[Exception], dict[str, object]],
    *,
    error_event: str | None = "error",
    media: str = EVENTS,
) -> web.StreamResponse:
    """Answer with the events that `body` sends.

    An error ends the stream with an event named `error_event` and `shaped(error)` as its data: the status
    and the headers are sent already, so a client would read a second answer as a part of the first.
    """
    response = web.StreamResponse(headers={"Content-Type": media, **HEADERS})
    await response.prepare(request)
    events = Events(request, response, media)
    try:
        await body(events)
    except (asyncio.CancelledError, ConnectionError):
        raise  # the client has disconnected
    except Exception as error:  # the edge of the process: every error becomes an event
        await events.send(error_event, json.dumps(shaped(error), ensure_ascii=False))
    await response.write_eof()
    return response
