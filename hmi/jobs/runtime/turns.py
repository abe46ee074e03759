"""Turns between tenants: whose job starts next."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TypeVar

T = TypeVar("T")


class JobTurns:
    """The tenants' turns, so that no tenant holds up others. Not thread-safe."""

    def __init__(self) -> None:
        self._last: dict[str | None, int] = {}  # tenant -> its last turn
        self._turn = 0

    def first(self, waiting: Iterable[T], tenant_of: Callable[[T], str | None]) -> T:
        """Return the first of those that wait whose tenant has waited longest for its turn."""
        return min(waiting, key=lambda one: self._last.get(tenant_of(one), 0))

    def took(self, tenant: str | None) -> None:
        """Note that a job of this tenant has started."""
        self._turn += 1
        self._last[tenant] = self._turn

    def lost(self, tenant: str | None) -> None:
        """Note that the tenant's job was put back, so that it is the next one to start."""
        self._last.pop(tenant, None)
