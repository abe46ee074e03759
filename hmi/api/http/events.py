"""Server-sent events. The status is sent before the stream, so a later error becomes an event of the
stream."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


UNREAD_S = 60.0
"""A client that reads nothing for this long, while there is something to send, is taken to be gone."""
HEARTBEAT_S = 15.0
"""A stream that has sent nothing for this long sends a comment."""
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Events:
    """An open stream of server-sent events."""

    def __init__(self, request: web.Request, response: web.StreamResponse) -> None:
        self._request, self._response = request, response

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
        name = "" if event is None else f"event: {event}\n"
        await self._write(f"{name}data: {data}\n\n".encode())

    async def alive(self) -> None:
        """Send a comment, which keeps the connection open."""
        await self._write(b": still here\n\n")


async def stream(
    request: web.Request,
    body: Callable[[Events], Awaitable[None]],
    shaped: Callable[[Exception], dict[str, object]],
    *,
    error_event: str | None = "error",
) -> web.StreamResponse:
    """Answer with the events that `body` sends.

    An error ends the stream with an event named `error_event` and `shaped(error)` as its data: the status
    and the headers are sent already, so a client would read a second answer as a part of the first.
    """
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    events = Events(request, response)
    try:
        await body(events)
    except (asyncio.CancelledError, ConnectionError):
        raise  # the client has disconnected
    except Exception as error:  # the edge of the process: every error becomes an event
        await events.send(error_event, json.dumps(shaped(error), ensure_ascii=False))
    await response.write_eof()
    return response
