"""Passes requests to other servers that share the bucket, and their answers back."""

from __future__ import annotations

import asyncio
import logging
import socket
import ssl
from collections.abc import AsyncIterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from hmi.api.access.auth import is_loopback
from hmi.api.body.body_stream import Inflow
from hmi.config import Settings
from hmi.errors import HmiError, Unavailable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, web
else:
    from hmi.api.lazy_import import web

log = logging.getLogger("hmi.api")
FORWARDED: Final = "X-HMI-Forwarded"
"""The header of a request that another node passed on. It is not passed on again."""
_CONNECT_S: Final = 5.0
_OF_CONNECTION: Final = frozenset(
    ("connection", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
"""Headers that concern one connection."""


class Forwarder:
    """Passes requests on, with their bodies as they come, and the answers back. Used on the event loop."""

    def __init__(self, settings: Settings) -> None:
        self._settings = settings
        self._session: ClientSession | None = None
        self._tls: ssl.SSLContext | None = None

    async def pass_on(self, request: web.Request, request_id: str, to: str) -> web.StreamResponse:
        """Let the primary at the URL `to` answer. Raises Unavailable if it cannot be reached, and as
        `Inflow`."""
        import aiohttp

        if FORWARDED in request.headers:
            raise Unavailable("the primary has just changed: try again in a few seconds")
        inflow = Inflow(request, self._settings.body_idle_s, lambda _: asyncio.sleep(0))
        unread: list[HmiError] = []
        body = _body(inflow, unread) if request.can_read_body else None
        try:
            async with await self.ask(request, request_id, body, to) as answer:
                return await passed_back(request, answer)
        except (aiohttp.ClientError, TimeoutError) as error:
            if unread:
                raise unread[0] from error
            raise Unavailable(
                f"the primary does not answer ({type(error).__name__}), and a replica manages nothing: try "
                "again; calls to infer are answered"
            ) from error

    async def ask(
        self,
        request: web.Request,
        request_id: str,
        body: bytes | AsyncIterator[bytes] | None,
        to: str,
        more: Mapping[str, str] = {},
    ) -> ClientResponse:
        """Send a request to the server at the URL `to`, and return its answer, of which the body is not read.

        more: further headers. The caller closes the answer. Raises aiohttp's ClientError, and TimeoutError.
        """
        headers = _kept(request.headers)
        headers[FORWARDED], headers["X-Request-Id"] = "1", request_id
        # Without a key, a server trusts programs on its machine. It must see whether the caller is one.
        headers["Host"] = request.host
        if not is_loopback(request.remote or ""):
            before = request.headers.getall("X-Forwarded-For", [])
            headers["X-Forwarded-For"] = ", ".join([*before, request.remote or "unknown"])
        headers.update(more)
        # A request's target may be a whole URL of the caller's choice: only its path and query count.
        url = URL(f"{URL(to).origin()}{request.rel_url.raw_path_qs}", encoded=True)
        return await self.client().request(
            request.method, url, headers=headers, data=body, allow_redirects=False
        )

    async def send(self, url: str, headers: Mapping[str, str], body: bytes) -> ClientResponse:
        """Send a call that did not come over HTTP to a URL of another server. Returns its answer.

        The answer's body has been read, so the call can be made again if the other server dies meanwhile.

        Raises aiohttp's ClientError, and TimeoutError.
        """
        answer = await self.client().post(
            url, headers={**headers, FORWARDED: "1"}, data=body, allow_redirects=False
        )
        await answer.read()
        return answer

    def renew(self) -> None:
        """Show this server's certificate as its files are now, on new connections. Logs if they are wrong."""
        try:
            if self._tls is not None:
                _show(self._tls, self._settings)
        except OSError as error:
            log.error("the certificate that other servers see could not be read again: %s", error)

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def client(self) -> ClientSession:
        """The client by which this server speaks to others."""
        import aiohttp

        if self._session is None:
            self._tls = _tls_of(self._settings)
            self._session = aiohttp.ClientSession(
                # aiohttp's limit would let one caller's slow calls hold up all others'. The listeners of both
                # servers limit connections.
                connector=aiohttp.TCPConnector(limit=0, socket_factory=_watched_socket, ssl=self._tls),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


def _tls_of(settings: Settings) -> ssl.SSLContext:
    """What TLS connections to other servers need: their authorities, and the certificate of this server."""
    context = ssl.create_default_context(cafile=settings.node_ca)
    _show(context, settings)
    return context


def _show(context: ssl.SSLContext, settings: Settings) -> None:
    """Let new connections show the certificate of this server, as its files are now. Raises OSError."""
    if settings.tls_cert is not None:
        context.load_cert_chain(settings.tls_cert, settings.tls_key)


def _watched_socket(address: tuple[Any, ...]) -> socket.socket:
    """A socket that notices within half a minute when the other machine has vanished. No call has a time
    limit, since an answer may take long."""
    family, kind, protocol, *_ = address
    made = socket.socket(family, kind, protocol)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1)
    for name, value in (("TCP_KEEPIDLE", 10), ("TCP_KEEPINTVL", 5), ("TCP_KEEPCNT", 4)):
        if option := getattr(socket, name, None):  # not every system has it
            made.setsockopt(socket.IPPROTO_TCP, option, value)
    return made


async def _body(inflow: Inflow, unread: list[HmiError]) -> AsyncIterator[bytes]:
    """Yield the body. Puts the error of a body that cannot be read into `unread`."""
    try:
        await inflow.begin()
        while chunk := await inflow.readany():
            yield chunk
    except HmiError as error:
        unread.append(error)
        raise


async def passed_back(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    """Answer a request with another server's answer, as it comes.

    Raises ConnectionResetError if that breaks off.
    """
    import aiohttp

    found = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_kept(answer.headers))
    await found.prepare(request)
    try:
        async for chunk in answer.content.iter_any():
            await found.write(chunk)
    except aiohttp.ClientError as error:
        # The client has the beginning of an answer. An error's answer would be read as a part of it.
        log.warning("another server broke off an answer (%s), so the client's connection is closed", error)
        if request.transport is not None:
            request.transport.abort()
        raise ConnectionResetError("the other server broke off its answer") from error
    await found.write_eof()
    return found


def _kept(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION)
