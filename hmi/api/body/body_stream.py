"""Reads a request's body at the pace of its handler, and refuses a body that arrives too slowly."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING

from hmi.api.protocols.errors import Malformed
from hmi.errors import HmiError

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web

LEAST_RATE = 1024
"""Bytes a second that a client must send on average, after the first `idle_s` seconds of waiting for it."""
MAX_LINES = 512
"""Most lines of a multipart body outside its parts: headers and boundaries."""
MAX_LINE_BYTES = 8190
"""Longest of these lines."""


class Inflow:
    """The stream of a request's body. aiohttp's multipart reader can read from it as from aiohttp's own
    stream.

    A body may take any time to arrive, as long as no pause exceeds `idle_s` and the rate averages
    LEAST_RATE. Only time spent waiting for the client counts. Before each read, `rest(seconds)` is
    awaited with the time that the event loop spent on the bytes since the last one; it may pause. A body
    that is too slow, or cannot be read, raises Malformed.
    """

    def __init__(self, request: web.Request, idle_s: float, rest: Callable[[float], Awaitable[None]]) -> None:
        self._request, self._content, self._idle_s, self._rest = request, request.content, idle_s, rest
        self.headers = request.headers
        self._waited = 0.0
        self._lines = 0
        self._held, self._at = b"", 0

    async def begin(self) -> None:
        """Answer `Expect: 100-continue`: the client may send its body now."""
        if (
            self._request.version >= (1, 1)
            and self._request.headers.get("Expect", "").lower() == "100-continue"
        ):
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._request.writer.output_size = 0  # these bytes are no part of the answer

    async def readany(self) -> bytes:
        """The bytes that have arrived, at least one; b"" at the end."""
        held, self._held, self._at = self._held[self._at :], b"", 0
        return held or await self._next()

    async def read(self, size: int) -> bytes:
        """At most `size` bytes, at least one; b"" at the end."""
        if self._at == len(self._held):
            self._held, self._at = await self._next(), 0
        chunk = self._held[self._at : self._at + size]
        self._at += len(chunk)
        return chunk

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """The next line with its line break, or the rest of the body. Raises Malformed over the limits on
        lines."""
        self._lines += 1
        if self._lines > MAX_LINES:
            raise Malformed(
                f"the multipart body has more than {MAX_LINES} lines outside its parts: send fewer headers"
            )
        line = b""
        while not line.endswith(b"\n"):
            if self._at == len(self._held):
                self._held, self._at = await self._next(), 0
                if not self._held:
                    break
            end = self._held.find(b"\n", self._at) + 1 or len(self._held)
            line += self._held[self._at : end]
            self._at = end
            if len(line) > MAX_LINE_BYTES:
                raise Malformed(
                    f"the multipart body has a line of over {MAX_LINE_BYTES} bytes outside its parts"
                )
        return line

    def at_eof(self) -> bool:
        return self._at == len(self._held) and self._content.at_eof()

    def unread_data(self, data: bytes) -> None:
        self._held, self._at = data + self._held[self._at :], 0

    async def _next(self) -> bytes:
        """All bytes that have arrived. aiohttp's read(n) is not used: it would read a body of one-byte
        chunks to its end without a pause."""
        from hmi.api.edge.connection import take_loop_time  # which loads the web server

        await self._rest(take_loop_time(self._request))
        if self._content.at_eof():
            return b""
        loop = asyncio.get_running_loop()
        began = loop.time()
        left = self._idle_s + self._content.total_bytes / LEAST_RATE - self._waited
        try:
            # Most bodies have arrived with their heads, and need no timer.
            if at_hand := self._content.read_nowait():
                return at_hand
            async with asyncio.timeout(max(0.0, min(self._idle_s, left))):
                return await self._content.readany()
        except HmiError:  # set on the stream by the server, such as `Unfinished` when it stops
            raise
        except TimeoutError as error:
            raise Malformed(
                f"the body arrives too slowly: send it without a pause of {self._idle_s:g} seconds and at no "
                f"less than {LEAST_RATE} bytes a second"
            ) from error
        except web.RequestPayloadError as error:
            raise Malformed("the body cannot be read: check its Transfer-Encoding") from error
        finally:
            self._waited += loop.time() - began
