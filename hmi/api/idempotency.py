"""Idempotency-Key: the same POST sent twice is done once, and the second gets the first one's answer."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from hmi.api.route import Call, Reply, Route
from hmi.api.services import KeyLock, Services
from hmi.errors import InvalidInput

HEADER = "Idempotency-Key"
_KEY = re.compile(r"[\x21-\x7e]{1,255}")


@dataclass(frozen=True)
class Once:
    """One Idempotency-Key on one route, by one caller."""

    key: str
    scope: str
    digest: str

    async def kept(self, services: Services) -> dict[str, Any] | None:
        """What the first request left. Raises InvalidInput where that was another request."""
        kept: dict[str, Any] | None = await asyncio.to_thread(
            services.manager.registry.remember, self.key, self.scope
        )
        if kept is not None and kept["digest"] != self.digest:
            raise InvalidInput(
                f"this {HEADER} came with another request before: use a new one", field=HEADER
            )
        return kept

    async def keep(self, services: Services, reply: Reply, body: Any) -> None:
        kept = {
            "digest": self.digest,
            "location": reply.location,
            "body": None if reply.keep is not None else body,
            "keep": reply.keep,
        }
        await asyncio.to_thread(services.manager.registry.store, self.key, self.scope, kept)


def once_of(route: Route, call: Call, digest: str) -> Once | None:
    """The key of a request, None where it has none. Raises InvalidInput for an unusable one."""
    header = call.request.headers.get(HEADER)
    if header is None or not route.creates:
        return None
    if not _KEY.fullmatch(header):
        raise InvalidInput(f"{HEADER} must be 1 to 255 visible ASCII characters", field=HEADER)
    where = f"{call.caller.key_id}:{call.caller.tenant}:{route.method}:{call.request.path}"
    return Once(
        hashlib.sha256(header.encode()).hexdigest(), hashlib.sha256(where.encode()).hexdigest(), digest
    )


@asynccontextmanager
async def alone(once: Once, services: Services) -> AsyncIterator[None]:
    """Hold the key, so that of two equal requests at once the second waits for the first."""
    name = once.key + once.scope
    held = services.same_key.setdefault(name, KeyLock())
    held.users += 1
    try:
        async with held.lock:
            yield
    finally:
        held.users -= 1
        if held.users == 0:
            del services.same_key[name]


async def repeat(route: Route, call: Call, kept: dict[str, Any]) -> tuple[Reply, Any]:
    """The answer to a repetition: as it was, or made again where it must not be stored."""
    if route.again is not None and kept["keep"] is not None:
        reply = await route.again(call, kept["keep"])
        return reply, None
    return Reply(None, kept["location"]), kept["body"]


REPLAYED = "Idempotency-Replayed"
