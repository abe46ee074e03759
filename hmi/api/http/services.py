"""The services that handlers use: one object, built at the start. Each of its parts owns its own state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from hmi.api.access.audit import Audit
from hmi.api.access.auth import Auth
from hmi.api.access.caller import Caller
from hmi.api.access.limited_log import LimitedLog
from hmi.api.access.quotas import Quotas
from hmi.api.body.memory_budget import Bodies
from hmi.api.body.shares import Shares
from hmi.api.body.uploads import Uploads
from hmi.api.infer.inference import Inference, InferenceEngine
from hmi.api.views.minutes import Minutes
from hmi.api.views.scrape import CachedMetrics
from hmi.api.views.single_flight import SingleFlight
from hmi.config import Settings
from hmi.core import now
from hmi.engine.watch.in_flight import InFlight
from hmi.errors import Unavailable
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web

log = logging.getLogger("hmi.api")
Phase = Literal["compiling", "starting", "serving", "draining"]


class Stopping(Unavailable):
    """The answer to a request after the signal to stop. It is expected, so it is not logged."""


class Unfinished(Stopping, TimeoutError):
    """The answer to a request whose body does not arrive before the server stops.

    It is a TimeoutError, too, since aiohttp expects one when the read of a body fails.
    """


@dataclass
class KeyLock:
    """The lock of an Idempotency-Key in use, and the number of requests that hold it or wait for it."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass
class Services:
    """The state of one server process."""

    settings: Settings
    manager: Manager
    engine: InferenceEngine
    inference: Inference
    """Checks what callers ask, and passes it to the engine."""
    metrics: Metrics
    auth: Auth
    uploads: Uploads
    bodies: Bodies
    places: Shares
    """Places for requests under way, as many as there may be connections."""
    scrape: CachedMetrics
    audit: Audit
    minutes: Minutes
    """The figures of the last day, minute by minute."""
    counts: SingleFlight[dict[str, int]]
    """The numbers of roots, domains, tenants and models."""
    phase: Phase = "starting"
    """It ends with starting, serving and draining, in this order. A server begins with compiling."""
    started: str = field(default_factory=now)
    """When this server started, in RFC 3339 UTC."""
    in_flight: InFlight = field(default_factory=InFlight)
    """Counts the requests that were accepted and are not answered yet."""
    quotas: Quotas = field(default_factory=Quotas)
    receiving: dict[int, web.Request] = field(default_factory=dict)
    """Requests whose bodies are being read, by `id(request)`, since aiohttp's requests cannot be hashed."""
    refused: int = 0
    """Number of requests that arrived after the signal to stop."""
    limited_log: LimitedLog = field(default_factory=lambda: LimitedLog(log))
    tracer: Tracer | None = None
    """The sender of the spans of requests, or None if nothing is traced."""
    working: set[asyncio.Task[web.StreamResponse]] = field(default_factory=set)
    """Tasks of requests that are finished even if their client disconnects. The set keeps them alive."""
    chores: asyncio.Task[None] | None = None
    """The task of the server's chores; see `hmi.api.process.periodic`."""
    same_key: dict[str, KeyLock] = field(default_factory=dict)
    """The locks of the Idempotency-Keys in use, by `KeyedRequest.name`."""

    def admit(self) -> None:
        """Raise Stopping if the server drains, Unavailable if it does not serve yet."""
        if self.phase == "draining":
            self.refused += 1
            raise Stopping("the server is stopping: try again in a few seconds")
        if self.phase != "serving":
            raise self.not_yet()

    def check_ready(self) -> None:
        """Raise Unavailable while the server compiles, starts or drains, and while a part of the engine is
        down."""
        if self.phase in ("compiling", "starting"):
            raise self.not_yet()
        if self.phase == "serving" and self.engine.ready():
            return
        kind = Stopping if self.phase == "draining" else Unavailable
        trouble = self.engine.trouble()
        why = (
            "" if trouble is None else f", but a part of the engine failed and is being restarted ({trouble})"
        )
        raise kind(f"the server is {self.phase}{why}: try again in a few seconds", phase=self.phase)

    def not_yet(self) -> Unavailable:
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


SERVICES: web.AppKey[Services]
"""The application's services."""
CALLER: web.RequestKey[Caller]
"""The caller of a call to infer."""


def __getattr__(name: str) -> Any:
    """Make the keys at their first use, since commands have services without a web server."""
    if name == "SERVICES":
        return globals().setdefault(name, web.AppKey("services", Services))
    if name == "CALLER":
        return globals().setdefault(name, web.RequestKey("caller", Caller))
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
