"""Idempotency-Key: a POST that is sent twice is executed once; the second gets the answer of the first."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from aiohttp import web

from hmi.api.caller import Caller
from hmi.api.route import Reply, Route
from hmi.api.services import KeyLock, Services
from hmi.errors import InvalidInput

HEADER = "Idempotency-Key"
REPLAYED = "Idempotency-Replayed"
SCOPE = "http"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class Once:
    """One Idempotency-Key on one route, by one caller; `digest` is of the request's body."""

    name: str
    digest: str

    async def kept(self, services: Services) -> dict[str, Any] | None:
        """The stored answer of the first request. Raises InvalidInput if that request was a different one."""
        kept: dict[str, Any] | None = await asyncio.to_thread(
            services.manager.registry.remember, self.name, SCOPE
        )
        if kept is not None and kept["digest"] != self.digest:
            raise InvalidInput(
                f"this {HEADER} came with a different request before: use a new {HEADER}", field=HEADER
            )
        return kept

    async def keep(self, services: Services, reply: Reply, body: Any) -> None:
        kept = {
            "digest": self.digest,
            "location": reply.location,
            "body": None if reply.keep is not None else body,
            "keep": reply.keep,
        }
        await asyncio.to_thread(services.manager.registry.store, self.name, SCOPE, kept)


def once_of(route: Route, request: web.Request, caller: Caller, digest: str) -> Once | None:
    """The key of a request, None where it has none. Raises InvalidInput for an unusable one."""
    header = request.headers.get(HEADER)
    if header is None or not route.creates:
        return None
    if not _KEY.fullmatch(header):
        raise InvalidInput(f"{HEADER} must be 1 to 255 visible ASCII characters", field=HEADER)
    where = f"{caller.key_id}:{caller.tenant}:{route.method}:{request.path}"
    return Once(hashlib.sha256(f"{where} {header}".encode()).hexdigest(), digest)


@asynccontextmanager
async def alone(once: Once, services: Services) -> AsyncIterator[None]:
    """Hold the key, so that of two equal requests at once the second waits for the first."""
    held = services.same_key.setdefault(once.name, KeyLock())
    held.users += 1
    try:
        async with held.lock:
            yield
    finally:
        held.users -= 1
        if held.users == 0:
            del services.same_key[once.name]
