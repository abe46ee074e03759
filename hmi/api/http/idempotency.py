"""Idempotency-Key: a POST that is sent twice is executed once, and the second gets the answer of the
first."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from hmi.api.access.caller import Caller
from hmi.errors import InvalidInput
from hmi.stores.records.registry import Registry

if TYPE_CHECKING:
    from aiohttp import web

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


def keyed_request(request: web.Request, caller: Caller, digest: str) -> KeyedRequest | None:
    """The request if it has an Idempotency-Key, else None. Raises InvalidInput for a malformed one."""
    header = request.headers.get(HEADER)
    if header is None:
        return None
    if not _KEY.fullmatch(header):
        raise InvalidInput(f"{HEADER} must be 1 to 255 visible ASCII characters", field=HEADER)
    where = f"{caller.key_id}:{caller.tenant}:{request.method}:{request.path}"
    return KeyedRequest(hashlib.sha256(f"{where} {header}".encode()).hexdigest(), digest)


@dataclass
class _KeyLock:
    """The lock of a key in use, and the number of requests that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


class KeyedAnswers:
    """The answers to requests with a key. The registry has them, so that they outlive the server."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._locks: dict[str, _KeyLock] = {}
        """The locks of the keys in use, by `KeyedRequest.name`."""

    @property
    def in_use(self) -> int:
        """Number of keys whose requests are under way."""
        return len(self._locks)

    @asynccontextmanager
    async def exclusively(self, keyed: KeyedRequest) -> AsyncIterator[None]:
        """Lock the request's name: of two equal requests at once, the second waits for the first."""
        held = self._locks.setdefault(keyed.name, _KeyLock())
        held.users += 1
        try:
            async with held.lock:
                yield
        finally:
            held.users -= 1
            if held.users == 0:
                del self._locks[keyed.name]

    async def of(self, keyed: KeyedRequest) -> dict[str, Any] | None:
        """Return the stored `location`, `body` and `keep` of the first request, or None if this is the first.

        Raises InvalidInput if the first request had another body.
        """
        kept: dict[str, Any] | None = await asyncio.to_thread(self._registry.remember, keyed.name, SCOPE)
        if kept is not None and kept["digest"] != keyed.digest:
            raise InvalidInput(
                f"this {HEADER} was used for a request with another body: use a new {HEADER}", field=HEADER
            )
        return kept

    async def store(
        self, keyed: KeyedRequest, location: str | None, body: Any, keep: dict[str, Any] | None
    ) -> None:
        """Store an answer: its Location and `body`, or `keep` instead of a body that must not be stored."""
        kept = {
            "digest": keyed.digest,
            "location": location,
            "body": None if keep is not None else body,
            "keep": keep,
        }
        await asyncio.to_thread(self._registry.store, keyed.name, SCOPE, kept)
