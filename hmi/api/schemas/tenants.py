"""Requests and answers about tenants and keys."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import AwareDatetime, Field, StringConstraints

from hmi.api.schemas.shared import Answer, Change, Name, Request
from hmi.core import MAX_WEIGHT, MIN_WEIGHT, Scope
from hmi.manager.tenants import MAX_OVERLAP_S
from hmi.tenancy import MAX_BYTES, MAX_MODELS, MAX_REQUESTS_PER_S, MAX_TOKENS_PER_S

WEIGHT = "The tenant's share of compute beside other tenants that wait: twice the weight, twice the time."
Weight = Annotated[float, Field(ge=MIN_WEIGHT, le=MAX_WEIGHT, description=WEIGHT)]


REQUESTS = "Calls to infer a second, in the long run. A call for several models counts once for each."
TOKENS = "Tokens of texts a second, in the long run."
BYTES = "Bytes of all versions of all models, and of stored files."
Each = Annotated[float, Field(ge=0, le=MAX_REQUESTS_PER_S, description=REQUESTS)]
EachToken = Annotated[float, Field(ge=0, le=MAX_TOKENS_PER_S, description=TOKENS)]
Models = Annotated[int, Field(ge=0, le=MAX_MODELS, description="The number of models.")]
Bytes = Annotated[int, Field(ge=0, le=MAX_BYTES, description=BYTES)]


class SetLimits(Request):
    """Limits of a tenant. One that is left out does not change. null: the server's default holds. 0: no
    limit."""

    requests_per_s: Each | None = None
    tokens_per_s: EachToken | None = None
    models: Models | None = None
    bytes: Bytes | None = None


class LimitsView(Answer):
    """Limits of a tenant of its own. null: the server's default holds. 0: no limit."""

    requests_per_s: Each | None
    tokens_per_s: EachToken | None
    models: Models | None
    bytes: Bytes | None


class CreateTenant(Request):
    tenant: Name
    weight: Weight = 1.0
    limits: SetLimits = SetLimits()


class ChangeTenant(Change):
    """Changes to a tenant. A field that is left out is not changed; at least one must be given."""

    weight: Weight | None = None
    limits: SetLimits | None = None


Label = Annotated[
    str,
    StringConstraints(max_length=100, pattern=r"^[^\x00-\x1f\x7f]*$"),
    Field(description="A name for people, such as where the key is used."),
]
Expires = Annotated[AwareDatetime, Field(description="The time from which on the key is refused.")]


class CreateKey(Request):
    scopes: list[Scope] = Field(default=["infer", "manage"], min_length=1, max_length=3)
    expires: Expires | None = Field(default=None, description="Null: the key does not expire.")
    label: Label = ""


class RotateKey(Request):
    overlap_s: float = Field(
        default=3600.0, ge=0, le=MAX_OVERLAP_S, description="Seconds for which the old key works on."
    )
    expires: Expires | None = Field(
        default=None, description="Null: the new key lives as long as the old one was issued for."
    )
    label: Label | None = Field(default=None, description="Null: the old key's.")


class TenantView(Answer):
    tenant: str
    created: str
    weight: float = Field(description=WEIGHT)
    limits: LimitsView


class RateState(Answer):
    """A limit that is a rate, and what is left of it."""

    per_s: float
    burst: float = Field(description="The most that may be sent at once, after a pause.")
    left: float = Field(description="What may be sent now; below 0 after calls that had more than was left.")
    full_s: float = Field(description="Seconds until all of `burst` may be sent again.")


class StoreState(Answer):
    """A limit on what is stored, and what is left of it."""

    limit: int
    used: int
    left: int


class QuotaView(Answer):
    """The limits that hold for a tenant, its own or the server's defaults. null: there is no limit."""

    requests_per_s: RateState | None
    tokens_per_s: RateState | None
    models: StoreState | None
    bytes: StoreState | None


class TenantDetails(TenantView):
    """A tenant, and how much of its limits it has used."""

    quota: QuotaView


class UsageView(Answer):
    """A tenant's use of the server since its start, and what the tenant stores."""

    tenant: str
    since: str
    requests: int
    inputs: int = Field(description="Texts.")
    deep_inputs: int = Field(description="Of these, texts that were computed through all layers.")
    tokens: int
    compute_ms: float
    models: int
    model_bytes: int
    file_bytes: int
    row_bytes: int = Field(description="Rows that are kept for background jobs `improve`.")
    quota: QuotaView


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
    label: str
    expires: str | None = Field(description="Null: the key does not expire.")
    expired: bool
    successor: str | None = Field(description="The id of the key that follows this one, if it was rotated.")
    last_used: str | None = Field(description="To the hour; null: not yet, or not since keys were counted.")


class KeyList(Answer):
    keys: list[KeyView]


class KeyCreated(KeyView):
    """A new key. It is shown only once and stored as a hash."""

    key: str


class KeyRotated(KeyCreated):
    """A new key, and the one that it follows."""

    replaces: str = Field(description="The id of the old key.")
    old_expires: str = Field(description="Until when the old key works.")
