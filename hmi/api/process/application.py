"""The aiohttp application: it builds the services at the start and serves each route of the route table."""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import suppress
from typing import TYPE_CHECKING

from aiohttp import web

from hmi.api.edge.connection import handler_settings
from hmi.api.http.dispatch import DIALECTS, add_request_id, answer_errors, handler_of, no_answer_yet
from hmi.api.http.lifecycle import Unfinished
from hmi.api.http.rate_headers import add_rate_limits
from hmi.api.http.services import SERVICES, Services
from hmi.api.process import periodic
from hmi.api.process.building import build_services
from hmi.api.routes.table import ROUTES, contract
from hmi.config import Settings

if TYPE_CHECKING:
    pass

DRAIN_S = 26
"""Longest wait at shutdown for accepted requests. Closing the connections (`hmi.api.edge.drain`) then takes
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
    if services.lifecycle.phase in ("leaving", "draining"):
        return
    if services.servers is not None and services.lifecycle.phase == "serving":
        services.lifecycle.phase = "leaving"
        await services.servers.leave()
    services.lifecycle.phase = "draining"
    jobs = asyncio.create_task(asyncio.to_thread(services.manager.runner.stop))
    answered = await _wait_for_answers(services)
    await services.engine.stop(drain=answered)
    await jobs


async def _wait_for_answers(services: Services) -> bool:
    """Wait at most DRAIN_S for the accepted requests; return whether all are answered.

    A request whose body stalls for STALL_S is given up, since the body may never arrive.
    """
    began = time.monotonic()
    # For each request, by id: the bytes of its body so far, and when the last of them arrived.
    seen: dict[int, tuple[int, float]] = {}
    while services.lifecycle.in_flight.count and (waited := time.monotonic() - began) < DRAIN_S:
        with suppress(TimeoutError):
            await asyncio.wait_for(services.lifecycle.in_flight.none(), min(CHECK_S, DRAIN_S - waited))
        for request_id, request in services.lifecycle.receiving.items():
            size, at = request.content.total_bytes, time.monotonic()
            if size != seen.get(request_id, (-1, 0.0))[0]:
                seen[request_id] = size, at
            elif at - seen[request_id][1] >= STALL_S:
                _give_up(request)
    for request in services.lifecycle.receiving.values():
        _give_up(request)
    await asyncio.sleep(0)
    unanswered = services.lifecycle.in_flight.count
    if unanswered:
        log.warning("stopping with %d requests unanswered after %d s", unanswered, DRAIN_S)
    return not unanswered


def _give_up(request: web.Request) -> None:
    """Make the read of this body raise, so that its request is answered by a 503."""
    request.content.set_exception(
        Unfinished("the server is stopping and the body is not complete: send it again in a few seconds")
    )


async def begin(services: Services, url: str = "") -> None:
    """Start the services, and serve. url: where the server listens; only one with a bucket needs it."""
    services.lifecycle.phase = "starting"
    await asyncio.to_thread(contract)
    await asyncio.to_thread(services.intake.uploads.clear)
    await services.engine.start()
    services.manager.runner.pacer.watch()
    following = services.manager.following
    if following is None or await asyncio.to_thread(following.begin, services.settings.node_url or url):
        await asyncio.to_thread(services.manager.runner.start)
    if following is not None:
        following.follow()
    services.monitoring.minutes.start()
    if services.servers is not None:
        await services.servers.enter(services.settings.node_url or url)
    services.lifecycle.periodic = asyncio.create_task(periodic.run(services))
    services.lifecycle.phase = "serving"


async def _end(app: web.Application) -> None:
    """Drain and close the services."""
    services = app[SERVICES]
    await drain(services)
    await services.monitoring.minutes.stop()
    await periodic.end(services)
    services.intake.close()
    await services.forwarder.close()
    await asyncio.to_thread(services.manager.close)
    if services.monitoring.tracer is not None:
        await asyncio.to_thread(services.monitoring.tracer.close)
