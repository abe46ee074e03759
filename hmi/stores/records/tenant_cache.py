"""A cache of tenants' records, which holds until the registry changes, in whichever process."""

from __future__ import annotations

from hmi.core import TenantLimits, TenantRecord
from hmi.errors import HmiError
from hmi.stores.records.registry import Registry

MOST = 20_000
"""The most tenants in the cache, about 1 kB each. One more empties it."""


class TenantCache:
    """Tenants' records, as the registry has them. For one thread.

    While nothing changes, a look-up takes about a microsecond.
    """

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._known: dict[str, TenantRecord] = {}
        self._limits: dict[str, TenantLimits] = {}

    def record(self, tenant: str) -> TenantRecord | None:
        """The tenant's record; None if the tenant was deleted or its record is damaged."""
        try:
            generation = self._registry.generation()
            if generation != self._generation or len(self._known) > MOST:
                self._generation, self._known, self._limits = generation, {}, {}
            if tenant not in self._known:
                self._known[tenant] = self._registry.tenant(tenant)
        except HmiError:
            return None
        return self._known[tenant]

    def weight(self, tenant: str) -> float:
        """The tenant's weight; 1 if the tenant was deleted or its record is damaged."""
        record = self.record(tenant)
        return 1.0 if record is None else record.weight

    def limits(self, tenant: str) -> TenantLimits:
        """The limits that hold for a tenant; the defaults if it was deleted or its record is damaged.

        The same object is returned as long as nothing changes.
        """
        record, defaults = self.record(tenant), self._registry.defaults
        if record is None:
            return defaults
        if tenant not in self._limits:
            self._limits[tenant] = record.limits.over(defaults)
        return self._limits[tenant]
