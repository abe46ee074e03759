"""Tenants' weights, as the registry has them. Used on the event loop's thread only."""

from __future__ import annotations

from hmi.errors import HmiError
from hmi.stores.registry import Registry


class Weights:
    """A cache of weights. It holds until the registry changes, in whichever process."""

    def __init__(self, registry: Registry) -> None:
        self._registry = registry
        self._generation = -1
        self._known: dict[str, float] = {}

    def of(self, tenant: str) -> float:
        """The tenant's weight; 1 if the tenant was deleted or its record is damaged."""
        try:
            generation = self._registry.generation()
            if generation != self._generation:
                self._generation, self._known = generation, {}
            if tenant not in self._known:
                self._known[tenant] = self._registry.tenant(tenant).weight
        except HmiError:
            return 1.0
        return self._known[tenant]
