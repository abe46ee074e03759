"""The calls about tenants' keys: issue, list, rotate, revoke."""

from __future__ import annotations

import asyncio
from datetime import datetime
from typing import Any

from hmi.api.access import quotas
from hmi.api.http.call import Reply, RouteCall
from hmi.api.schemas.shared import NoBody
from hmi.api.schemas.tenants import CreateKey, KeyCreated, KeyList, KeyRotated, RotateKey
from hmi.api.views.records import key_view
from hmi.core import KeyRecord, Scope
from hmi.errors import Forbidden, NotFound


async def create_key(call: RouteCall) -> Reply:
    """Issue a key. A tenant's own key may issue keys with no more scopes than its own."""
    body: CreateKey = call.body
    tenant, scopes = call.tenant(), tuple(dict.fromkeys(body.scopes))
    _check_scopes(call, scopes)

    def create() -> Reply:
        manager = call.services.manager
        manager.registry.tenant(tenant)
        made = manager.tenants.create_key(
            tenant, scopes, _key_limit(call), expires=body.expires, label=body.label
        )
        return _created(*made)

    return await asyncio.to_thread(create)


async def create_key_again(call: RouteCall, kept: dict[str, Any]) -> Reply:
    """Answer a repeated request: let another key take the place of the first answer's, of which only the
    hash is stored."""
    return _created(*await asyncio.to_thread(replace_key, call, kept))


async def list_keys(call: RouteCall) -> Reply:
    tenant, registry = call.tenant(), call.services.manager.registry

    def keys() -> KeyList:
        registry.tenant(tenant)
        found = registry.keys(tenant)
        used = registry.key_ring.last_used(found)
        return KeyList(keys=[key_view(key, used.get(key.key_id)) for key in found])

    return Reply(await asyncio.to_thread(keys))


async def rotate_key(call: RouteCall) -> Reply:
    """Issue a key that follows another one, with the same scopes; the old one ends after an overlap."""
    body: RotateKey = call.body
    tenant, key_id = call.tenant(), call.opaque("key")

    def rotate() -> Reply:
        _check_scopes(call, _key_of_tenant(call, tenant, key_id).scopes)
        made = call.services.manager.tenants.rotate_key(
            key_id, body.overlap_s, _key_limit(call), expires=body.expires, label=body.label
        )
        return _rotated(made.new, made.plain, {"replaces": key_id, "old_expires": made.old.expires})

    return await asyncio.to_thread(rotate)


async def rotate_key_again(call: RouteCall, kept: dict[str, Any]) -> Reply:
    """Answer a repeated request, as `create_key_again`."""
    return _rotated(*await asyncio.to_thread(replace_key, call, kept), kept["rotated"])


async def revoke_key(call: RouteCall) -> Reply:
    tenant, key_id = call.tenant(), call.opaque("key")

    def revoke() -> None:
        _key_of_tenant(call, tenant, key_id)
        call.services.manager.revoke_key(key_id)

    await asyncio.to_thread(revoke)
    return Reply(NoBody())


def replace_key(call: RouteCall, kept: dict[str, Any]) -> tuple[KeyRecord, str]:
    """Let another key take the place of the kept one, under the same id. If that was revoked, issue one with
    the same scopes."""
    manager, tenant, key_id = call.services.manager, kept["tenant"], kept["key_id"]
    manager.registry.tenant(tenant)
    if key_id in {key.key_id for key in manager.registry.keys(tenant)}:
        return manager.tenants.reissue_key(key_id)
    expires = kept.get("expires")
    return manager.tenants.create_key(
        tenant,
        tuple(kept["scopes"]),
        _key_limit(call),
        expires=None if expires is None else datetime.fromisoformat(expires),
        label=kept.get("label", ""),
    )


def _key_of_tenant(call: RouteCall, tenant: str, key_id: str) -> KeyRecord:
    """The tenant's key of this id. Raises NotFound."""
    found = next((k for k in call.services.manager.registry.keys(tenant) if k.key_id == key_id), None)
    if found is None:
        raise NotFound(f"tenant {tenant!r} has no key {key_id!r}: see the list of its keys")
    return found


def _check_scopes(call: RouteCall, scopes: tuple[Scope, ...]) -> None:
    if "admin" in scopes:
        raise Forbidden("a tenant's key cannot have the scope 'admin': see 'hmi key create --admin'")
    beyond = [s for s in scopes if s not in call.caller.scopes]
    if beyond:
        raise Forbidden(f"this key may not issue keys with scopes that it lacks: {', '.join(beyond)}")


def _key_limit(call: RouteCall) -> int | None:
    """The most keys that the tenant may hold; None, without limit, if an administrator issues the key."""
    return None if call.caller.tenant is None else quotas.TENANT_KEYS


def _created(stored: KeyRecord, key: str) -> Reply:
    return Reply(KeyCreated(**key_view(stored).model_dump(), key=key), keep=_key_without_secret(stored))


def _rotated(stored: KeyRecord, key: str, rotated: dict[str, Any]) -> Reply:
    body = KeyRotated(**key_view(stored).model_dump(), key=key, **rotated)
    return Reply(body, keep={**_key_without_secret(stored), "rotated": rotated})


def _key_without_secret(stored: KeyRecord) -> dict[str, Any]:
    """Return what an Idempotency-Key keeps of a new key: never its secret."""
    return stored.model_dump(mode="json", include={"tenant", "key_id", "scopes", "expires", "label"})
