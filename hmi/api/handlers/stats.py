"""The call for what is stored and held in memory, by tier."""

from __future__ import annotations

import asyncio

from hmi.api.http.call import Reply, RouteCall
from hmi.api.views.records import stats_view


async def stats(call: RouteCall) -> Reply:
    found = await asyncio.to_thread(call.services.manager.stats)
    return Reply(stats_view(found, call.services.monitoring.metrics))
