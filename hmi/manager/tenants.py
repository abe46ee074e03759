"""Tenants and their keys. A key is shown once; only its SHA-256 is stored."""

from __future__ import annotations

import hashlib
import secrets
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, get_args

from pydantic import ValidationError

from hmi.core import MAX_WEIGHT, MIN_WEIGHT, KeyRecord, Scope, TenantLimits, TenantRecord, check_name, now
from hmi.errors import InvalidInput
from hmi.manager.files import FileOperations
from hmi.manager.parts import Parts
from hmi.record import time_text
from hmi.tenancy import KEY_PREFIX, NO_LIMITS
from hmi.words import explain

TENANT_SCOPES: tuple[Scope, ...] = ("infer", "manage")


MAX_OVERLAP_S = 90 * 86_400
"""The longest overlap of a key and its successor, in seconds."""
MAX_KEY_DAYS = 3650
"""The longest life of a key that expires."""


@dataclass(frozen=True)
class Rotated:
    """A key and its successor."""

    old: KeyRecord
    new: KeyRecord
    plain: str
    """The new key itself."""


class TenantOperations:
    """The operations on tenants and keys."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.files = FileOperations(parts)

    def create(
        self, name: str, weight: float = 1.0, limits: TenantLimits = NO_LIMITS
    ) -> tuple[TenantRecord, str]:
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
            changed: dict[str, Any] = {"limits": _change_limits(old.limits, limits)}
            if weight is not None:
                changed["weight"] = _checked(weight)
            return old.model_copy(update=changed)

        return self._parts.registry.update_tenant(name, change)

    def create_key(
        self,
        tenant: str | None,
        scopes: Sequence[Scope],
        limit: int | None = None,
        *,
        expires: datetime | None = None,
        label: str = "",
    ) -> tuple[KeyRecord, str]:
        """Create a key. Returns it in plain text, too, which is not stored.

        tenant: None: the key reaches all tenants. limit: how many keys the tenant may have. expires: None:
        never. Raises InvalidInput, NotFound, QuotaExceeded.
        """
        wrong = [s for s in scopes if s not in get_args(Scope)]
        if wrong or not scopes:
            known = ", ".join(get_args(Scope))
            raise InvalidInput(f"scopes {list(scopes)} are impossible: use some of {known}", field="scopes")
        if tenant is not None and "admin" in scopes:
            raise InvalidInput(
                "a tenant's key cannot have the scope admin: leave the tenant out", field="scopes"
            )
        until = None if expires is None else checked_expiry(expires)
        key, plain = new_key(tenant, tuple(dict.fromkeys(scopes)), until, label)
        self._parts.registry.put_key(key, limit)
        return key, plain

    def rotate_key(
        self,
        key_id: str,
        overlap_s: float,
        limit: int | None = None,
        *,
        expires: datetime | None = None,
        label: str | None = None,
    ) -> Rotated:
        """Issue a key that follows another one, with the same scopes. The old key expires after `overlap_s`.

        expires: None: the new key lives as long as the old one was issued for. label: None: the old one's.
        Raises InvalidInput, NotFound, Conflict (the old key has expired, or was rotated), QuotaExceeded.
        """
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidInput(
                f"overlap_s = {overlap_s:g}: give a number of seconds from 0 to {MAX_OVERLAP_S}",
                field="overlap_s",
            )
        until = None if expires is None else checked_expiry(expires)
        plains: list[str] = []

        def successor(old: KeyRecord) -> KeyRecord:
            lasts = until or _as_long_as(old)
            new, plain = new_key(old.tenant, old.scopes, lasts, old.label if label is None else label)
            plains.append(plain)
            return new

        ends = time_text(datetime.now(UTC) + timedelta(seconds=overlap_s))
        old, new = self._parts.registry.key_ring.rotate(key_id, ends, successor, limit)
        return Rotated(old, new, plains[-1])

    def reissue_key(self, key_id: str) -> tuple[KeyRecord, str]:
        """Replace a key by another one of the same id, scopes and expiry. Raises NotFound."""
        plain = _plain_key()
        return self._parts.registry.key_ring.reissue(key_id, _sha256(plain)), plain

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


def _change_limits(old: TenantLimits, changes: Mapping[str, Any]) -> TenantLimits:
    """Return the limits with these changes. Raises InvalidInput, which names the limit."""
    try:
        return TenantLimits.model_validate({**old.model_dump(), **changes})
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(["limits", *map(str, first["loc"])])
        raise InvalidInput(f"{field}: {explain(first, TenantLimits)}", field=field) from error


def checked_expiry(expires: datetime) -> str:
    """Return the time at which a key expires as records have it. Raises InvalidInput."""
    try:
        until = time_text(expires) if expires.tzinfo is not None else ""
    except OverflowError:
        until = ""
    latest = time_text(datetime.now(UTC) + timedelta(days=MAX_KEY_DAYS))
    if not now() < until <= latest:
        raise InvalidInput(
            f"expires = {expires.isoformat()} is not a time in the next {MAX_KEY_DAYS} days: give a later "
            "one, with its offset, such as 2030-01-31T12:00:00Z",
            field="expires",
        )
    return until


def _as_long_as(old: KeyRecord) -> str | None:
    """Return when a key expires that is issued now for as long as `old` was; None: never."""
    if old.expires is None:
        return None
    lasted = datetime.fromisoformat(old.expires) - datetime.fromisoformat(old.created)
    return time_text(datetime.now(UTC) + lasted)


def new_key(
    tenant: str | None, scopes: tuple[Scope, ...], expires: str | None = None, label: str = ""
) -> tuple[KeyRecord, str]:
    """Generate a key of 256 random bits. Returns its record and the key in plain text."""
    plain = _plain_key()
    record = KeyRecord(
        key_id=f"k{secrets.token_hex(8)}",
        sha256=_sha256(plain),
        tenant=tenant,
        scopes=scopes,
        created=now(),
        expires=expires,
        label=label,
    )
    return record, plain


def _plain_key() -> str:
    return f"{KEY_PREFIX}{secrets.token_urlsafe(32)}"


def _sha256(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()
