"""The text of /metrics. For callers who may not learn tenants' names, the series of all tenants are
summed."""

from __future__ import annotations

from collections.abc import Iterable

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.registry import Collector

from hmi.api.views.single_flight import SingleFlight
from hmi.metrics import Metrics

SHOWN_S = 1.0
"""Age up to which the text is reused: rendering takes milliseconds, and anybody may ask."""


class CachedMetrics:
    """The cached text of /metrics: `whole` for administrators, `summed` for all others."""

    def __init__(self, metrics: Metrics) -> None:
        self.whole: SingleFlight[bytes] = SingleFlight(metrics.render, SHOWN_S)
        self.summed: SingleFlight[bytes] = SingleFlight(lambda: totals(metrics), SHOWN_S)


def totals(metrics: Metrics) -> bytes:
    """The text of `Metrics.render` without the label `tenant`: series that differ only in it are summed."""
    registry = CollectorRegistry()
    registry.register(_Totals(metrics.registry))
    return generate_latest(registry)


class _Totals(Collector):
    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            yield _summed(metric) if any("tenant" in s.labels for s in metric.samples) else metric


def _summed(metric: Metric) -> Metric:
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for sample in metric.samples:
        key = sample.name, tuple((k, v) for k, v in sample.labels.items() if k != "tenant")
        found[key] = found.get(key, 0.0) + sample.value
    result = Metric(metric.name, metric.documentation, metric.type)
    for (name, labels), value in found.items():
        result.add_sample(name, dict(labels), value)
    return result
