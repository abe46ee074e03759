"""A reading of the few metrics that the page shows: how many answers, how fast, and what waits.

It reads the same counters as /metrics, but only these, so that it takes about a millisecond.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import inf, isinf

from prometheus_client.core import Metric

from hmi.metrics import SECONDS, Metrics

NAMES = ("hmi_requests_total", "hmi_request_seconds_bucket", "hmi_plot_lookups_total")
REFUSALS = ("quota_exceeded", "unavailable", "deadline_exceeded")
"""Outcomes of calls that were not answered for want of time or room."""
FAILURES = ("internal", "damaged")
"""Outcomes that are the server's fault."""


@dataclass(frozen=True)
class PoolReading:
    """The modules in memory, and how often one was there or had to be loaded or dropped."""

    bytes: int
    hits: int
    misses: int
    evictions: int


@dataclass(frozen=True)
class MetricsReading:
    """Counts since the server started, and what waits and lies in memory at the moment."""

    outcomes: Mapping[str, int]
    """Calls to infer by outcome: `ok`, or the kind of the error."""
    buckets: Sequence[int]
    """[len(SECONDS) + 1]: calls to infer by the time of their answer; the last are those over all bounds."""
    tenants: Mapping[str, Mapping[str, float]]
    """The fields of `TenantUse` that are not 0, of every tenant that was active since the start."""
    queue_texts: int = 0
    queue_tokens: int = 0
    queue_oldest_s: float = 0.0
    pool: PoolReading | None = None
    orders: Mapping[str, int] = field(default_factory=dict)
    """Tokens looked up, by the n-gram that answered."""


def read(metrics: Metrics, routes: frozenset[str]) -> MetricsReading:
    """Read the metrics. routes: the patterns of the routes whose calls are calls to infer."""
    found = {m.name: m for m in metrics.registry.restricted_registry(NAMES).collect()}
    texts, oldest_s = (0, 0.0) if metrics.queue is None else metrics.queue[1]()
    pool = metrics.pool
    return MetricsReading(
        outcomes=_sums_by_label(found.get("hmi_requests"), "outcome", routes),
        buckets=_buckets(found.get("hmi_request_seconds"), routes),
        tenants=metrics.usage.all(),
        queue_texts=texts,
        queue_tokens=0 if metrics.queue is None else metrics.queue[0](),
        queue_oldest_s=oldest_s,
        pool=None if pool is None else PoolReading(pool.bytes, pool.hits, pool.misses, pool.evictions),
        orders=_sums_by_label(found.get("hmi_plot_lookups"), "order"),
    )


def _sums_by_label(metric: Metric | None, label: str, routes: frozenset[str] | None = None) -> dict[str, int]:
    """The samples' sums by one label; of these routes only, if any are given."""
    sums: Counter[str] = Counter()
    for sample in () if metric is None else metric.samples:
        if label in sample.labels and (routes is None or sample.labels["route"] in routes):
            sums[sample.labels[label]] += int(sample.value)
    return dict(sums)


def _buckets(metric: Metric | None, routes: frozenset[str]) -> list[int]:
    """A histogram's counts by bucket, summed over these routes. Prometheus' own buckets are cumulative."""
    upto = _sums_by_label(metric, "le", routes)
    sums = [upto.get(le, 0) for le in sorted(upto, key=float)] or [0] * (len(SECONDS) + 1)
    return [after - before for before, after in zip([0, *sums], sums, strict=False)]


def quantile_ms(buckets: Sequence[int], share: float) -> float | None:
    """Return the time in ms that this share of the calls stayed below, by `quantile`; None without calls."""
    if not buckets:
        return None
    seconds = quantile(list(zip((*SECONDS, inf), accumulate(buckets), strict=True)), share)
    return None if seconds is None else 1e3 * seconds


def quantile(upto: Sequence[tuple[float, float]], share: float) -> float | None:
    """Return what this share of a histogram's observations stayed below, as Prometheus estimates it.

    upto: each bucket's upper bound, with the number of observations up to it. Within a bucket, observations
    are taken as evenly spread. Beyond the last finite bound, the bound is returned. Without observations,
    returns None.
    """
    if not upto or upto[-1][1] <= 0:
        return None
    wanted = share * upto[-1][1]
    lower = below = 0.0
    for upper, count in upto:
        if count >= wanted:
            return lower if isinf(upper) else lower + (upper - lower) * (wanted - below) / (count - below)
        lower, below = upper, count
    return lower
