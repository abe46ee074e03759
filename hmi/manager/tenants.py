"""Tenants and their keys. A key is shown once; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Sequence
from typing import get_args

from hmi.core import MAX_WEIGHT, MIN_WEIGHT, KeyRecord, Scope, TenantRecord, check_name, now
from hmi.errors import InvalidInput
from hmi.manager.files import Files
from hmi.manager.parts import Parts

TENANT_SCOPES: tuple[Scope, ...] = ("infer", "manage")


class Tenants:
    """The operations on tenants and keys."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.files = Files(parts)

    def create(self, name: str, weight: float = 1.0) -> tuple[TenantRecord, str]:
        record = TenantRecord(tenant=check_name(name, "tenant"), created=now(), weight=_checked(weight))
        key, plain = new_key(name, TENANT_SCOPES)
        self._parts.registry.create_tenant(record, key)
        return record, plain

    def set(self, name: str, weight: float | None) -> TenantRecord:
        if weight is None:
            return self._parts.registry.tenant(name)
        _checked(weight)
        return self._parts.registry.update_tenant(name, lambda old: old.model_copy(update={"weight": weight}))

    def create_key(
        self, tenant: str | None, scopes: Sequence[Scope], limit: int | None = None
    ) -> tuple[KeyRecord, str]:
        wrong = [s for s in scopes if s not in get_args(Scope)]
        if wrong or not scopes:
            known = ", ".join(get_args(Scope))
            raise InvalidInput(f"scopes {list(scopes)} are impossible: use some of {known}", field="scopes")
        if tenant is not None and "admin" in scopes:
            raise InvalidInput(
                "a tenant's key cannot have the scope admin: leave the tenant out", field="scopes"
            )
        key, plain = new_key(tenant, tuple(dict.fromkeys(scopes)))
        self._parts.registry.put_key(key, limit)
        return key, plain

    def delete(self, name: str) -> dict[str, int]:
        """Remove a tenant with its models, keys, jobs and files. Returns their numbers, and that of the
        artefacts to be freed."""
        self._parts.registry.tenant(name)
        self._parts.spare_artefacts(self._parts.registry.models(name))
        models, keys, jobs, files = self._parts.registry.delete_tenant(name)
        self.files.forget(files)
        self._parts.deleted_models(models)
        self._parts.runner.forget(jobs)
        artefacts = self._parts.freed_artefacts(models)
        counts = {"models": len(models), "keys": len(keys), "jobs": len(jobs), "files": len(files)}
        return {**counts, "artefacts": artefacts}


def _checked(weight: float) -> float:
    if not MIN_WEIGHT <= weight <= MAX_WEIGHT:
        raise InvalidInput(
            f"weight = {weight:g}: give a number from {MIN_WEIGHT:g} to {MAX_WEIGHT:g}", field="weight"
        )
    return weight


def new_key(tenant: str | None, scopes: tuple[Scope, ...]) -> tuple[KeyRecord, str]:
    """Generate a key of 256 random bits. Returns its record and the key in plain text."""
    plain = f"hmi_{secrets.token_urlsafe(32)}"
    record = KeyRecord(
        key_id=f"k{secrets.token_hex(8)}",
        sha256=hashlib.sha256(plain.encode()).hexdigest(),
        tenant=tenant,
        scopes=scopes,
        created=now(),
    )
    return record, plain
