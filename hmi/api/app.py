"""The aiohttp application: it builds the services at start and adds one route for each line of the route
table."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from typing import get_args

from aiohttp import web

from hmi.api.auth import Auth, is_loopback
from hmi.api.bodies import Bodies
from hmi.api.connection import handler_settings, most_connections
from hmi.api.dispatch import add_request_id, answer_errors, handler_of, no_answer_yet
from hmi.api.inference import Inference, InferenceEngine
from hmi.api.routes import ROUTES, contract
from hmi.api.scrape import Scrape
from hmi.api.services import SERVICES, Services, Unfinished
from hmi.api.shares import Shares
from hmi.api.uploads import Uploads
from hmi.config import Settings
from hmi.core import JobState
from hmi.manager import Manager
from hmi.metrics import Metrics

DRAIN_S = 26
"""Together with the closing of connections (hmi.api.leaving), a stop takes half a minute."""
STALL_S = 5.0
"""A body of which nothing comes for so long is not waited for."""
CHECK_S = 0.25
log = logging.getLogger("hmi.api")


def create_app(settings: Settings) -> web.Application:
    """The whole server as an aiohttp application; its parts live as long as it runs.

    Raises Damaged where the data folder cannot be used. Only one application may run on a data folder.
    """
    return application(build_services(settings))


def build_engine(manager: Manager, metrics: Metrics) -> InferenceEngine:
    """Imported here, since it imports torch, which takes seconds: only calls that ask a model wait for
    that."""
    from hmi.engine import Engine
    from hmi.engine.bundles import Bundles

    settings = manager.settings
    bundles = Bundles(settings.data, manager.registry, manager.plots, manager.adapters, manager.lowers)
    return Engine(bundles, settings, metrics, manager.misses)


def build_services(
    settings: Settings, engine_of: Callable[[Manager, Metrics], InferenceEngine] = build_engine
) -> Services:
    """Open the data folder and wire the parts."""
    manager = Manager(settings)
    metrics = Metrics()
    metrics.watch_jobs(manager.registry.count_jobs, get_args(JobState))
    engine = engine_of(manager, metrics)
    return Services(
        settings=settings,
        manager=manager,
        engine=engine,
        inference=Inference(engine, settings),
        metrics=metrics,
        auth=Auth(manager.registry, is_loopback(settings.host)),
        uploads=Uploads(settings),
        bodies=Bodies(settings.body_bytes),
        places=Shares(most_connections(settings), "requests"),
        scrape=Scrape(metrics),
    )


def application(services: Services) -> web.Application:
    """An application around parts that exist."""
    app = web.Application(middlewares=[answer_errors], handler_args=handler_settings(services.settings))
    app[SERVICES] = services
    for route in ROUTES:
        app.router.add_route(route.method, route.path, handler_of(route), expect_handler=no_answer_yet)
    app.on_response_prepare.append(add_request_id)
    app.cleanup_ctx.append(_running)
    return app


async def drain(services: Services) -> None:
    """Refuse new work, answer what was accepted, stop jobs so that they resume. May be called twice."""
    if services.phase == "draining":
        return
    services.phase = "draining"
    jobs = asyncio.create_task(asyncio.to_thread(services.manager.runner.stop))
    answered = await _answered(services)
    await services.engine.stop(drain=answered)
    await jobs


async def _answered(services: Services) -> bool:
    """Wait until the accepted requests are answered, at most DRAIN_S: a body may come slowly, or never."""
    began = time.monotonic()
    seen: dict[
        int, tuple[int, float]
    ] = {}  # request -> bytes of its body so far, and when the last of them came
    while services.in_flight.count and (waited := time.monotonic() - began) < DRAIN_S:
        with suppress(TimeoutError):
            await asyncio.wait_for(services.in_flight.none(), min(CHECK_S, DRAIN_S - waited))
        for name, request in services.receiving.items():
            size, at = request.content.total_bytes, time.monotonic()
            if size != seen.get(name, (-1, 0.0))[0]:
                seen[name] = size, at
            elif at - seen[name][1] >= STALL_S:
                _give_up(request)
    for request in services.receiving.values():
        _give_up(request)
    await asyncio.sleep(0)
    unanswered = services.in_flight.count
    if unanswered:
        log.warning("stopping with %d requests unanswered after %d s", unanswered, DRAIN_S)
    return not unanswered


def _give_up(request: web.Request) -> None:
    """Let whoever reads this body answer instead."""
    request.content.set_exception(
        Unfinished("the server is stopping and the body has not come whole: send it again in a few seconds")
    )


async def _running(app: web.Application) -> AsyncIterator[None]:
    services = app[SERVICES]
    await asyncio.to_thread(contract)
    await asyncio.to_thread(services.uploads.clear)
    await services.engine.start()
    await asyncio.to_thread(services.manager.runner.start)
    services.phase = "serving"
    yield
    await drain(services)
    services.bodies.close()
    services.uploads.close()
    await asyncio.to_thread(services.manager.close)
