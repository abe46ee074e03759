"""One client's connection: aiohttp's protocol, with errors in the native shape, registered with the door."""

from __future__ import annotations

import asyncio
import logging
import resource
import time
import uuid
from typing import Any, Protocol, cast

from aiohttp import web

from hmi.api.errors import INTERNAL, Malformed, headers_of, status_of
from hmi.api.protocols.base import Failure
from hmi.api.protocols.native import NATIVE
from hmi.config import Settings
from hmi.errors import HmiError, InvalidInput

log = logging.getLogger("hmi.api")
READ_BYTES = 1 << 14
"""A connection that has twice this waiting, or a sixteenth as many chunks, stops reading."""
MOST_CONNECTIONS = 4096
LEAST_CONNECTIONS = 16
KEPT_FILES = 64
"""Descriptors that are never lent to connections."""
REST_PAUSE_S, REST_S = 0.02, 5.0
"""For the rest of a refused body: the pause after each discarded piece, and how long to discard before
closing."""


class Books(Protocol):
    """What a connection tells the door."""

    resting: int
    """Connections that read what is left of an unwanted body."""

    def arrived(self, connection: Connection) -> None: ...
    def busy(self, connection: Connection) -> None: ...
    def answered(self, connection: Connection) -> None: ...
    def left(self, connection: Connection) -> None: ...


def handler_settings(settings: Settings) -> dict[str, Any]:
    """aiohttp's own settings of a connection. Bodies are expanded by `hmi.api.expand`, off the event loop."""
    return {
        "auto_decompress": False,
        "keepalive_timeout": float(settings.idle_s),
        "lingering_time": REST_S,
        "read_bufsize": READ_BYTES,
    }


def most_connections(settings: Settings) -> int:
    """The limit on connections. Raises InvalidInput if it exceeds the files that the process may open."""
    files, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if not settings.max_connections:
        return min(max(files // 2, LEAST_CONNECTIONS), MOST_CONNECTIONS)
    if settings.max_connections > files - KEPT_FILES:
        raise InvalidInput(
            f"max_connections = {settings.max_connections} needs more than the {files} files that this "
            "process may "
            f"open: raise the limit (ulimit -n), or give at most {files - KEPT_FILES}",
            field="max_connections",
        )
    return settings.max_connections


class Connection(web.RequestHandler):
    """Known to the door from its first byte to its last. A guest is one too many: it gets an answer and is
    closed."""

    __slots__ = ("address", "books", "guest", "since", "toil_s", "unsent", "wire")

    def __init__(self, server: web.Server, books: Books, address: str, guest: bool, **settings: Any) -> None:
        # What is left of a body after its answer, _throw_away reads.
        settings = {**settings, "lingering_time": 0.0}
        super().__init__(
            server, loop=asyncio.get_running_loop(), access_log=cast(logging.Logger, None), **settings
        )
        self.books, self.address, self.guest = books, address, guest
        self.since = 0.0
        """When it arrived, or was last answered, on the loop's clock."""
        self.toil_s = 0.0
        """Time that the event loop has spent on what it sent, since that was last asked."""
        self.unsent = (0, 0.0)
        """Bytes of answers that the client has not read, and since when there are so many."""
        self.wire: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)
        self.books.arrived(self)
        super().connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self.books.left(self)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        began = time.thread_time()
        super().data_received(data)
        self.toil_s += time.thread_time() - began

    def abort(self) -> None:
        """Close at once, whatever the client has not read yet."""
        self.force_close()
        if self.wire is not None:
            self.wire.abort()

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self.guest:
            resp.force_close()
        try:
            finished = await super().finish_response(request, resp, start_time)
        finally:
            self.books.answered(self)
        if not request.content.is_eof():
            self.books.resting += 1
            try:
                await _throw_away(request, self.books)
            finally:
                self.books.resting -= 1
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to what is no request (400), or where answering failed."""
        request_id = uuid.uuid4().hex
        if status < 500:
            said = " ".join((message or "it cannot be read").split())[:200]
            error: HmiError = Malformed(f"this is not a well-formed HTTP request: {said}")
        else:
            log.error("request %s: answering failed", request_id, exc_info=exc)
            error = HmiError(INTERNAL)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way: no second one can be sent")
        answered = status_of(error)
        response = web.json_response(
            NATIVE.encode_error(Failure(error.kind, error.message, error.details, request_id)),
            status=answered,
            headers={**headers_of(answered), "X-Request-Id": request_id},
        )
        response.force_close()
        return response


def began(request: web.BaseRequest) -> None:
    """A whole head has come. What the requests before it took is not for its body to rest from."""
    if isinstance(request.protocol, Connection):
        request.protocol.toil_s = 0.0
        request.protocol.books.busy(request.protocol)


def toil_of(request: web.BaseRequest) -> float:
    """Seconds of the event loop that the connection's bytes took since this was last asked."""
    if not isinstance(request.protocol, Connection):
        return 0.0
    toil, request.protocol.toil_s = request.protocol.toil_s, 0.0
    return toil


def is_guest(request: web.BaseRequest) -> bool:
    return isinstance(request.protocol, Connection) and request.protocol.guest


async def _throw_away(request: web.BaseRequest, books: Books) -> None:
    """Read on slowly after an answer that did not need the whole body, so that the client comes to read the
    answer.

    Closed at once, it could lose it; at full speed, unwanted bodies would keep the event loop busy. So all
    that there are share the speed of one.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + REST_S
    rest = request.content
    while not rest.is_eof() and loop.time() < end:
        try:
            async with asyncio.timeout_at(end):
                await rest.readany()
        except Exception:  # whatever ends the body ends this
            return
        await asyncio.sleep(min(REST_PAUSE_S * books.resting, max(0.0, end - loop.time())))
