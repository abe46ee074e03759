"""The aiohttp application: it builds the services at the start and serves each route of the route table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING, get_args

from aiohttp import web

from hmi.api import chores
from hmi.api.audit import Audit
from hmi.api.auth import Auth, is_loopback
from hmi.api.bodies import Bodies
from hmi.api.connection import handler_settings, most_connections
from hmi.api.dispatch import DIALECTS, add_request_id, answer_errors, handler_of, no_answer_yet
from hmi.api.inference import Inference, InferenceEngine
from hmi.api.rate_headers import add_rate_limits
from hmi.api.rates import Rates
from hmi.api.routes import ROUTES, contract
from hmi.api.scrape import Scrape
from hmi.api.services import SERVICES, Services, Unfinished
from hmi.api.shares import Shares
from hmi.api.uploads import Uploads
from hmi.config import Settings
from hmi.core import JobState
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.stores.audit.log import AuditLog
from hmi.stores.layout import Layout
from hmi.stores.tenant_cache import TenantCache

if TYPE_CHECKING:
    from hmi.engine.bundles import Bundles

DRAIN_S = 26
"""Longest wait at shutdown for accepted requests. Closing the connections (`hmi.api.leaving`) then takes
a few seconds more: half a minute in all."""
STALL_S = 5.0
"""At shutdown, a body of which no byte arrives for this long is given up."""
CHECK_S = 0.25
"""Interval at which the shutdown checks the bodies that still arrive."""
log = logging.getLogger("hmi.api")


def create_app(settings: Settings) -> web.Application:
    """Create the whole server as an aiohttp application, which owns its parts and closes them at its end.

    Raises Damaged if the data folder cannot be used. Only one application may run on a data folder.
    """
    return application(build_services(settings))


def build_engine(
    manager: Manager, metrics: Metrics, bundles_of: Callable[..., Bundles] | None = None
) -> InferenceEngine:
    """Create the engine. `bundles_of` makes its bundles in place of `Bundles`, for measurements.

    The import is here since it loads torch, which takes seconds: commands that ask no model need not wait.
    """
    from hmi.engine import Engine
    from hmi.engine.bundles import Bundles
    from hmi.execution.choose import check_precision
    from hmi.execution.cuda.choose import check_device, on_device

    settings = manager.settings
    check_device(settings.device)
    if settings.precision == "int8" or not on_device(settings.device):
        check_precision(settings.precision)
    stores = manager.registry, manager.plots, manager.adapters, manager.lowers
    settled = settings.precision, settings.device, settings.device_bytes
    limits = settings.root_bytes, settings.io_bytes_per_s, settings.runs("shards")
    bundles = (bundles_of or Bundles)(settings.data, *stores, *settled, *limits)
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
    metrics.watch_jobs(manager.registry.count_jobs, get_args(JobState))
    engine = engine_of(manager, metrics)
    manager.on_deleted = engine.forget
    rates = Rates(TenantCache(manager.registry).limits, settings.tenant_burst_s)
    return Services(
        settings=settings,
        manager=manager,
        engine=engine,
        inference=Inference(engine, settings, rates),
        metrics=metrics,
        auth=Auth(manager.registry, is_loopback(settings.host)),
        uploads=Uploads(settings),
        bodies=Bodies(settings.body_bytes),
        places=Shares(most_connections(settings), "requests"),
        scrape=Scrape(metrics),
        audit=Audit(AuditLog(Layout(settings.data).audit)),
    )


def application(services: Services, *, begun: bool = True) -> web.Application:
    """Create an application around existing services. It starts them itself, unless `begun` is False: until
    the caller has called `begin`, it answers health calls only."""
    app = web.Application(middlewares=[answer_errors], handler_args=handler_settings(services.settings))
    app[SERVICES] = services
    app[DIALECTS] = tuple({id(route.dialect): route.dialect for route in ROUTES}.values())
    for route in ROUTES:
        app.router.add_route(route.method, route.path, handler_of(route), expect_handler=no_answer_yet)
    app.on_response_prepare.append(add_request_id)
    app.on_response_prepare.append(add_rate_limits)
    if begun:
        app.on_startup.append(lambda app: begin(app[SERVICES]))
    app.on_cleanup.append(_end)
    return app


async def drain(services: Services) -> None:
    """Refuse new requests, answer the accepted ones, and stop jobs so that they resume at the next start.

    A second call does nothing.
    """
    if services.phase == "draining":
        return
    services.phase = "draining"
    jobs = asyncio.create_task(asyncio.to_thread(services.manager.runner.stop))
    answered = await _answered(services)
    await services.engine.stop(drain=answered)
    await jobs


async def _answered(services: Services) -> bool:
    """Wait at most DRAIN_S for the accepted requests; return whether all are answered.

    A request whose body stalls for STALL_S is given up, since the body may never arrive.
    """
    began = time.monotonic()
    # For each request, by id: the bytes of its body so far, and when the last of them arrived.
    seen: dict[int, tuple[int, float]] = {}
    while services.in_flight.count and (waited := time.monotonic() - began) < DRAIN_S:
        with suppress(TimeoutError):
            await asyncio.wait_for(services.in_flight.none(), min(CHECK_S, DRAIN_S - waited))
        for request_id, request in services.receiving.items():
            size, at = request.content.total_bytes, time.monotonic()
            if size != seen.get(request_id, (-1, 0.0))[0]:
                seen[request_id] = size, at
            elif at - seen[request_id][1] >= STALL_S:
                _give_up(request)
    for request in services.receiving.values():
        _give_up(request)
    await asyncio.sleep(0)
    unanswered = services.in_flight.count
    if unanswered:
        log.warning("stopping with %d requests unanswered after %d s", unanswered, DRAIN_S)
    return not unanswered


def _give_up(request: web.Request) -> None:
    """Make the read of this body raise, so that its request is answered by a 503."""
    request.content.set_exception(
        Unfinished("the server is stopping and the body is not complete: send it again in a few seconds")
    )


async def begin(services: Services) -> None:
    """Start the services, and serve."""
    services.phase = "starting"
    await asyncio.to_thread(contract)
    await asyncio.to_thread(services.uploads.clear)
    await services.engine.start()
    await asyncio.to_thread(services.manager.runner.start)
    services.chores = asyncio.create_task(chores.run(services))
    services.phase = "serving"


async def _end(app: web.Application) -> None:
    """Drain and close the services."""
    services = app[SERVICES]
    await drain(services)
    await chores.end(services)
    services.bodies.close()
    services.uploads.close()
    await asyncio.to_thread(services.manager.close)
