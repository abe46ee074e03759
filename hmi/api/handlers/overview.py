"""The call for the overview of the server."""

from __future__ import annotations

import asyncio

from hmi.api.overview import overview
from hmi.api.route import Call, Reply
from hmi.api.schemas_overview import OverviewQuery


async def show(call: Call) -> Reply:
    """Show the server at a glance, or a tenant's own part of it."""
    query: OverviewQuery = call.query
    minutes, reading = await call.services.minutes.last(query.minutes)
    tenant, manager = call.caller.tenant, call.services.manager
    counts = dict(await call.services.counts.get())
    jobs = None
    if tenant is None:
        jobs = await asyncio.to_thread(manager.registry.count_jobs)
    else:
        counts |= {"tenants": 1, "models": await asyncio.to_thread(manager.registry.count_models, tenant)}
    return Reply(overview(call.services, call.caller, counts, jobs, minutes, reading))
