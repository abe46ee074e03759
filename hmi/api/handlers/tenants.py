"""The calls about tenants and their usage."""

from __future__ import annotations

import asyncio
from typing import Any

from hmi.api.handlers.keys import replace_key
from hmi.api.http.call import Reply, RouteCall
from hmi.api.in_thread import OFF_LOOP_ROWS
from hmi.api.schemas.tenants import (
    ChangeTenant,
    CreateTenant,
    TenantCreated,
    TenantDeleted,
    TenantList,
    UsageView,
)
from hmi.api.views.records import quota_view, tenant_details, tenant_view
from hmi.core import Scope, TenantLimits
from hmi.errors import Conflict, NotFound

DEFAULT_SCOPES: tuple[Scope, ...] = ("infer", "manage")
"""The scopes of a tenant's first key."""


async def create_tenant(call: RouteCall) -> Reply:
    """Create a tenant and its first key."""
    body: CreateTenant = call.body
    manager = call.services.manager

    def create() -> Reply:
        limits = TenantLimits(**body.limits.model_dump())
        record, key = manager.create_tenant(body.tenant, weight=body.weight, limits=limits)
        (stored,) = manager.registry.keys(record.tenant)
        return _created(record.tenant, stored.key_id, key)

    return await asyncio.to_thread(create)


async def create_tenant_again(call: RouteCall, kept: dict[str, Any]) -> Reply:
    """Answer a repeated creation: revoke the key of the first answer, of which only the hash is
    stored, and issue a new one."""
    try:
        stored, key = await asyncio.to_thread(replace_key, call, kept)
    except NotFound as error:
        raise Conflict(
            f"tenant {kept['tenant']!r}, which this Idempotency-Key created, has been deleted: use a new "
            "Idempotency-Key"
        ) from error
    return _created(kept["tenant"], stored.key_id, key)


async def list_tenants(call: RouteCall) -> Reply:
    """List the tenants that the caller reaches: all, or its own."""
    registry, own = call.services.manager.registry, call.caller.tenant

    def tenants() -> TenantList:
        found = registry.tenants() if own is None else [registry.tenant(own)]
        return TenantList(tenants=[tenant_view(t) for t in found])

    listed = await asyncio.to_thread(tenants)
    return Reply(listed, large=len(listed.tenants) > OFF_LOOP_ROWS)


async def show_tenant(call: RouteCall) -> Reply:
    """Show a tenant, and how much of its limits it has used."""
    tenant = call.tenant()
    registry = call.services.manager.registry
    record, limits, stored = await asyncio.to_thread(
        lambda: (registry.tenant(tenant), registry.rooms.limits(tenant), registry.rooms.stored(tenant))
    )
    rates = call.services.inference.rates.states(tenant)
    return Reply(tenant_details(record, quota_view(limits, stored, rates)))


async def change_tenant(call: RouteCall) -> Reply:
    body: ChangeTenant = call.body
    limits = {} if body.limits is None else body.limits.model_dump(exclude_unset=True)
    # A limit that is given back to the server's default must show in the log, which leaves out null.
    named = {name: "default" if value is None else value for name, value in limits.items()}
    call.noted |= {"weight": body.weight, "limits": named or None}
    record = await asyncio.to_thread(
        call.services.manager.set_tenant, call.tenant(), weight=body.weight, limits=limits
    )
    return Reply(tenant_view(record))


async def delete_tenant(call: RouteCall) -> Reply:
    tenant = call.tenant()
    removed = await asyncio.to_thread(call.services.manager.delete_tenant, tenant)
    call.services.monitoring.metrics.usage.forget(tenant)
    call.services.monitoring.minutes.forget(tenant)
    return Reply(TenantDeleted(tenant=tenant, removed=removed))


async def usage(call: RouteCall) -> Reply:
    """Show what a tenant used since this server started, and what it stores."""
    tenant, registry = call.tenant(), call.services.manager.registry
    limits, stored = await asyncio.to_thread(
        lambda: (registry.rooms.limits(tenant), registry.rooms.stored(tenant))
    )
    use = call.services.monitoring.metrics.usage.of(tenant)
    view = UsageView(
        tenant=tenant,
        since=call.services.lifecycle.started,
        requests=use.requests,
        inputs=use.inputs,
        deep_inputs=use.deep,
        tokens=use.tokens,
        compute_ms=round(use.compute_ms, 3),
        models=stored.models,
        model_bytes=stored.model_bytes,
        file_bytes=stored.file_bytes,
        row_bytes=stored.row_bytes,
        quota=quota_view(limits, stored, call.services.inference.rates.states(tenant)),
    )
    return Reply(view)


def _created(tenant: str, key_id: str, key: str) -> Reply:
    body = TenantCreated(tenant=tenant, key_id=key_id, key=key)
    return Reply(body, keep={"tenant": tenant, "key_id": key_id, "scopes": DEFAULT_SCOPES})
