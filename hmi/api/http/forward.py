"""Passes a request to the primary: a replica answers no call that manages."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from multidict import CIMultiDict, CIMultiDictProxy
from yarl import URL

from hmi.api.body.body_stream import Inflow
from hmi.errors import Unavailable

if TYPE_CHECKING:
    from aiohttp import ClientResponse, ClientSession, web
else:
    from hmi.api.lazy_import import web

FORWARDED: Final = "X-HMI-Forwarded"
"""The header of a request that another node passed on. It is not passed on again."""
_CONNECT_S: Final = 5.0
_OF_CONNECTION: Final = frozenset(
    ("connection", "expect", "host", "keep-alive", "te", "trailer", "transfer-encoding", "upgrade")
)
"""Headers that concern one connection."""


class Forwarder:
    """Passes requests on, with their bodies as they come, and the answers back. Used on the event loop."""

    def __init__(self, idle_s: float) -> None:
        """idle_s: a body that pauses for longer is refused."""
        self._idle_s = idle_s
        self._session: ClientSession | None = None

    async def pass_on(self, request: web.Request, request_id: str, to: str) -> web.StreamResponse:
        """Let the node at the URL `to` answer. Raises Unavailable if it cannot be reached."""
        import aiohttp

        if FORWARDED in request.headers:
            raise Unavailable("the primary has just changed: try again in a few seconds")
        headers = _kept(request.headers)
        headers[FORWARDED], headers["X-Request-Id"] = "1", request_id
        inflow = Inflow(request, self._idle_s, lambda _: asyncio.sleep(0))
        url = URL(to).join(URL(request.raw_path, encoded=True))
        try:
            async with self._client().request(
                request.method,
                url,
                headers=headers,
                data=_body(inflow) if request.can_read_body else None,
                allow_redirects=False,
            ) as answer:
                return await _passed_back(request, answer)
        except (aiohttp.ClientConnectionError, TimeoutError) as error:
            raise Unavailable(
                f"the primary does not answer ({type(error).__name__}), and a replica manages nothing: try "
                "again; calls to infer are answered"
            ) from error

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()

    def _client(self) -> ClientSession:
        import aiohttp

        if self._session is None:
            self._session = aiohttp.ClientSession(
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept", "Accept-Encoding", "Content-Type"),
                timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_S),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        return self._session


async def _body(inflow: Inflow) -> AsyncIterator[bytes]:
    await inflow.begin()
    while chunk := await inflow.readany():
        yield chunk


async def _passed_back(request: web.Request, answer: ClientResponse) -> web.StreamResponse:
    found = web.StreamResponse(status=answer.status, reason=answer.reason, headers=_kept(answer.headers))
    await found.prepare(request)
    async for chunk in answer.content.iter_any():
        await found.write(chunk)
    await found.write_eof()
    return found


def _kept(headers: CIMultiDictProxy[str]) -> CIMultiDict[str]:
    return CIMultiDict((name, value) for name, value in headers.items() if name.lower() not in _OF_CONNECTION)
