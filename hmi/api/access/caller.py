"""The caller of a request, and what it may reach."""

from __future__ import annotations

from dataclasses import dataclass

from hmi.core import Scope
from hmi.errors import NotFound

ALL: frozenset[Scope] = frozenset({"infer", "manage", "admin"})
"""All scopes."""


@dataclass(frozen=True)
class Caller:
    """The bearer of a key."""

    tenant: str | None
    """The tenant of the key; None reaches every tenant."""
    scopes: frozenset[Scope]
    key_id: str = "-"

    def reaches(self, tenant: str | None) -> bool:
        """Return whether the caller may see what belongs to `tenant`, None being the administrator."""
        return self.tenant is None or self.tenant == tenant

    def must_reach(self, tenant: str | None, what: str, field: str | None = None) -> None:
        """Raise NotFound for `what`, naming `field`, unless the caller reaches `tenant`.

        The error is the same whether `what` exists or not, so that it reveals nothing of other tenants.
        """
        if not self.reaches(tenant):
            raise NotFound(f"there is no {what}: check the name", field=field)

    def only(self, tenant: str | None) -> str | None:
        """Return the tenant whose things to list; None: all. It is the one asked for, or the key's own.

        Raises NotFound if a tenant's key asks for another tenant.
        """
        if self.tenant is None:
            return tenant
        self.must_reach(tenant or self.tenant, f"tenant {tenant!r}")
        return self.tenant


ADMINISTRATOR = Caller(None, ALL)
NOBODY = Caller("", frozenset())
"""The caller of calls that need no key. No tenant can have the name ""."""
