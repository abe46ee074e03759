"""The calls about tenants, their keys and their usage."""

from __future__ import annotations

import asyncio
from typing import Any

from hmi.api import quotas
from hmi.api.loop import OFF_LOOP_ROWS
from hmi.api.route import Call, Reply
from hmi.api.schemas import NoBody
from hmi.api.schemas_manage import UsageView
from hmi.api.schemas_tenants import (
    ChangeTenant,
    CreateKey,
    CreateTenant,
    KeyCreated,
    KeyList,
    TenantCreated,
    TenantDeleted,
    TenantList,
)
from hmi.api.views import key_view, tenant_view
from hmi.core import KeyRecord, Scope
from hmi.errors import Conflict, Forbidden, NotFound

DEFAULT_SCOPES: tuple[Scope, ...] = ("infer", "manage")
"""The scopes of a tenant's first key."""


async def create_tenant(call: Call) -> Reply:
    """Create a tenant and its first key."""
    body: CreateTenant = call.body
    manager = call.services.manager

    def create() -> Reply:
        record, key = manager.create_tenant(body.tenant, weight=body.weight)
        (stored,) = manager.registry.keys(record.tenant)
        return _created(record.tenant, stored.key_id, key)

    return await asyncio.to_thread(create)


async def create_tenant_again(call: Call, kept: dict[str, Any]) -> Reply:
    """Answer a repeated creation: revoke the key of the first answer, of which only the hash is
    stored, and issue a new one."""
    try:
        stored, key = await asyncio.to_thread(_replace_key, call, kept)
    except NotFound as error:
        raise Conflict(
            f"tenant {kept['tenant']!r}, which this Idempotency-Key created, has been deleted: use a new "
            "Idempotency-Key"
        ) from error
    return _created(kept["tenant"], stored.key_id, key)


async def list_tenants(call: Call) -> Reply:
    """List the tenants that the caller reaches: all, or its own."""
    registry, own = call.services.manager.registry, call.caller.tenant

    def tenants() -> TenantList:
        found = registry.tenants() if own is None else [registry.tenant(own)]
        return TenantList(tenants=[tenant_view(t) for t in found])

    listed = await asyncio.to_thread(tenants)
    return Reply(listed, large=len(listed.tenants) > OFF_LOOP_ROWS)


async def change_tenant(call: Call) -> Reply:
    body: ChangeTenant = call.body
    record = await asyncio.to_thread(call.services.manager.set_tenant, call.tenant(), weight=body.weight)
    return Reply(tenant_view(record))


async def delete_tenant(call: Call) -> Reply:
    tenant = call.tenant()
    removed = await asyncio.to_thread(call.services.manager.delete_tenant, tenant)
    call.services.metrics.usage.forget(tenant)
    call.services.minutes.forget(tenant)
    return Reply(TenantDeleted(tenant=tenant, removed=removed))


async def create_key(call: Call) -> Reply:
    """Issue a key. A tenant's own key may issue keys with no more scopes than its own."""
    body: CreateKey = call.body
    tenant, scopes = call.tenant(), tuple(dict.fromkeys(body.scopes))
    _check_scopes(call, scopes)

    def create() -> Reply:
        call.services.manager.registry.tenant(tenant)
        stored, key = call.services.manager.create_key(tenant, scopes, limit=_key_limit(call))
        return _key_created(stored, key)

    return await asyncio.to_thread(create)


async def create_key_again(call: Call, kept: dict[str, Any]) -> Reply:
    """Answer a repeated request, as `create_tenant_again`."""
    return _key_created(*await asyncio.to_thread(_replace_key, call, kept))


async def list_keys(call: Call) -> Reply:
    tenant = call.tenant()

    def keys() -> list[KeyRecord]:
        call.services.manager.registry.tenant(tenant)
        return list(call.services.manager.registry.keys(tenant))

    return Reply(KeyList(keys=[key_view(k) for k in await asyncio.to_thread(keys)]))


async def revoke_key(call: Call) -> Reply:
    tenant, key_id = call.tenant(), call.opaque("key")

    def revoke() -> None:
        if key_id not in {k.key_id for k in call.services.manager.registry.keys(tenant)}:
            raise NotFound(f"tenant {tenant!r} has no key {key_id!r}: see the list of its keys")
        call.services.manager.revoke_key(key_id)

    await asyncio.to_thread(revoke)
    return Reply(NoBody())


async def usage(call: Call) -> Reply:
    """Show what a tenant used since this server started, and what it stores."""
    tenant = call.tenant()

    def stored() -> tuple[int, int]:
        manager = call.services.manager
        manager.registry.tenant(tenant)
        models = list(manager.models(tenant=tenant))
        return len(models), sum(v.bytes for m in models for v in m.versions)

    count, size = await asyncio.to_thread(stored)
    use = call.services.metrics.usage.of(tenant)
    view = UsageView(
        tenant=tenant,
        since=call.services.started,
        requests=use.requests,
        inputs=use.inputs,
        tokens=use.tokens,
        compute_ms=round(use.compute_ms, 3),
        models=count,
        model_bytes=size,
    )
    return Reply(view)


def _check_scopes(call: Call, scopes: tuple[Scope, ...]) -> None:
    if "admin" in scopes:
        raise Forbidden("a tenant's key cannot have the scope 'admin': see 'hmi key create --admin'")
    beyond = [s for s in scopes if s not in call.caller.scopes]
    if beyond:
        raise Forbidden(f"this key may not issue keys with scopes that it lacks: {', '.join(beyond)}")


def _replace_key(call: Call, kept: dict[str, Any]) -> tuple[KeyRecord, str]:
    """Revoke the kept key, if it still exists, and issue one with the same scopes."""
    manager = call.services.manager
    manager.registry.tenant(kept["tenant"])
    if kept["key_id"] in {k.key_id for k in manager.registry.keys(kept["tenant"])}:
        manager.revoke_key(kept["key_id"])
    return manager.create_key(kept["tenant"], tuple(kept["scopes"]), limit=_key_limit(call))


def _key_limit(call: Call) -> int | None:
    """The most keys that the tenant may hold; None, without limit, if an administrator issues the key."""
    return None if call.caller.tenant is None else quotas.TENANT_KEYS


def _created(tenant: str, key_id: str, key: str) -> Reply:
    body = TenantCreated(tenant=tenant, key_id=key_id, key=key)
    return Reply(body, keep={"tenant": tenant, "key_id": key_id, "scopes": DEFAULT_SCOPES})


def _key_created(stored: KeyRecord, key: str) -> Reply:
    keep = {"tenant": stored.tenant, "key_id": stored.key_id, "scopes": list(stored.scopes)}
    return Reply(KeyCreated(**key_view(stored).model_dump(), key=key), keep=keep)
