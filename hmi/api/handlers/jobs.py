"""The calls about jobs: list, show, follow, cancel."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.events import HEARTBEAT_S, Events, stream
from hmi.api.http.services import Services
from hmi.api.in_thread import OFF_LOOP_ROWS
from hmi.api.schemas.shared import JobList, JobQuery, JobView
from hmi.api.views.records import job_view
from hmi.core import ENDED, JobRecord
from hmi.manager import Manager
from hmi.stores.records.job_table import no_job

if TYPE_CHECKING:
    from aiohttp import web
else:
    from hmi.api.lazy_import import web

POLL_S = 0.3
"""Interval at which a stream looks at its job."""


async def list_jobs(call: RouteCall) -> Reply:
    """List jobs, newest first."""
    query: JobQuery = call.query
    tenant = call.caller.only(query.tenant)
    found = await asyncio.to_thread(_page, call.services, query, tenant)
    return Reply(found, large=len(found.jobs) > OFF_LOOP_ROWS)


async def show_job(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_view, call))


async def cancel_job(call: RouteCall) -> Reply:
    """Ask a job to stop. 409 if it has ended."""

    def cancel() -> JobView:
        record = own_job(call)
        call.services.manager.cancel_job(record.job)
        return _view(call)

    return Reply(await asyncio.to_thread(cancel))


async def job_events(call: RouteCall) -> web.StreamResponse:
    """Follow a job by server-sent events: `progress` at each change and `end` once, or `error`."""
    from hmi.api.http.dispatch import shape  # which loads the web server

    request, services = call.request, call.services
    assert request is not None
    first = await asyncio.to_thread(_view, call)
    with services.access.quotas.stream(call.caller.tenant):
        return await stream(
            request, lambda events: _follow(call, events, first), lambda e: shape(request, e)[0]
        )


async def _follow(call: RouteCall, events: Events, view: JobView) -> None:
    sent, quiet = "", 0.0
    while call.services.lifecycle.phase != "draining":
        text = view.model_dump_json()
        if text != sent:
            await events.send("end" if view.state in ENDED else "progress", text)
            sent, quiet = text, 0.0
        elif quiet >= HEARTBEAT_S:
            await events.alive()
            quiet = 0.0
        if view.state in ENDED:
            return
        await asyncio.sleep(POLL_S)
        quiet += POLL_S
        view = await asyncio.to_thread(_view_with_key, call)


def _view_with_key(call: RouteCall) -> JobView:
    """The job, if the caller may still see it: its key may have been revoked since the stream began."""
    assert call.request is not None
    call.services.access.auth.caller(call.request, "manage")
    return _view(call)


def own_job(call: RouteCall) -> JobRecord:
    """The job in the path. Raises NotFound if it does not exist or the caller does not reach it."""
    job = call.opaque("job")
    record = call.services.manager.job(job)
    if not call.caller.reaches(record.tenant):
        raise no_job(job)
    return record


def _view(call: RouteCall) -> JobView:
    (view,) = _views(call.services.manager, [own_job(call)])
    return view


def _views(manager: Manager, jobs: Sequence[JobRecord]) -> list[JobView]:
    urls = {server.node: server.url for server in manager.registry.servers()}
    return [
        job_view(
            job,
            manager.job_progress(job.job),
            manager.runner.read_pacing(job.job),
            None if job.node is None else urls.get(job.node),
        )
        for job in jobs
    ]


def _page(services: Services, query: JobQuery, tenant: str | None) -> JobList:
    manager = services.manager
    manager.runner.recover()  # so that every job in the state `running` has a process
    page, more = manager.registry.page_of_jobs(tenant, query.state, query.kind, query.after, query.limit)
    return JobList(jobs=_views(manager, page), next=more)
