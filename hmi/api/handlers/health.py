"""Calls for operators: liveness, readiness and metrics."""

from __future__ import annotations

from aiohttp import web

from hmi.api.route import Call, Reply
from hmi.api.schemas import Health
from hmi.api.services import Stopping
from hmi.errors import Unavailable


async def healthz(call: Call) -> Reply:
    """The process answers."""
    return Reply(Health(status="alive"))


async def readyz(call: Call) -> Reply:
    """Inference is served; 503 while the server starts or drains, and while part of the engine is down."""
    services = call.services
    if services.phase != "serving" or not services.engine.ready():
        kind = Stopping if services.phase == "draining" else Unavailable
        trouble = services.engine.trouble()
        why = "" if trouble is None else f", but part of the engine is down and is started again ({trouble})"
        raise kind(f"the server is {services.phase}{why}: try again in a few seconds", phase=services.phase)
    return Reply(Health(status="ready"))


async def metrics(call: Call) -> web.StreamResponse:
    """Tenants' series for administrators only; for others their sum."""
    assert call.request is not None
    services = call.services
    shown = services.scrape.whole if services.auth.is_admin(call.request) else services.scrape.summed
    text = await shown.get()
    return web.Response(body=text, headers={"Content-Type": "text/plain; version=0.0.4; charset=utf-8"})
