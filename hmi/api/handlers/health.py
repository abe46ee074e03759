"""The calls for operators: liveness, readiness and metrics."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.shared import Health

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web


async def healthz(call: RouteCall) -> Reply:
    """Answer that the process is alive."""
    return Reply(Health(status="alive"))


async def readyz(call: RouteCall) -> Reply:
    """Answer whether inference is served.

    The answer is 503 while the server compiles, starts or drains, or while a part of the engine is down.
    """
    call.services.lifecycle.check_ready()
    return Reply(Health(status="ready"))


async def metrics(call: RouteCall) -> web.StreamResponse:
    """Prometheus metrics: by tenant for administrators, summed over tenants for others."""
    assert call.request is not None
    services = call.services
    shown = (
        services.monitoring.scrape.whole
        if services.access.auth.is_admin(call.request)
        else services.monitoring.scrape.summed
    )
    text = await shown.get()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
