"""Reading a request's body: no faster than the handler reads it, and with a least rate for the client."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

from aiohttp import web

from hmi.api.connection import toil_of
from hmi.api.errors import Malformed
from hmi.errors import HmiError

LEAST_RATE = 1024
"""Bytes a second that a client must send on the average, counted after the first `idle_s` seconds of waiting
for it."""
MOST_LINES, MOST_LINE_BYTES = 512, 8190
"""Limits on a multipart body's lines outside of its parts: headers and boundaries."""


class Inflow:
    """The stream of a request's body; a multipart reader reads from it as from aiohttp's own.

    A body may take as long as it likes while bytes come: no pause of more than `idle_s`, and LEAST_RATE on
    the average. Only waiting for the client counts, not what the server does meanwhile, nor its rests: `rest`
    is told before each read how many seconds of the event loop the last one took. Reads raise Malformed.
    """

    def __init__(self, request: web.Request, idle_s: float, rest: Callable[[float], Awaitable[None]]) -> None:
        self._request, self._content, self._idle_s, self._rest = request, request.content, idle_s, rest
        self.headers = request.headers
        self._waited = 0.0
        self._lines = 0
        self._held, self._at = b"", 0

    async def begin(self) -> None:
        """Tell a client that asked whether to send its body to do so."""
        if (
            self._request.version >= (1, 1)
            and self._request.headers.get("Expect", "").lower() == "100-continue"
        ):
            await self._request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
            self._request.writer.output_size = 0  # no part of the answer yet

    async def readany(self) -> bytes:
        """The bytes that have arrived; b"" at the end."""
        held, self._held, self._at = self._held[self._at :], b"", 0
        return held or await self._next()

    async def read(self, size: int) -> bytes:
        """At most `size` bytes, b"" at the end."""
        if self._at == len(self._held):
            self._held, self._at = await self._next(), 0
        chunk = self._held[self._at : self._at + size]
        self._at += len(chunk)
        return chunk

    async def readline(self, *, max_line_length: int | None = None) -> bytes:
        """A line with its end, or what is left. Raises Malformed for too long a line, or too many."""
        self._lines += 1
        if self._lines > MOST_LINES:
            raise Malformed(f"the multipart body has more than {MOST_LINES} lines outside of its parts")
        line = b""
        while not line.endswith(b"\n"):
            if self._at == len(self._held):
                self._held, self._at = await self._next(), 0
                if not self._held:
                    break
            end = self._held.find(b"\n", self._at) + 1 or len(self._held)
            line += self._held[self._at : end]
            self._at = end
            if len(line) > MOST_LINE_BYTES:
                raise Malformed(
                    f"the multipart body has a line of over {MOST_LINE_BYTES} bytes outside of its parts"
                )
        return line

    def at_eof(self) -> bool:
        return self._at == len(self._held) and self._content.at_eof()

    def unread_data(self, data: bytes) -> None:
        self._held, self._at = data + self._held[self._at :], 0

    async def _next(self) -> bytes:
        """All bytes that have arrived. Not aiohttp's read(n), which takes a body of one-byte chunks in one
        long go."""
        await self._rest(toil_of(self._request))
        return await self._in_time(self._content.readany())

    async def _in_time(self, read: Awaitable[bytes]) -> bytes:
        loop = asyncio.get_running_loop()
        began = loop.time()
        left = self._idle_s + self._content.total_bytes / LEAST_RATE - self._waited
        try:
            async with asyncio.timeout(max(0.0, min(self._idle_s, left))):
                return await read
        except HmiError:  # whoever stops the reading says why
            raise
        except TimeoutError as error:
            raise Malformed(
                f"the body arrives too slowly: send it without a pause of {self._idle_s:g} seconds "
                "and at no less "
                f"than {LEAST_RATE} bytes a second"
            ) from error
        except web.RequestPayloadError as error:
            raise Malformed("the body cannot be read: check its Transfer-Encoding") from error
        finally:
            self._waited += loop.time() - began
