"""Tenants and their keys. A key is shown once; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from typing import Any, get_args

from pydantic import ValidationError

from hmi.core import MAX_WEIGHT, MIN_WEIGHT, KeyRecord, Limits, Scope, TenantRecord, check_name, now
from hmi.errors import InvalidInput
from hmi.manager.files import Files
from hmi.manager.parts import Parts
from hmi.tenancy import NO_LIMITS
from hmi.words import explain

TENANT_SCOPES: tuple[Scope, ...] = ("infer", "manage")


class Tenants:
    """The operations on tenants and keys."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.files = Files(parts)

    def create(self, name: str, weight: float = 1.0, limits: Limits = NO_LIMITS) -> tuple[TenantRecord, str]:
        record = TenantRecord(
            tenant=check_name(name, "tenant"), created=now(), weight=_checked(weight), limits=limits
        )
        key, plain = new_key(name, TENANT_SCOPES)
        self._parts.registry.create_tenant(record, key)
        return record, plain

    def set(self, name: str, weight: float | None, limits: Mapping[str, Any]) -> TenantRecord:
        if weight is None and not limits:
            return self._parts.registry.tenant(name)

        def change(old: TenantRecord) -> TenantRecord:
            changed: dict[str, Any] = {"limits": _with(old.limits, limits)}
            if weight is not None:
                changed["weight"] = _checked(weight)
            return old.model_copy(update=changed)

        return self._parts.registry.update_tenant(name, change)

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


def _with(old: Limits, changes: Mapping[str, Any]) -> Limits:
    """Return the limits with these changes. Raises InvalidInput, which names the limit."""
    try:
        return Limits.model_validate({**old.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["limits", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {explain(first, Limits)}", field=field) from error


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
