"""One client's connection: aiohttp's protocol, which reports to the door and answers errors in the native
shape."""

from __future__ import annotations

import asyncio
import logging
import time
import uuid
from typing import Any, Protocol, cast

from aiohttp import web

from hmi.api.protocols.base import Failure
from hmi.api.protocols.errors import INTERNAL, Malformed, headers_of, status_of
from hmi.api.protocols.native import NATIVE
from hmi.config import Settings
from hmi.errors import HmiError

log = logging.getLogger("hmi.api")
READ_BYTES = 1 << 14
"""aiohttp's `read_bufsize`. A connection stops reading when twice this many bytes wait, or a sixteenth as
many chunks."""
REST_PAUSE_S = 0.02
"""The pause after each discarded piece of an unwanted body, times the connections that discard one."""
REST_S = 5.0
"""The rest of an unwanted body is discarded for at most this long, before the connection is closed."""


class ConnectionOwner(Protocol):
    """The interface to which a connection reports changes of its state. `Listener` implements it."""

    resting: int
    """Number of connections that discard the rest of an unwanted body."""

    def arrived(self, connection: Connection) -> None:
        """`connection` is open and has sent nothing yet."""
        ...

    def busy(self, connection: Connection) -> None:
        """`connection` has sent the whole head of a request."""
        ...

    def answered(self, connection: Connection) -> None:
        """The request of `connection` is answered, or answering it failed."""
        ...

    def left(self, connection: Connection) -> None:
        """`connection` is closed."""
        ...


def handler_settings(settings: Settings) -> dict[str, Any]:
    """aiohttp's settings of a connection. `hmi.api.body.expand` decompresses bodies instead, off the event
    loop."""
    return {
        "auto_decompress": False,
        "keepalive_timeout": float(settings.idle_s),
        "lingering_time": REST_S,
        "read_bufsize": READ_BYTES,
    }


class Connection(web.RequestHandler):
    """A connection that reports each change of its state to its owner.

    A guest is a connection beyond the limit: it is closed after its first answer.
    """

    __slots__ = ("address", "connecting", "guest", "loop_s", "owner", "since", "unsent", "wire")

    def __init__(
        self, server: web.Server, owner: ConnectionOwner, address: str, guest: bool, **settings: Any
    ) -> None:
        # 0 turns off aiohttp's reading of the rest of a body: _discard does that instead.
        settings = {**settings, "lingering_time": 0.0}
        super().__init__(
            server, loop=asyncio.get_running_loop(), access_log=cast(logging.Logger, None), **settings
        )
        self.owner, self.address, self.guest = owner, address, guest
        self.since = 0.0
        """The loop's time at which it arrived or was last answered."""
        self.loop_s = 0.0
        """CPU seconds that the event loop spent on the received bytes since the last `take_loop_time`."""
        self.unsent = (0, 0.0)
        """Bytes of answers that the client has not read, and the loop's time since when that number is
        the same."""
        self.wire: asyncio.Transport | None = None
        self.connecting: asyncio.Task[None] | None = None
        """The task that connects it, and shakes hands if it uses TLS; None once that is done."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.wire = cast(asyncio.Transport, transport)
        self.owner.arrived(self)
        super().connection_made(transport)

    def connection_lost(self, error: BaseException | None) -> None:
        self.owner.left(self)
        super().connection_lost(error)

    def data_received(self, data: bytes) -> None:
        began = time.thread_time()
        super().data_received(data)
        self.loop_s += time.thread_time() - began

    def abort(self) -> None:
        """Close at once. What the client has not read yet is lost."""
        self.force_close()
        if self.wire is not None:
            self.wire.abort()
        elif self.connecting is not None:
            self.connecting.cancel()

    @property
    def encrypted(self) -> bool:
        """True if the connection uses TLS."""
        return self.wire is not None and self.wire.get_extra_info("ssl_object") is not None

    def unsent_bytes(self) -> int:
        """Bytes of answers that this process still holds for the client."""
        if self.wire is None:
            return 0
        # Under TLS there are two buffers: what is not encrypted yet, and what is not sent yet.
        under = getattr(getattr(self.wire, "_ssl_protocol", None), "_transport", None)
        beneath = under.get_write_buffer_size() if under is not None else 0
        return self.wire.get_write_buffer_size() + beneath

    async def finish_response(
        self, request: web.BaseRequest, resp: web.StreamResponse, start_time: float | None
    ) -> tuple[web.StreamResponse, bool]:
        if self.guest:
            resp.force_close()
        try:
            finished = await super().finish_response(request, resp, start_time)
        finally:
            self.owner.answered(self)
            _forget(request, resp)
        if not request.content.is_eof():
            self.owner.resting += 1
            try:
                await _discard(request, self.owner)
            finally:
                self.owner.resting -= 1
        return finished

    def handle_error(
        self,
        request: web.BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        """The answer to bytes that are no HTTP request (400), or after an error outside the handlers
        (500)."""
        request_id = uuid.uuid4().hex
        if status < 500:
            reason = " ".join((message or "it cannot be read").split())[:200]
            error: HmiError = Malformed(f"this is not a well-formed HTTP request: {reason}")
        else:
            log.error("request %s: answering failed", request_id, exc_info=exc)
            error = HmiError(INTERNAL)
        if request.writer.output_size > 0:
            raise ConnectionError("an answer is under way: no second one can be sent")
        answered = status_of(error.kind, NATIVE)
        response = web.json_response(
            NATIVE.encode_error(Failure(error.kind, error.message, error.details, request_id)),
            status=answered,
            headers={**headers_of(answered), "X-Request-Id": request_id},
        )
        response.force_close()
        return response


def began(request: web.BaseRequest) -> None:
    """Note that the whole head of a request has arrived. The loop's time before does not count for its
    body."""
    if isinstance(request.protocol, Connection):
        request.protocol.loop_s = 0.0
        request.protocol.owner.busy(request.protocol)


def take_loop_time(request: web.BaseRequest) -> float:
    """CPU seconds that the event loop spent on the connection's bytes since the last call."""
    if not isinstance(request.protocol, Connection):
        return 0.0
    spent, request.protocol.loop_s = request.protocol.loop_s, 0.0
    return spent


def is_guest(request: web.BaseRequest) -> bool:
    """Return whether the request came over a connection beyond the limit."""
    return isinstance(request.protocol, Connection) and request.protocol.guest


def _forget(request: web.BaseRequest, answer: web.StreamResponse) -> None:
    """Free what was only needed to answer.

    aiohttp keeps both until the connection's next request, or until it is closed after `idle_s`: a thousand
    idle connections would hold a thousand answers, of up to megabytes.
    """
    request.clear()
    if isinstance(answer, web.Response):
        answer.body = None


async def _discard(request: web.BaseRequest, owner: ConnectionOwner) -> None:
    """Read and discard the rest of a body after an answer that did not need it, for at most REST_S.

    Closing at once could lose the answer, since the client still sends. Reading at full speed would let
    unwanted bodies keep the event loop busy, so all such connections share the speed of one.
    """
    loop = asyncio.get_running_loop()
    end = loop.time() + REST_S
    rest = request.content
    while not rest.is_eof() and loop.time() < end:
        try:
            async with asyncio.timeout_at(end):
                await rest.readany()
        except Exception:  # the body cannot be read further, so there is nothing to discard
            return
        await asyncio.sleep(min(REST_PAUSE_S * owner.resting, max(0.0, end - loop.time())))
