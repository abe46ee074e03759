"""A request's body as it comes: not faster than it is read, not slower than is honest."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable

from aiohttp import web

from hmi.api.errors import Malformed

LEAST_RATE = 1024
"""Bytes a second that a client must send on the average, counted after the first `idle_s` seconds of waiting for it."""
MOST_LINES = 4096
"""Of a multipart body outside of its parts: headers and boundaries. Each is read on the event loop."""


class Inflow:
    """The stream of a request's body; a multipart reader reads from it as from aiohttp's own.

    A body may take as long as it likes while bytes come: no pause of more than `idle_s`, and LEAST_RATE on the average.
    Only waiting for the client counts, not what the server does meanwhile. Reads raise Malformed.
    """

    def __init__(self, request: web.Request, idle_s: float) -> None:
        self._request, self._content, self._idle_s = request, request.content, idle_s
        self._waited = 0.0
        self._lines = 0

    async def begin(self) -> None:
        """Tell a client that asked whether to send its body to do so."""
        if self._request.version >= (1, 1) and self._request.headers.get("Expect", "").lower() == "100-continue":
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._request.writer.output_size = 0  # no part of the answer yet

    async def readany(self) -> bytes:
        """What is there, b"" at the end."""
        return await self._in_time(self._content.readany())

    async def read(self, size: int) -> bytes:
        return await self._in_time(self._content.read(size))

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        self._lines += 1
        if self._lines > MOST_LINES:
            raise Malformed(f"the multipart body has more than {MOST_LINES} lines outside of its parts")
        return await self._in_time(self._content.readline(max_line_length=max_line_length))

    def at_eof(self) -> bool:
        return self._content.at_eof()

    def unread_data(self, data: bytes) -> None:
        self._content.unread_data(data)

    async def _in_time(self, read: Awaitable[bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        left = self._idle_s + self._content.total_bytes / LEAST_RATE - self._waited
        try:
            async with asyncio.timeout(max(0.0, min(self._idle_s, left))):
                return await read
        except TimeoutError as error:
            raise Malformed(
                f"the body does not come: send it whole, without a pause of {self._idle_s:g} seconds and at no less "
                f"than {LEAST_RATE} bytes a second"
            ) from error
        except web.RequestPayloadError as error:
            raise Malformed("the body cannot be read: check its Transfer-Encoding") from error
        finally:
            self._waited += loop.time() - began
