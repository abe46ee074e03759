"""The ring of minutes: what each keeps, of whom, and for how long."""

from __future__ import annotations

from dataclasses import replace

from hmi.api.views.minutes import BUSIEST, KEPT, Minutes, MinuteStats
from hmi.metrics import SECONDS, Metrics
from hmi.metrics.reading import MetricsReading, quantile_ms, read

NOTHING = MetricsReading(outcomes={}, buckets=[0] * (len(SECONDS) + 1), tenants={})


def used(**tenants: float) -> MetricsReading:
    """A reading after these tenants have used so many ms of compute, a text for each."""
    uses = {
        name: {"requests": 1, "inputs": int(ms), "tokens": 9, "compute_ms": ms}
        for name, ms in tenants.items()
    }
    return replace(NOTHING, tenants=uses)


async def test_a_minute_is_what_was_added_since_the_last() -> None:
    minutes = Minutes(lambda: used(acme=12.0, globex=1.0))
    minutes.end(used(acme=17.0, globex=1.0), 60.0)
    minutes.end(used(acme=17.0, globex=3.0, new=4.0), 120.0)
    (first, second, _), _ = await minutes.last(3)
    assert first.of("acme") == MinuteStats(0, 5, 0, 5.0)
    assert first.of("globex") == first.of("nobody") == MinuteStats()
    assert second.of("new") == MinuteStats(1, 4, 9, 4.0)
    assert second.all == MinuteStats(1, 6, 9, 6.0)
    assert second.at == 60.0


async def test_the_present_minute_is_the_last() -> None:
    now = used(acme=1.0)
    minutes = Minutes(lambda: now)
    minutes.end(now, 60.0)
    now = used(acme=8.0)
    (only,), reading = await minutes.last(1)
    assert only.of("acme") == MinuteStats(0, 7, 0, 7.0)
    assert reading is now


async def test_memory_is_bounded_in_minutes_and_in_tenants() -> None:
    many = {f"t{i}": float(i + 1) for i in range(BUSIEST + 10)}
    minutes = Minutes(lambda: NOTHING)
    minutes.end(used(**many), 60.0)
    ((minute, _), _) = await minutes.last(2)
    assert len(minute.tenants) == BUSIEST
    assert len(minute.figures) == 4 * BUSIEST
    assert minute.of("t0") is None, "its figures were not kept, so they are not said to be 0"
    assert minute.of(f"t{BUSIEST + 9}") == MinuteStats(1, BUSIEST + 10, 9, BUSIEST + 10.0)
    for i in range(KEPT + 5):
        minutes.end(NOTHING, 120.0 + i)
    assert len((await minutes.last(10 * KEPT))[0]) == KEPT + 1


async def test_a_deleted_tenants_figures_are_gone() -> None:
    minutes = Minutes(lambda: NOTHING)
    minutes.end(used(acme=5.0, globex=2.0), 60.0)
    minutes.forget("acme")
    minutes.end(used(acme=9.0, globex=2.0), 120.0)  # another tenant of the same name, since then
    (first, second, _), _ = await minutes.last(3)
    assert first.of("acme") == MinuteStats()
    assert first.of("globex") == MinuteStats(1, 2, 9, 2.0)
    assert second.of("acme") == MinuteStats(1, 9, 9, 9.0)


def test_a_reading_counts_only_the_calls_to_infer() -> None:
    metrics = Metrics()
    for seconds in (0.004, 0.004, 0.3):
        metrics.request("/infer/{model}", "ok", seconds)
    metrics.request("/infer/{model}", "quota_exceeded", 0.001)
    metrics.request("/manage/models", "ok", 20.0)
    reading = read(metrics, frozenset({"/infer/{model}", "/infer"}))
    assert reading.outcomes == {"ok": 3, "quota_exceeded": 1}
    assert sum(reading.buckets) == 4
    assert reading.buckets[SECONDS.index(0.5)] == 1
    assert reading.pool is None


def test_quantiles_lie_within_their_bucket() -> None:
    buckets = [0] * (len(SECONDS) + 1)
    assert quantile_ms(buckets, 0.5) is None
    buckets[SECONDS.index(0.005)] = 10
    assert quantile_ms(buckets, 0.5) == 3.5
    assert quantile_ms(buckets, 1.0) == 5.0
    buckets[-1] = 1000
    assert quantile_ms(buckets, 0.95) == 1e3 * SECONDS[-1]
