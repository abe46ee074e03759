"""Tenants: their records, keys and limits."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from pydantic import Field

from hmi.record import Record, now

if TYPE_CHECKING:
    from hmi.config import Settings

KEY_PREFIX = "hmi_"
"""Every access key begins with it."""
Scope = Literal["infer", "manage", "admin"]
MIN_WEIGHT, MAX_WEIGHT = 0.001, 1000.0
"""The range of a tenant's weight."""
MAX_REQUESTS_PER_S, MAX_TOKENS_PER_S = 1e6, 1e9
MAX_MODELS, MAX_BYTES = 1_000_000, 1 << 50


class TenantLimits(Record):
    """The limits of one tenant. None: the server's default holds. 0: there is no limit."""

    requests_per_s: float | None = Field(default=None, ge=0, le=MAX_REQUESTS_PER_S, allow_inf_nan=False)
    """Calls to infer a second, in the long run. A call for several models counts once for each."""
    tokens_per_s: float | None = Field(default=None, ge=0, le=MAX_TOKENS_PER_S, allow_inf_nan=False)
    """Tokens of texts a second, in the long run."""
    models: int | None = Field(default=None, ge=0, le=MAX_MODELS)
    """The number of models."""
    bytes: int | None = Field(default=None, ge=0, le=MAX_BYTES)
    """The bytes of all versions of all models, and of stored files."""

    def over(self, defaults: TenantLimits) -> TenantLimits:
        """Return the limits that hold: these, and `defaults` where these are None.

        In the result, as in `defaults`, None means that there is no limit.
        """
        if self == NO_LIMITS:
            return defaults
        own = {name: getattr(self, name) for name in NAMES}
        return defaults.model_copy(update={name: v or None for name, v in own.items() if v is not None})


NAMES = tuple(TenantLimits.model_fields)
"""The names of the limits."""
NO_LIMITS = TenantLimits()


def default_limits(settings: Settings) -> TenantLimits:
    """Return the limits of tenants that have none of their own. None: there is no limit."""
    return TenantLimits(**{name: getattr(settings, f"tenant_{name}") or None for name in NAMES})


class TenantRecord(Record):
    tenant: str
    created: str
    weight: float = 1.0
    """The tenant's share of compute beside other tenants that wait: twice the weight, twice the time."""
    limits: TenantLimits = NO_LIMITS


class KeyRecord(Record):
    """An access key, stored as its hash. A key without `tenant` is an administrator's, for every tenant."""

    key_id: str
    sha256: str
    tenant: str | None
    scopes: tuple[Scope, ...]
    created: str
    expires: str | None = None
    """The time from which on the key is refused, in the form of `now`. None: it does not expire."""
    label: str = ""
    """A name for people, such as where the key is used."""
    successor: str | None = None
    """The id of the key that follows this one, which was rotated."""

    @property
    def expired(self) -> bool:
        """True if the key is refused, by this machine's clock."""
        return self.expires is not None and self.expires <= now()


class FileRecord(Record):
    """A file that a caller keeps on the server, such as rows for later jobs. Its content is in `files/`."""

    file: str
    """The file's id. Ids sort by time."""
    tenant: str | None
    """The tenant that owns it; None for the administrator's."""
    name: str
    """The caller's name for it. It is shown, and never becomes part of a path."""
    purpose: str
    """The caller's purpose for the file, in the words of the protocol that brought it."""
    bytes: int
    sha256: str
    created: str
    """RFC 3339 in UTC."""
