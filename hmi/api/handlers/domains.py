"""The calls about domains: list, show, create, change, update, grow, roll back, delete."""

from __future__ import annotations

import asyncio

from hmi.api.handlers.models import accepted
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.domains import (
    ChangeDomain,
    CreateDomain,
    DomainList,
    DomainView,
    EraseText,
    GrowDomain,
    RollbackDomain,
    UpdateDomain,
)
from hmi.api.schemas.shared import NoBody
from hmi.api.views.records import domain_view
from hmi.core import DomainId


async def list_domains(call: RouteCall) -> Reply:
    def domains() -> DomainList:
        return DomainList(domains=[domain_view(d) for d in call.services.manager.domains()])

    return Reply(await asyncio.to_thread(domains), large=True)


async def show_domain(call: RouteCall) -> Reply:
    return Reply(await asyncio.to_thread(_view, call))


async def create_domain(call: RouteCall) -> Reply:
    body: CreateDomain = call.body
    job = await asyncio.to_thread(
        call.services.manager.create_domain,
        str(DomainId.parse(body.domain)),
        call.files["corpus"],
        alpha=body.alpha,
        pretrain=body.pretrain,
        options=body.options.model_dump(mode="json", exclude_unset=True),
    )
    return accepted(job)


async def update_domain(call: RouteCall) -> Reply:
    body: UpdateDomain = call.body
    job = await asyncio.to_thread(
        call.services.manager.update_domain,
        str(call.domain()),
        call.files["corpus"],
        alpha=body.alpha,
        pretrain=body.pretrain,
        options=body.options.model_dump(mode="json", exclude_unset=True),
    )
    return accepted(job)


async def change_domain(call: RouteCall) -> Reply:
    body: ChangeDomain = call.body
    manager = call.services.manager
    row = await asyncio.to_thread(manager.set_domain, str(call.domain()), record_misses=body.record_misses)
    return Reply(domain_view(row))


async def grow_domain(call: RouteCall) -> Reply:
    body: GrowDomain = call.body
    manager = call.services.manager
    return accepted(
        await asyncio.to_thread(manager.grow_domain, str(call.domain()), min_count=body.min_count)
    )


async def erase_text(call: RouteCall) -> Reply:
    body: EraseText = call.body
    job = await asyncio.to_thread(
        call.services.manager.erase_from_domain,
        str(call.domain()),
        text=call.files.get("text"),
        keep=call.files.get("keep"),
        phrases=body.phrases,
        encoding=body.encoding,
        dry_run=body.dry_run,
    )
    return accepted(job)


async def rollback_domain(call: RouteCall) -> Reply:
    body: RollbackDomain = call.body
    row = await asyncio.to_thread(call.services.manager.rollback_domain, str(call.domain()), body.version)
    return Reply(domain_view(row))


async def delete_domain(call: RouteCall) -> Reply:
    await asyncio.to_thread(call.services.manager.delete_domain, str(call.domain()))
    return Reply(NoBody())


def _view(call: RouteCall) -> DomainView:
    return domain_view(call.services.manager.domain(str(call.domain())))
