"""Records to fill a registry with."""

from __future__ import annotations

from hmi.core import JobRecord, KeyRecord, TenantRecord, now
from hmi.manager.tenants import new_key
from hmi.stores.records.registry import Registry


def add_tenant(registry: Registry, name: str) -> str:
    """Create a tenant and return its key."""
    key, plain = new_key(name, ("infer", "manage"))
    registry.create_tenant(TenantRecord(tenant=name, created=now()), key)
    return plain


def tenant_with_key(name: str) -> tuple[TenantRecord, KeyRecord]:
    return TenantRecord(tenant=name, created=now()), new_key(name, ("infer",))[0]


def job(name: str, **changes: object) -> JobRecord:
    """A queued job of the tenant acme."""
    fields = {"job": name, "kind": "fine_tune", "state": "queued", "created": now(), "tenant": "acme"}
    return JobRecord.model_validate({**fields, **changes})
