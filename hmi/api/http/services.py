"""The parts of a server process that its calls use, grouped by what asks for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from hmi.api.access.audit import Audit
from hmi.api.access.auth import Auth
from hmi.api.access.caller import Caller
from hmi.api.access.limited_log import LimitedLog
from hmi.api.access.quotas import Quotas
from hmi.api.body.memory_budget import Bodies
from hmi.api.body.shares import Shares
from hmi.api.body.uploads import Uploads
from hmi.api.http.idempotency import KeyedAnswers
from hmi.api.http.lifecycle import Lifecycle
from hmi.api.infer.inference import Inference, InferenceEngine
from hmi.api.nodes.forward import Forwarder
from hmi.api.nodes.servers import Servers
from hmi.api.views.minutes import Minutes
from hmi.api.views.scrape import CachedMetrics
from hmi.api.views.single_flight import SingleFlight
from hmi.config import Settings
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.telemetry.tracing import Tracer

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


@dataclass
class Access:
    """Who may call, how often they may change something, and what is written about it."""

    auth: Auth
    audit: Audit
    quotas: Quotas


@dataclass
class Intake:
    """The limits on requests that are being received: memory, places, uploaded files."""

    settings: Settings
    uploads: Uploads
    bodies: Bodies
    places: Shares
    """Places for requests under way, as many as there may be connections."""

    def close(self) -> None:
        self.bodies.close()
        self.uploads.close()


@dataclass
class Monitoring:
    """The figures, spans and warnings of a server process."""

    metrics: Metrics
    scrape: CachedMetrics
    minutes: Minutes
    """The figures of the last day, minute by minute."""
    counts: SingleFlight[dict[str, int]]
    """The numbers of roots, domains, tenants and models."""
    limited_log: LimitedLog
    tracer: Tracer | None
    """The sender of the spans of requests, or None if nothing is traced."""


@dataclass
class Services:
    """The parts of one server process. Each owns its own state."""

    settings: Settings
    manager: Manager
    engine: InferenceEngine
    inference: Inference
    """Checks what callers ask, and passes it to the engine."""
    access: Access
    intake: Intake
    monitoring: Monitoring
    lifecycle: Lifecycle
    keyed: KeyedAnswers
    """The answers to requests with an Idempotency-Key."""
    forwarder: Forwarder
    """Passes calls to other servers."""
    servers: Servers | None = None
    """The servers that share the bucket; None without one."""


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
