"""The calls about a model's token adaptation: profile, show."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted, job_limit
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.tokens import ProfileTokens
from hmi.api.views.tokens import tokens_view


async def profile_tokens(call: RouteCall) -> Reply:
    body: ProfileTokens = call.body
    job = await asyncio.to_thread(
        call.services.manager.tokens.profile,
        str(call.model()),
        call.files,
        prompts=body.prompts,
        skip_bad_rows=body.skip_bad_rows,
        reading=body.options,
        job_limit=job_limit(call),
    )
    return accepted(job)


async def show_tokens(call: RouteCall) -> Reply:
    stage, model = call.services.engine.tokens, call.model()
    record = await asyncio.to_thread(call.services.manager.model, str(model))
    return Reply(tokens_view(record, None if stage is None else stage.audits(model, record.live.artefact)))
