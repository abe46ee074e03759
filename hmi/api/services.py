"""The services that handlers use: one object, built at start; each of its parts owns its state."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Literal

from aiohttp import web

from hmi.api.auth import Auth
from hmi.api.bodies import Bodies
from hmi.api.inference import Inference, InferenceEngine
from hmi.api.quotas import Quotas
from hmi.api.scrape import Scrape
from hmi.api.seldom import Seldom
from hmi.api.shares import Shares
from hmi.api.uploads import Uploads
from hmi.config import Settings
from hmi.core import now
from hmi.engine.in_flight import InFlight
from hmi.errors import Unavailable
from hmi.manager import Manager
from hmi.metrics import Metrics

log = logging.getLogger("hmi.api")
Phase = Literal["starting", "serving", "draining"]


class Stopping(Unavailable):
    """For a request after the signal to stop. Nothing is wrong, so no line is logged."""


class Unfinished(Stopping, TimeoutError):
    """For a request whose body does not arrive in time. aiohttp, which reads on, accepts a TimeoutError."""


@dataclass
class KeyLock:
    """An Idempotency-Key in use, so that of two equal requests the second waits for the first."""

    lock: asyncio.Lock = field(default_factory=asyncio.Lock)
    users: int = 0


@dataclass
class Services:
    """State of one server process. `phase` goes starting → serving → draining and never back."""

    settings: Settings
    manager: Manager
    engine: InferenceEngine
    inference: Inference
    """The engine, behind the checks of what callers ask."""
    metrics: Metrics
    auth: Auth
    uploads: Uploads
    bodies: Bodies
    places: Shares
    """The places for requests under way: as many as connections."""
    scrape: Scrape
    phase: Phase = "starting"
    started: str = field(default_factory=now)
    in_flight: InFlight = field(default_factory=InFlight)
    """Requests that were accepted and are not answered yet."""
    quotas: Quotas = field(default_factory=Quotas)
    receiving: dict[int, web.Request] = field(default_factory=dict)
    """Requests whose bodies are being read, by `id`: aiohttp's have no hash."""
    refused: int = 0
    """Requests that came after the signal to stop."""
    seldom: Seldom = field(default_factory=lambda: Seldom(log))
    working: set[asyncio.Task[web.StreamResponse]] = field(default_factory=set)
    """Requests that are finished even without their client."""
    same_key: dict[str, KeyLock] = field(default_factory=dict)

    def admit(self) -> None:
        """Raises Stopping once the server drains."""
        if self.phase == "draining":
            self.refused += 1
            raise Stopping("the server is stopping: try again in a few seconds")

    @contextmanager
    def reading(self, request: web.Request) -> Iterator[None]:
        """Marks that the body of `request` is being read, for the block."""
        self.receiving[id(request)] = request
        try:
            yield
        finally:
            del self.receiving[id(request)]


SERVICES: web.AppKey[Services] = web.AppKey("services", Services)
