"""Idempotency-Key: a POST that is sent twice is executed once, and the second gets the answer of the
first."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from hmi.api.access.caller import Caller
from hmi.api.http.route import Reply, Route
from hmi.api.http.services import KeyLock, Services
from hmi.errors import InvalidInput

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
SCOPE = "http"
"""The registry's name for the answers that this module stores."""
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class KeyedRequest:
    """A request with an Idempotency-Key."""

    name: str
    """A hash of the Idempotency-Key, the caller, the method and the path."""
    digest: str
    """`Received.digest` of the body."""

    async def kept(self, services: Services) -> dict[str, Any] | None:
        """What the first request stored; None if this is the first.

        Raises InvalidInput if the first request had another body.
        """
        kept: dict[str, Any] | None = await asyncio.to_thread(
            services.manager.registry.remember, self.name, SCOPE
        )
        if kept is not None and kept["digest"] != self.digest:
            raise InvalidInput(
                f"this {HEADER} was used for a request with another body: use a new {HEADER}", field=HEADER
            )
        return kept

    async def keep(self, services: Services, reply: Reply, body: Any) -> None:
        """Store the answer: `body`, or `reply.keep` instead if it is given."""
        kept = {
            "digest": self.digest,
            "location": reply.location,
            "body": None if reply.keep is not None else body,
            "keep": reply.keep,
        }
        await asyncio.to_thread(services.manager.registry.store, self.name, SCOPE, kept)


def keyed_request(route: Route, request: web.Request, caller: Caller, digest: str) -> KeyedRequest | None:
    """The request if it has an Idempotency-Key that the route honours, else None.

    Raises InvalidInput for a malformed Idempotency-Key.
    """
    header = request.headers.get(HEADER)
    if header is None or not route.creates:
        return None
    if not _KEY.fullmatch(header):
        raise InvalidInput(f"{HEADER} must be 1 to 255 visible ASCII characters", field=HEADER)
    where = f"{caller.key_id}:{caller.tenant}:{route.method}:{request.path}"
    return KeyedRequest(hashlib.sha256(f"{where} {header}".encode()).hexdigest(), digest)


@asynccontextmanager
async def exclusively(keyed: KeyedRequest, services: Services) -> AsyncIterator[None]:
    """Lock the request's name: of two equal requests at once, the second waits for the first."""
    held = services.same_key.setdefault(keyed.name, KeyLock())
    held.users += 1
    try:
        async with held.lock:
            yield
    finally:
        held.users -= 1
        if held.users == 0:
            del services.same_key[keyed.name]
