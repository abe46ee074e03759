"""Requests and answers about tenants and keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import Field

from hmi.api.schemas import Answer, Change, Name, Request
from hmi.core import MAX_WEIGHT, MIN_WEIGHT, Scope

WEIGHT = "The tenant's share of compute beside other tenants that wait: twice the weight, twice the time."
Weight = Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, description=WEIGHT)]


class CreateTenant(Request):
    tenant: Name
    weight: Weight = 1.0


class ChangeTenant(Change):
    """Changes to a tenant. A field that is left out is not changed; at least one must be given."""

    weight: Weight | None = None


class CreateKey(Request):
    scopes: list[Scope] = Field(default=["infer", "manage"], min_length=1, max_length=3)


class TenantView(Answer):
    tenant: str
    created: str
    weight: float = Field(description=WEIGHT)


class TenantList(Answer):
    tenants: list[TenantView]


class TenantCreated(Answer):
    """A new tenant and its first key. The key is shown only once and stored as a hash."""

    tenant: str
    key_id: str
    key: str


class TenantDeleted(Answer):
    tenant: str
    removed: dict[str, Any] = Field(description="What was deleted with the tenant, by kind.")


class KeyView(Answer):
    key_id: str
    tenant: str | None
    scopes: list[Scope]
    created: str


class KeyList(Answer):
    keys: list[KeyView]


class KeyCreated(KeyView):
    """A new key. It is shown only once and stored as a hash."""

    key: str
