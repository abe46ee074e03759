"""Who calls, and what the caller may reach."""

from __future__ import annotations

from dataclasses import dataclass

from hmi.core import Scope
from hmi.errors import NotFound

ALL: frozenset[Scope] = frozenset({"infer", "manage", "admin"})


@dataclass(frozen=True)
class Caller:
    """The bearer of a key. `tenant` None reaches every tenant."""

    tenant: str | None
    scopes: frozenset[Scope]
    key_id: str = "-"

    def reaches(self, tenant: str | None) -> bool:
        return self.tenant is None or self.tenant == tenant

    def must_reach(self, tenant: str | None, what: str, field: str | None = None) -> None:
        """Raise NotFound about `what`, naming `field`: that another tenant's exists is not revealed."""
        if not self.reaches(tenant):
            raise NotFound(f"there is no {what}: check the name", field=field)

    def only(self, tenant: str | None) -> str | None:
        """The tenant to list: the asked one, or the caller's own."""
        if self.tenant is None:
            return tenant
        self.must_reach(tenant or self.tenant, f"tenant {tenant!r}")
        return self.tenant


ADMINISTRATOR = Caller(None, ALL)
NOBODY = Caller("", frozenset())
"""Calls what needs no key; no tenant is named so."""
