"""The calls about a model's cascade: profile, show, delete."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted, job_limit
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.cascades import ProfileCascade
from hmi.api.schemas.shared import NoBody
from hmi.api.views.cascades import cascade_view


async def profile_cascade(call: RouteCall) -> Reply:
    body: ProfileCascade = call.body
    job = await asyncio.to_thread(
        call.services.manager.profile_cascade,
        str(call.model()),
        small=body.small,
        data=call.files.get("data"),
        skip_bad_rows=body.skip_bad_rows,
        reading=body.options,
        job_limit=job_limit(call),
    )
    return accepted(job)


async def show_cascade(call: RouteCall) -> Reply:
    info = await asyncio.to_thread(call.services.manager.cascade, str(call.model()))
    artefact, small = info.model.live.artefact, info.cascade.small_artefact or ""
    agreement = info.model.objective.agreement
    # On the event loop, which owns the engine's counts.
    report = call.services.engine.cascade_report(call.model(), artefact, small, agreement)
    return Reply(await asyncio.to_thread(cascade_view, info, report))


async def delete_cascade(call: RouteCall) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_cascade, str(call.model()))
    return Reply(NoBody())
