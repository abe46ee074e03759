"""The calls about a model's cascade: profile, show, delete."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted, job_limit
from hmi.api.route import Call, Reply
from hmi.api.schemas import NoBody
from hmi.api.schemas_manage import CascadeTraffic, CascadeView, ProfileCascade
from hmi.jobs.cascade_levels import CURE
from hmi.manager.cascades import CascadeInfo


async def profile_cascade(call: Call) -> Reply:
    body: ProfileCascade = call.body
    job = await asyncio.to_thread(
        call.services.manager.profile_cascade,
        str(call.model()),
        small=body.small,
        data=call.files.get("data"),
        skip_bad_rows=body.skip_bad_rows,
        job_limit=job_limit(call),
    )
    return accepted(job)


async def show_cascade(call: Call) -> Reply:
    info = await asyncio.to_thread(call.services.manager.cascade, str(call.model()))
    # On the event loop, which owns the engine's counts.
    return Reply(
        CascadeView(
            model=f"{info.model.tenant}.{info.model.name}",
            state="ready" if info.stale is None else "stale",
            stale=None if info.stale is None else f"{info.stale}: {CURE}",
            cascade=info.cascade,
            traffic=_traffic(call, info),
        )
    )


async def delete_cascade(call: Call) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_cascade, str(call.model()))
    return Reply(NoBody())


def _traffic(call: Call, info: CascadeInfo) -> CascadeTraffic | None:
    if info.model.objective.agreement is None:
        return CascadeTraffic(state="no objective")
    artefact, small = info.model.live.artefact, info.cascade.small_artefact or ""
    found = call.services.engine.cascade_report(call.model(), artefact, small)
    return None if found is None else CascadeTraffic(**vars(found))
