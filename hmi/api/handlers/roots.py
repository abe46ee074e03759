"""The calls about roots: list, import, delete."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted
from hmi.api.http.call import Reply, RouteCall
from hmi.api.http.services import Services
from hmi.api.schemas.roots import ChangeRoot, ImportRoot, RootList, ShardRoot
from hmi.api.schemas.shared import NoBody
from hmi.api.views.records import root_view
from hmi.core import DeletedParts
from hmi.execution.machine import fingerprint

TEXTS = ("text", *(f"text-{n}" for n in range(1, 8)))
"""File parts with general text. The import samples several files evenly."""


async def list_roots(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_listed, call.services))


def _listed(services: Services) -> RootList:
    manager, here = services.manager, fingerprint()
    running = {root: (name, fault) for root, name, _, fault in services.monitoring.metrics.executors()}
    views = []
    for root in manager.registry.roots():
        profile = manager.profiles.get(root.name, root.version, here)
        views.append(root_view(root, profile, manager.settings.precision, running.get(root.name)))
    return RootList(roots=views)


async def change_root(call: RouteCall) -> Reply:
    body: ChangeRoot = call.body
    manager = call.services.manager
    await asyncio.to_thread(manager.root_shards.prioritise, call.root(), body.priority)
    # It is loaded again, in its new form.
    call.services.engine.forget(DeletedParts(roots=frozenset([call.root()])))
    return Reply(NoBody())


async def shard_root(call: RouteCall) -> Reply:
    body: ShardRoot = call.body
    make = call.services.manager.root_shards.make
    job = await asyncio.to_thread(make, call.root(), call.files.get("text"), body.importance)
    return accepted(job)


async def delete_root(call: RouteCall) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_root, call.root())
    return Reply(NoBody())


async def import_root(call: RouteCall) -> Reply:
    body: ImportRoot = call.body
    texts = [call.files[part] for part in TEXTS if part in call.files]
    job = await asyncio.to_thread(
        call.services.manager.import_root,
        body.root,
        body.source,
        split=body.split,
        texts={f"text-{n}.txt": text for n, text in enumerate(texts)},
        alpha=body.alpha,
        options=body.options.model_dump(mode="json", exclude_unset=True),
    )
    return accepted(job)
