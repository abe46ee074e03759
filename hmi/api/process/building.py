"""Opens a data folder and creates the parts of a server. Loads no web server."""

from __future__ import annotations

import logging
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, get_args

from hmi.api.access.audit import Audit
from hmi.api.access.auth import Auth, is_loopback
from hmi.api.access.limited_log import LimitedLog
from hmi.api.access.quotas import Quotas
from hmi.api.access.rates import Rates
from hmi.api.body.memory_budget import Bodies
from hmi.api.body.shares import Shares
from hmi.api.body.uploads import Uploads
from hmi.api.edge.capacity import most_connections
from hmi.api.http.idempotency import KeyedAnswers
from hmi.api.http.lifecycle import Lifecycle
from hmi.api.http.observed import job_spans
from hmi.api.http.services import Access, Intake, Monitoring, Services
from hmi.api.infer.inference import Inference, InferenceEngine
from hmi.api.nodes.forward import Forwarder
from hmi.api.nodes.servers import Servers
from hmi.api.routes.table import INFER_PATHS
from hmi.api.views.minutes import Minutes
from hmi.api.views.scrape import CachedMetrics
from hmi.api.views.single_flight import SingleFlight
from hmi.config import Settings
from hmi.core import JobState
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.metrics.reading import read
from hmi.stores.audit.log import AuditLog
from hmi.stores.layout import Layout
from hmi.stores.records.tenant_cache import TenantCache
from hmi.telemetry.tracing import tracer_of

if TYPE_CHECKING:
    from hmi.engine.admit.bundles import Bundles

log = logging.getLogger("hmi.api")
COUNTS_S = 5.0
"""Age up to which the numbers of roots, domains, tenants and models are shown again."""


def build_engine(
    manager: Manager, metrics: Metrics, bundles_of: Callable[..., Bundles] | None = None
) -> InferenceEngine:
    """Create the engine. `bundles_of` makes its bundles in place of `Bundles`, for measurements.

    The import is here since it loads torch, which takes seconds: commands that ask no model need not wait.
    """
    from hmi.engine import Engine
    from hmi.engine.admit.bundles import Bundles
    from hmi.execution.choose import check_precision
    from hmi.execution.cuda.choose import check_device, path

    settings = manager.settings
    check_device(settings.device)
    if path(settings.device, settings.precision)[0] is None:
        check_precision(settings.precision)
    stores = manager.registry, manager.plots, manager.adapters, manager.lowers
    settled = settings.precision, settings.device, settings.device_bytes
    limits = settings.root_bytes, settings.io_bytes_per_s, settings.runs("shards")
    writing = settings.writing_bytes, settings.runs("guesses")
    make = bundles_of or Bundles
    shared = manager.root_files, manager.fetching
    bundles = make(settings.data, *stores, *settled, *limits, *writing, *shared)
    metrics.watch_executors(bundles.executors)
    engine = Engine(bundles, settings, metrics, manager.misses)
    if engine.exits is not None:
        metrics.watch_exits(engine.exits.totals)
    return engine


def build_services(
    settings: Settings, engine_of: Callable[[Manager, Metrics], InferenceEngine] = build_engine
) -> Services:
    """Open the data folder and create the parts of the server."""
    manager = Manager(settings)
    metrics = Metrics()
    registry = manager.registry
    metrics.watch_jobs(registry.count_jobs, get_args(JobState), registry.count_background_jobs)
    engine = engine_of(manager, metrics)
    manager.on_deleted = engine.forget
    metrics.watch_background(manager.runner.pacer.totals)
    tracer = tracer_of(settings)
    if tracer is not None:
        manager.runner.on_ended.append(job_spans(tracer))
    rates = Rates(TenantCache(registry).limits, settings.tenant_burst_s)
    inference = Inference(engine, settings, rates=rates, answering=manager.runner.pacer)
    forwarder = Forwarder(settings)
    return Services(
        settings=settings,
        manager=manager,
        engine=engine,
        inference=inference,
        access=Access(
            auth=Auth(registry, is_loopback(settings.host)),
            audit=Audit(AuditLog(Layout(settings.data).audit)),
            quotas=Quotas(),
        ),
        intake=Intake(
            settings=settings,
            uploads=Uploads(settings),
            bodies=Bodies(settings.body_bytes),
            places=Shares(most_connections(settings), "requests"),
        ),
        monitoring=Monitoring(
            metrics=metrics,
            scrape=CachedMetrics(metrics),
            minutes=Minutes(partial(read, metrics, INFER_PATHS)),
            counts=SingleFlight(partial(_counts, manager), COUNTS_S),
            limited_log=LimitedLog(log),
            tracer=tracer,
        ),
        lifecycle=Lifecycle(engine),
        keyed=KeyedAnswers(registry),
        forwarder=forwarder,
        servers=None if manager.following is None else Servers(registry, inference, forwarder),
    )


def _counts(manager: Manager) -> dict[str, int]:
    registry = manager.registry
    return {
        "roots": len(registry.roots(tolerant=True)),
        "domains": len(manager.plots.heads()),
        "tenants": registry.count_tenants(),
        "models": registry.count_models(),
    }
