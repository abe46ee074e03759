"""Makes the overview of the server from what is in memory: the minutes of the last day and a reading."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import hmi
from hmi.api.access.caller import Caller
from hmi.api.schemas.overview import (
    CallerView,
    OverviewView,
    PointView,
    PoolView,
    QueueView,
    TenantUseView,
    UseView,
)
from hmi.api.views.minutes import Minute, MinuteStats, figures_of, total
from hmi.metrics import memory_by_tier
from hmi.metrics.reading import MetricsReading, quantile_ms
from hmi.usage import TOP_TENANTS

MOST_POINTS = 120
Stretch = Sequence[Minute]
"""Neighbouring minutes, shown as one point."""


@dataclass(frozen=True)
class ServerStatus:
    """The state of the server process, for the overview."""

    phase: str
    ready: bool
    """True if the server answers calls to infer."""
    started: str
    """When it started, in RFC 3339 UTC."""
    keyless: bool
    """True if calls need no key."""
    pool_limit_bytes: int


def overview(
    server: ServerStatus,
    caller: Caller,
    counts: dict[str, int],
    jobs: dict[str, int] | None,
    minutes: Sequence[Minute],
    reading: MetricsReading,
) -> OverviewView:
    """The overview of `minutes`, as far as `caller` may see it. counts, jobs: what the caller reaches."""
    whole = caller.tenant is None
    stretches = _stretches(minutes)
    return OverviewView(
        caller=CallerView(tenant=caller.tenant, scopes=sorted(caller.scopes), keyless=server.keyless),
        version=hmi.__version__,
        phase="draining" if server.phase == "draining" else "serving",
        ready=server.ready,
        started=server.started,
        counts=counts,
        since_start=since_start(reading, caller.tenant),
        queue=_queue(reading) if whole else None,
        pool=pool_view(reading, server.pool_limit_bytes) if whole else None,
        memory_bytes=memory_by_tier() if whole else None,
        jobs=jobs,
        plot_lookups=dict(reading.orders) if whole else None,
        points=[_point(s) if whole else _own_point(s, caller.tenant or "") for s in stretches],
        tenants=_tenants(stretches, caller.tenant),
    )


def _stretches(minutes: Sequence[Minute]) -> list[Stretch]:
    """Cut the minutes into at most MOST_POINTS stretches; the last one may be shorter."""
    step = -(-len(minutes) // MOST_POINTS)
    return [minutes[i : i + step] for i in range(0, len(minutes), step)]


def _point(minutes: Stretch) -> PointView:
    buckets = [sum(counts) for counts in zip(*(m.buckets for m in minutes), strict=True)]
    return PointView(
        **_fields(total(m.all for m in minutes)),
        at=minutes[0].at,
        seconds=sum(m.seconds for m in minutes),
        refused=sum(m.refused for m in minutes),
        failed=sum(m.failed for m in minutes),
        p50_ms=quantile_ms(buckets, 0.5),
        p95_ms=quantile_ms(buckets, 0.95),
        queue_texts=minutes[-1].queue_texts,
        known=True,
    )


def _own_point(minutes: Stretch, tenant: str) -> PointView:
    uses = [m.of(tenant) for m in minutes]
    return PointView(
        **_fields(total(use for use in uses if use is not None)),
        at=minutes[0].at,
        seconds=sum(m.seconds for m in minutes),
        refused=None,
        failed=None,
        p50_ms=None,
        p95_ms=None,
        queue_texts=None,
        known=None not in uses,
    )


def _tenants(stretches: Sequence[Stretch], own: str | None) -> list[TenantUseView]:
    """The busiest tenants over all stretches, or the caller's own."""
    kept: defaultdict[str, float] = defaultdict(float)
    for stretch in stretches:
        for minute in stretch:
            for name, at in minute.tenants.items():
                kept[name] += minute.figures[4 * at + 3]
    busiest = sorted(kept, key=lambda name: (-kept[name], name))[:TOP_TENANTS] if own is None else [own]
    return [_tenant(name, stretches) for name in busiest]


def _tenant(name: str, stretches: Sequence[Stretch]) -> TenantUseView:
    by_point = [[m.of(name) for m in stretch] for stretch in stretches]
    texts = [
        None if None in uses else round(sum(use.texts for use in uses if use is not None))
        for uses in by_point
    ]
    together = total(use for uses in by_point for use in uses if use is not None)
    return TenantUseView(**_fields(together), tenant=name, texts_by_point=texts)


def since_start(reading: MetricsReading, tenant: str | None) -> UseView:
    """The amounts that were answered, for one tenant or for all."""
    of = reading.tenants.values() if tenant is None else [reading.tenants.get(tenant, {})]
    return UseView(**_fields(total(MinuteStats(*figures_of(fields)) for fields in of)))


def _fields(use: MinuteStats) -> dict[str, Any]:
    """The fields of a UseView."""
    return {
        "requests": round(use.requests),
        "texts": round(use.texts),
        "tokens": round(use.tokens),
        "compute_ms": round(use.compute_ms, 3),
    }


def _queue(reading: MetricsReading) -> QueueView:
    oldest_ms = round(1e3 * reading.queue_oldest_s, 3)
    return QueueView(texts=reading.queue_texts, tokens=reading.queue_tokens, oldest_ms=oldest_ms)


def pool_view(reading: MetricsReading, limit_bytes: int) -> PoolView | None:
    """The modules in memory; None before the engine has a pool."""
    return None if reading.pool is None else PoolView(**vars(reading.pool), limit_bytes=limit_bytes)
