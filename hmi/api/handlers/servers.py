"""The calls about servers that share a bucket: by operators, and by the servers among themselves."""

from __future__ import annotations

import asyncio
import logging
from typing import Any

from pydantic import ValidationError

import hmi
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.services import Services
from hmi.api.nodes.servers import Servers
from hmi.api.schemas.servers import ListedServer, Loaded, LoadModels, ModelNames, ServerList, ServerView
from hmi.api.views.overview import pool_view, since_start
from hmi.core import ModelId
from hmi.errors import Conflict
from hmi.metrics.reading import read

log = logging.getLogger("hmi.api")


async def show_server(call: RouteCall) -> Reply:
    return Reply(_view(call.services))


async def list_servers(call: RouteCall) -> Reply:
    """Show the servers as each one says itself."""
    services, servers = call.services, call.services.servers
    if servers is None:
        return Reply(ServerList(primary=None, servers=[]))
    assert call.request is not None
    request, known = call.request, servers.urls()

    async def listed(id: str, url: str) -> ListedServer:
        if id == servers.me:
            return ListedServer(id=id, url=url, view=_view(services))
        found = await servers.ask_for_view(url, request)
        return ListedServer(id=id, url=url, view=read_view(found))

    primary = services.manager.registry.primary()
    views = await asyncio.gather(*(listed(id, url) for id, url in sorted(known.items())))
    return Reply(ServerList(primary=None if primary is None else primary.url, servers=list(views)))


async def lead(call: RouteCall) -> Reply:
    """Make this server the primary, if it shares a bucket."""
    following, servers = call.services.manager.following, call.services.servers
    if following is None or servers is None:
        raise Conflict("this server shares no bucket, so no other one manages its data folder")
    await asyncio.to_thread(following.take_over, servers.url)
    return Reply(_view(call.services))


async def recent_models(call: RouteCall) -> Reply:
    return Reply(ModelNames(models=[str(model) for model in _checked(call).recent()]))


async def load_models(call: RouteCall) -> Reply:
    body: LoadModels = call.body
    _checked(call)
    loaded = await call.services.engine.load([ModelId.parse(model) for model in body.models])
    log.info("loaded %d of %d models for a server that leaves", loaded, len(body.models))
    return Reply(Loaded(loaded=loaded))


def _checked(call: RouteCall) -> Servers:
    """The servers that share the bucket. Raises Conflict without one, Forbidden unless one calls."""
    servers = call.services.servers
    if servers is None:
        raise Conflict("this server shares no bucket")
    assert call.request is not None
    servers.check_key(call.request)
    return servers


def read_view(view: Any) -> ServerView | None:
    """Another server's view of itself; None if it gave none, or has a release whose view lacks something.

    What a newer release has added is left out.
    """
    try:
        return None if view is None else ServerView.model_validate(view, extra="ignore")
    except ValidationError:
        return None


def _view(services: Services) -> ServerView:
    servers, registry, lifecycle = services.servers, services.manager.registry, services.lifecycle
    metrics, following = services.monitoring.metrics, services.manager.following
    reading = read(metrics, frozenset())
    return ServerView(
        id="" if servers is None else servers.me,
        primary=following is None or following.manages(),
        phase=lifecycle.phase,
        ready=lifecycle.phase == "serving" and services.engine.ready(),
        version=hmi.__version__,
        started=lifecycle.started,
        position=registry.position(),
        wait_s=services.engine.wait_s(None),
        in_flight=lifecycle.in_flight.count,
        since_start=since_start(reading, None),
        passed=0 if servers is None else servers.passed,
        answered=0 if servers is None else servers.answered,
        models=0 if servers is None else len(servers.recent()),
        pool=pool_view(reading, metrics.pool_limit_bytes),
    )
