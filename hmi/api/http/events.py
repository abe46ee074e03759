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


HEARTBEAT_S = 15.0
"""A stream that has sent nothing for this long sends a comment."""
HEADERS = {"Content-Type": "text/event-stream", "Cache-Control": "no-store", "X-Accel-Buffering": "no"}


class Events:
    """An open stream of server-sent events."""

    def __init__(self, response: web.StreamResponse) -> None:
        self._response = response

    async def send(self, event: str, data: str) -> None:
        """Send an event. `data` is JSON without line breaks."""
        await self._response.write(f"event: {event}\ndata: {data}\n\n".encode())

    async def alive(self) -> None:
        """Send a comment, which keeps the connection open."""
        await self._response.write(b": still here\n\n")


async def stream(
    request: web.Request,
    body: Callable[[Events], Awaitable[None]],
    shaped: Callable[[Exception], dict[str, object]],
) -> web.StreamResponse:
    """Answer with the events that `body` sends.

    An error ends the stream with `event: error` and `shaped(error)` as its data: the status and the
    headers are sent already, so a client would read a second answer as a part of the first.
    """
    response = web.StreamResponse(headers=HEADERS)
    await response.prepare(request)
    events = Events(response)
    try:
        await body(events)
    except (asyncio.CancelledError, ConnectionError):
        raise  # the client has disconnected
    except Exception as error:  # the edge of the process: every error becomes an event
        await events.send("error", json.dumps(shaped(error), ensure_ascii=False))
    await response.write_eof()
    return response
