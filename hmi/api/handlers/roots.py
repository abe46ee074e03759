"""The calls about roots: list, import, delete."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted
from hmi.api.route import Call, Reply
from hmi.api.schemas import NoBody
from hmi.api.schemas_manage import ImportRoot, RootList
from hmi.api.views import root_view
from hmi.execution.machine import fingerprint
from hmi.manager import Manager

TEXTS = ("text", *(f"text-{n}" for n in range(1, 8)))
"""File parts with general text. The import samples several files evenly."""


async def list_roots(call: Call) -> Reply:
    return Reply(await asyncio.to_thread(_listed, call.services.manager))


def _listed(manager: Manager) -> RootList:
    precision, here = manager.settings.precision, fingerprint()
    return RootList(
        roots=[
            root_view(r, manager.profiles.get(r.name, r.version, here), precision)
            for r in manager.registry.roots()
        ]
    )


async def delete_root(call: Call) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_root, call.root())
    return Reply(NoBody())


async def import_root(call: Call) -> Reply:
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
