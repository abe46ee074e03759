"""The server's phases: what it answers in each, and the requests that it must answer before it stops."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from hmi.api.infer.inference import InferenceEngine
from hmi.api.schemas.servers import Phase
from hmi.core import now
from hmi.engine.watch.in_flight import InFlight
from hmi.errors import Unavailable

if TYPE_CHECKING:
    from aiohttp import web


class Stopping(Unavailable):
    """The answer to a request after the signal to stop. It is expected, so it is not logged."""


class Unfinished(Stopping, TimeoutError):
    """The answer to a request whose body does not arrive before the server stops.

    It is a TimeoutError, too, since aiohttp expects one when the read of a body fails.
    """


@dataclass
class Lifecycle:
    """The phase of one server process, and the requests under way."""

    engine: InferenceEngine
    phase: Phase = "starting"
    """It ends with starting, serving and draining, in this order. A server begins with compiling. One that
    leaves others is leaving before it drains: it answers, but is not ready, so that calls go elsewhere."""
    started: str = field(default_factory=now)
    """When this server started, in RFC 3339 UTC."""
    in_flight: InFlight = field(default_factory=InFlight)
    """Counts the requests that were accepted and are not answered yet."""
    receiving: dict[int, web.Request] = field(default_factory=dict)
    """Requests whose bodies are being read, by `id(request)`, since aiohttp's requests cannot be hashed."""
    refused: int = 0
    """Number of requests that arrived after the signal to stop."""
    working: set[asyncio.Task[web.StreamResponse]] = field(default_factory=set)
    """Tasks of requests that are finished even if their client disconnects. The set keeps them alive."""
    periodic: asyncio.Task[None] | None = None
    """The task of `hmi.api.process.periodic`."""

    def admit(self) -> None:
        """Raise Stopping if the server drains, Unavailable if it does not serve yet."""
        if self.phase == "draining":
            self.refused += 1
            raise Stopping("the server is stopping: try again in a few seconds")
        if self.phase not in ("serving", "leaving"):
            raise self._not_yet()

    def check_ready(self) -> None:
        """Raise Unavailable while the server compiles, starts or drains, and while a part of the engine is
        down."""
        if self.phase in ("compiling", "starting"):
            raise self._not_yet()
        if self.phase == "serving" and self.engine.ready():
            return
        kind = Stopping if self.phase in ("leaving", "draining") else Unavailable
        trouble = self.engine.trouble()
        why = (
            "" if trouble is None else f", but a part of the engine failed and is being restarted ({trouble})"
        )
        raise kind(f"the server is {self.phase}{why}: try again in a few seconds", phase=self.phase)

    def _not_yet(self) -> Unavailable:
        """The answer to a request before the server serves."""
        why = " for this processor, once for each installation" if self.phase == "compiling" else ""
        return Unavailable(f"the server is {self.phase}{why}: try again in a few seconds", phase=self.phase)

    @contextmanager
    def reading(self, request: web.Request) -> Iterator[None]:
        """Context manager: the body of `request` is being read in the block."""
        self.receiving[id(request)] = request
        try:
            yield
        finally:
            del self.receiving[id(request)]
