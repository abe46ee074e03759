"""Usage by tenant since the server started, in memory. Thread-safe."""

from __future__ import annotations

import heapq
import threading
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

TOP_TENANTS = 20
"""Tenants with metrics of their own; all others are summed."""
OTHERS = "_other"
"""The name under which these others are summed."""
RECENT_S = 30.0
"""The busiest tenants are those with the most compute lately: what is this old counts half."""


@dataclass(frozen=True)
class TenantUse:
    """One tenant's usage since the server started. `compute_ms` is its share of the batches' time."""

    requests: int = 0
    inputs: int = 0
    tokens: int = 0
    compute_ms: float = 0.0
    early: int = 0
    """Texts that left early."""
    saved_ms: float = 0.0
    """The time that the layers which these did not run would have taken."""
    small: int = 0
    """Texts that the small level of a cascade between two models answered."""
    cascaded: int = 0
    """Texts that came to a cascade that was in use, whichever level answered."""
    deep: int = 0
    """Texts that a version which computes all layers answered."""


class Usage:
    """Usage by tenant, in memory: one small record for each tenant that was active since the start."""

    def __init__(self) -> None:
        self._lock, self._ranking = threading.Lock(), threading.Lock()
        self._by_tenant: dict[str, dict[str, float]] = {}
        """The fields of `TenantUse` that are not 0, by tenant."""
        self._ranked: dict[str, tuple[float, float]] = {}
        """The compute of each tenant at the last ranking, in ms: since the start, and recently."""
        self._ranked_at = 0.0

    def add(self, tenant: str, **more: float) -> None:
        """Add to a tenant's usage. more: fields of `TenantUse`."""
        with self._lock:
            mine = self._by_tenant.setdefault(tenant, {})
            for name, value in more.items():
                mine[name] = mine.get(name, 0) + value

    def of(self, tenant: str) -> TenantUse:
        with self._lock:
            return _use_of(self._by_tenant.get(tenant, {}))

    def forget(self, tenant: str) -> None:
        """Drop a deleted tenant's usage, so that a later tenant of the same name starts from zero."""
        with self._lock:
            self._by_tenant.pop(tenant, None)

    def top(self, count: int = TOP_TENANTS) -> dict[str, TenantUse]:
        """The `count` busiest tenants of late, and the sum of the others as `_other`, which is no legal name.

        Of tenants with the same recent compute, those with more requests come first.
        """
        rows = self.all()
        recent = self._rank(rows)
        busiest = heapq.nlargest(
            count, rows, key=lambda name: (recent[name], rows[name].get("requests", 0), name)
        )
        result = {name: _use_of(rows.pop(name)) for name in busiest}
        other: Counter[str] = Counter()
        for fields in rows.values():
            other.update(fields)
        return {**result, OTHERS: _use_of(other)} if rows else result

    def all(self) -> dict[str, dict[str, float]]:
        """The fields of `TenantUse` that are not 0, of every tenant that was active since the start."""
        with self._lock:
            live = dict(self._by_tenant)
        # Outside the lock, which batches' accounting waits for. A copy of one dict is atomic.
        return {tenant: fields.copy() for tenant, fields in live.items()}

    def _rank(self, rows: Mapping[str, Mapping[str, float]]) -> dict[str, float]:
        """Each tenant's recent compute; computed at scrapes, so that a batch's accounting stays short."""
        with self._ranking:
            at = time.monotonic()
            left = 0.5 ** ((at - self._ranked_at) / RECENT_S)
            ranked = {}
            for name, use in rows.items():
                before, recent = self._ranked.get(name, (0.0, 0.0))
                compute_ms = use.get("compute_ms", 0.0)
                ranked[name] = compute_ms, recent * left + max(0.0, compute_ms - before)
            self._ranked, self._ranked_at = ranked, at
            return {name: recent for name, (_, recent) in ranked.items()}


def _use_of(fields: Mapping[str, float]) -> TenantUse:
    return TenantUse(**fields)  # type: ignore[arg-type]
