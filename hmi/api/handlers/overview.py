"""The calls for the server at a glance, and for what it stores and holds in memory."""

from __future__ import annotations

import asyncio

from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.services import Services
from hmi.api.schemas.overview import OverviewQuery, OverviewView
from hmi.api.views.overview import ServerStatus, overview
from hmi.api.views.records import stats_view


async def show(call: RouteCall) -> Reply:
    """Show the server at a glance, or a tenant's own part of it."""
    query: OverviewQuery = call.query
    minutes, reading = await call.services.monitoring.minutes.last(query.minutes)
    counts = await call.services.monitoring.counts.get()

    def made() -> OverviewView:  # in a thread: it looks at every tenant that was active
        registry, tenant = call.services.manager.registry, call.caller.tenant
        own = {} if tenant is None else {"tenants": 1, "models": registry.count_models(tenant)}
        jobs = registry.count_jobs() if tenant is None else None
        return overview(_status(call.services), call.caller, {**counts, **own}, jobs, minutes, reading)

    return Reply(await asyncio.to_thread(made))


async def stats(call: RouteCall) -> Reply:
    found = await asyncio.to_thread(call.services.manager.stats)
    return Reply(stats_view(found, call.services.monitoring.metrics))


def _status(services: Services) -> ServerStatus:
    lifecycle = services.lifecycle
    return ServerStatus(
        phase=lifecycle.phase,
        ready=lifecycle.phase == "serving" and services.engine.ready(),
        started=lifecycle.started,
        keyless=services.access.auth.open(),
        pool_limit_bytes=services.monitoring.metrics.pool_limit_bytes,
    )
