"""Roots: list and import."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted
from hmi.api.route import Call, Reply
from hmi.api.schemas import NoBody
from hmi.api.schemas_manage import ImportRoot, RootList
from hmi.api.views import root_view


async def list_roots(call: Call) -> Reply:
    roots = await asyncio.to_thread(call.services.manager.registry.roots)
    return Reply(RootList(roots=[root_view(r) for r in roots]))


async def delete_root(call: Call) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_root, call.root())
    return Reply(NoBody())


async def import_root(call: Call) -> Reply:
    body: ImportRoot = call.body
    text = call.files.get("text")
    job = await asyncio.to_thread(
        call.services.manager.import_root,
        body.root,
        body.source,
        split=body.split,
        texts={} if text is None else {"text-0.txt": text},
        alpha=body.alpha,
        options=body.options.model_dump(mode="json", exclude_unset=True),
    )
    return accepted(job)
