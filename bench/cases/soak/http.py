"""Calls to the server of a soak."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

LOST = (aiohttp.ClientError, OSError, TimeoutError)
"""The errors of a call that got no whole answer."""
TIMEOUT_S = 120.0


class NotOk(Exception):
    """An answer that is no success: its status and its kind."""


@dataclass(frozen=True)
class Http:
    """The server of a soak."""

    session: aiohttp.ClientSession
    port: int

    async def json(self, method: str, path: str, body: Any = None, key: str | None = None) -> Any:
        """Send a request and return the answer's JSON. Raises NotOk, and one of LOST."""
        headers = {} if key is None else {"Authorization": f"Bearer {key}"}
        async with self.session.request(method, path, json=body, headers=headers) as answer:
            return await _checked(answer)

    async def form(self, path: str, form: aiohttp.FormData) -> Any:
        """Send a multipart body and return the answer's JSON. Raises NotOk, and one of LOST."""
        async with self.session.post(path, data=form) as answer:
            return await _checked(answer)


async def _checked(answer: aiohttp.ClientResponse) -> Any:
    got = await answer.json(content_type=None)
    if answer.status >= 400:
        raise NotOk(f"{answer.status} {got['error']['kind']}")
    return got


@asynccontextmanager
async def connected(port: int) -> AsyncIterator[Http]:
    """Connect to the server on `port` of loopback."""
    limits = aiohttp.TCPConnector(limit=0)
    timeout = aiohttp.ClientTimeout(TIMEOUT_S)
    async with aiohttp.ClientSession(
        f"http://127.0.0.1:{port}", connector=limits, timeout=timeout
    ) as session:
        yield Http(session, port)
