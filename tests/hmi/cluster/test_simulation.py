"""The simulation of many servers, beside closed forms, plain LRU caches and the servers' own constants."""

from __future__ import annotations

import math
from collections import Counter, OrderedDict
from dataclasses import fields, replace

import numpy as np
import pytest

from hmi.api.nodes import servers as nodes
from hmi.api.nodes.ring import ranked
from hmi.cluster.simulation import replica
from hmi.cluster.simulation.clock import Clock
from hmi.cluster.simulation.outcome import Figures, Outcome
from hmi.cluster.simulation.parameters import Cluster, Costs, Load, Prices
from hmi.cluster.simulation.run import simulate
from hmi.cluster.simulation.warm import kept_s, last_uses, lru, rows_in_memory, zipf
from hmi.config import Settings
from hmi.engine.admit import loading
from hmi.errors import InvalidInput

FREE = Costs(
    call_s=0.0, forward_s=0.0, batch_s=0.0, text_s=0.0, token_s=1e-3, wait_s=0.0, load_s=0.0, batch_most_s=0.0
)
"""Only tokens cost anything, and a batch has one text."""
ONE = Load(calls_s=50.0, tenants=1, tokens=10.0, spread=0.0, domains=1, ngrams=1)
SMALL = Load(calls_s=400.0, tenants=2_000, domains=20, ngrams=100_000)


def mean_s(outcome: Outcome) -> float:
    took = outcome.seen[:, 1]
    assert (took >= 0).all()
    return float(took.mean())


def test_the_wait_is_that_of_a_queue_with_constant_work() -> None:
    """Pollaczek and Khinchine: in M/D/1, work of s seconds that fills the share b waits b s / (2 (1 - b))."""
    work = 0.01
    for busy in (0.3, 0.5, 0.7):
        load = replace(ONE, calls_s=busy / work)
        found = simulate(FREE, load, Cluster(1), seconds=8_000 / load.calls_s, settle_s=2.0)
        assert mean_s(found) == pytest.approx(work + busy * work / (2 * (1 - busy)), rel=0.05)
        assert found.busy == pytest.approx(busy, rel=0.05)


def test_the_event_loop_is_a_queue_too() -> None:
    costs = replace(FREE, token_s=0.0, call_s=0.01)
    found = simulate(costs, ONE, Cluster(1), seconds=160.0, settle_s=2.0)
    assert mean_s(found) == pytest.approx(0.015, rel=0.05)
    assert found.loop == pytest.approx(0.5, rel=0.05)


def test_works_share_cores_alike() -> None:
    ended: list[tuple[str, float]] = []
    clock = Clock(cores=1.0)
    clock.work(1.0, lambda: ended.append(("first", clock.now)))
    clock.wait(0.5, lambda: clock.work(1.0, lambda: ended.append(("second", clock.now))))
    clock.run(10.0)
    # Alone until .5, then both at half the speed until 1.5, when the first has had its second.
    assert [name for name, _ in ended] == ["first", "second"]
    assert [at for _, at in ended] == pytest.approx([1.5, 2.0])
    assert clock.now == 10.0


def test_other_programs_take_their_part() -> None:
    ended: list[float] = []
    clock = Clock(cores=2.0, others=3.0)
    clock.work(1.0, lambda: ended.append(clock.now))
    clock.run(10.0)
    assert ended == pytest.approx([2.0])


def test_servers_on_one_core_are_one_queue_that_all_share() -> None:
    """Of M/G/1 with equal shares for all, the mean time is s / (1 - b), whatever the works are."""
    load = replace(ONE, calls_s=50.0, tenants=1_000, zipf=0.0)
    found = simulate(FREE, load, Cluster(50, "random", cores=1.0), seconds=160.0, settle_s=2.0)
    assert mean_s(found) == pytest.approx(0.01 / 0.5, rel=0.08)


def test_an_lru_cache_holds_what_was_used_last() -> None:
    """Warm caches beside a cache that was filled by a million uses, and Che's approximation."""
    draw, room = np.random.default_rng(1), 100
    rates = zipf(1_000, 0.9)
    cache: OrderedDict[int, None] = OrderedDict()
    hits = 0
    for i, tenant in enumerate(draw.choice(1_000, 60_000, p=rates).tolist()):
        hits += i >= 10_000 and tenant in cache
        cache[tenant] = None
        cache.move_to_end(tenant)
        if len(cache) > room:
            cache.popitem(last=False)
    che = float(rates @ -np.expm1(-rates * kept_s(rates, np.ones(1_000), room)))
    assert che == pytest.approx(hits / 50_000, abs=0.01)
    warm = [rates[lru(last_uses(rates, draw), room)].sum() for _ in range(50)]
    assert float(np.mean(warm)) == pytest.approx(che, abs=0.01)


def test_che_fills_the_room() -> None:
    rates, sizes = zipf(500, 1.0), np.linspace(1.0, 3.0, 500)
    assert float(sizes @ -np.expm1(-rates * kept_s(rates, sizes, 200.0))) == pytest.approx(200.0, rel=1e-4)
    assert kept_s(rates, sizes, 1e9) == math.inf


def test_a_simulated_cache_hits_as_often_as_che_says() -> None:
    costs = Costs(load_s=0.0)
    room, load = 200, replace(SMALL, zipf=0.8)
    for routing, sharers in (("tenant", 1), ("random", 4)):
        cluster = Cluster(4, routing, pool_bytes=room * costs.module_bytes)  # type: ignore[arg-type]
        found = simulate(costs, load, cluster, seconds=60.0, settle_s=5.0).figures
        # By tenant the four memories are one of four times the room; at random each sees all tenants.
        rates = zipf(load.tenants, load.zipf)
        kept = kept_s(rates, np.ones(load.tenants), room * 4 / sharers)
        assert found.module_memory == pytest.approx(float(rates @ -np.expm1(-rates * kept)), abs=0.02)
        assert found.module_memory + found.module_disk + found.module_bucket == pytest.approx(1.0)


def test_rows_in_memory() -> None:
    look_ups = np.full(10, 5.0)
    everything = rows_in_memory(look_ups, 1e5, 1_000, 0.7, 2e9)
    assert (everything == 1).all()
    shares = [float(rows_in_memory(look_ups, 1e5, 1_000, 0.7, room)[0]) for room in (1e7, 1e8, 9e8)]
    assert 0 < shares[0] < shares[1] < shares[2] < 1
    # Rows that are all asked alike, a page each: the share in memory is that of the bytes.
    assert rows_in_memory(look_ups, 1e4, 4096, 0.0, 4096e4)[0] == pytest.approx(0.1, rel=0.02)


def test_one_seed_gives_one_outcome() -> None:
    runs = [simulate(Costs(), SMALL, Cluster(5), seconds=3.0, seed=seed) for seed in (1, 1, 2)]
    assert (runs[0].seen == runs[1].seen).all()
    assert runs[0].figures == runs[1].figures
    assert runs[0].figures != runs[2].figures


def test_calls_go_where_the_servers_would_send_them() -> None:
    """At a low load each tenant is answered by its first server; (n - 1) / n of the calls are passed on."""
    load = replace(SMALL, calls_s=50.0)
    found = simulate(Costs(), load, Cluster(10), seconds=60.0)
    assert found.figures.passed == pytest.approx(0.9, abs=0.03)
    assert found.figures.spilled == 0
    assert found.copies == 1.0
    direct = simulate(Costs(), replace(load, direct=1.0), Cluster(10), seconds=60.0)
    assert direct.figures.passed == 0  # callers know the servers from before
    assert direct.figures.p50_s < found.figures.p50_s


def test_a_tenant_of_many_calls_spills_to_further_servers() -> None:
    load = Load(calls_s=600.0, tenants=10, zipf=8.0, tokens=200.0, domains=1, ngrams=1_000)
    found = simulate(Costs(), load, Cluster(8), seconds=10.0)
    assert found.figures.spilled > 0.2
    assert found.several > 0
    assert found.figures.p99_s < 3.0
    assert found.figures.failed == 0


def test_servers_that_vanish_move_only_their_tenants() -> None:
    names = [f"server-{i}" for i in range(9)]
    before = {i: ranked(f"t{i}", names)[0] for i in range(2_000)}
    after = {i: ranked(f"t{i}", names[3:])[0] for i in range(2_000)}
    moved = {i for i in before if before[i] != after[i]}
    assert moved == {i for i in before if before[i] in names[:3]}
    assert max(Counter(after.values()).values()) < 1.25 * 2_000 / 6


def test_a_zone_is_lost() -> None:
    costs = replace(Costs(), unreachable_s=0.5, gone_s=6.0)
    load = replace(SMALL, calls_s=300.0)
    cluster = Cluster(9, lost=3, lost_s=10.0, balancer_s=2.0)
    found = simulate(costs, load, cluster, seconds=40.0)
    spans = dict(found.windows(2.0))
    assert len(spans) == 20
    assert spans[8.0].failed <= 2  # those under way at that moment
    assert spans[10.0].failed == pytest.approx(0.333 * spans[10.0].calls, rel=0.3)
    assert all(spans[at].failed == 0 for at in spans if at >= 14.0)
    assert spans[10.0].p99_s > 0.5  # who is asked to pass a call on must notice
    assert spans[10.0].module_bucket > 0.1 > 0.01 > spans[8.0].module_bucket
    assert spans[38.0].p99_s < 0.1
    assert found.recovered_s(10.0, 2.0) == 2.0
    assert found.recovered_s(2.0, 2.0) is None  # tenants of few calls come for minutes


def test_a_call_waits_for_a_plot_once() -> None:
    costs = replace(Costs(), bucket_s=0.5)
    load = replace(SMALL, calls_s=50.0, tenants=5, domains=5, ngrams=5)
    found = simulate(costs, load, Cluster(2, served_s=0.0), seconds=20.0, settle_s=0.0)
    cold, waited = found.figures, found.seen[found.seen[:, 3] == replica.BUCKET]
    assert 0 < cold.plot_bucket < 0.5
    assert 0.5 < waited[:, 1].max() < 0.6
    assert cold.module_memory == 1.0  # five modules fit
    warm = simulate(costs, load, Cluster(2, served_s=1e6), seconds=20.0, settle_s=0.0).figures
    assert warm.plot_bucket == 0


def test_a_domain_on_one_server_needs_less_disk() -> None:
    by = {
        routing: simulate(Costs(), SMALL, Cluster(10, routing), seconds=1.0)
        for routing in ("tenant", "domain", "random")
    }
    all_plots = SMALL.ngrams * Costs().gram_bytes
    assert by["domain"].plot_disk_bytes == pytest.approx(all_plots / 10, rel=0.01)
    assert by["tenant"].plot_disk_bytes == pytest.approx(all_plots, rel=0.01)
    assert by["random"].module_disk_bytes == pytest.approx(10 * by["tenant"].module_disk_bytes, rel=0.01)
    prices = Prices(server_hour=1.0, disk_month=0.1, bucket_month=0.02)
    assert by["domain"].cost(prices) < by["tenant"].cost(prices) < by["random"].cost(prices)
    servers = 10 * 730 * 1.0 / SMALL.tenants
    assert servers < by["domain"].cost(prices) < 1.01 * servers


def test_a_tenant_with_more_calls_than_a_server_can_answer_has_several() -> None:
    load = Load(700, tenants=100, zipf=1.2, domains=1, ngrams=10_000)
    found = simulate(Costs(call_s=5e-3), load, Cluster(10), seconds=10.0)
    alone = 0.28 * load.calls_s * 5e-3 + load.calls_s / 10 * 6e-3
    assert alone > 1.2, "its own server would have too much to do, with its part of the others' calls"
    assert 0.05 < found.figures.spilled < 0.5
    assert found.figures.p99_s < 1.0


def test_constants_are_the_servers() -> None:
    assert replica.MODULE_THREADS == loading.MODULE_THREADS
    costs = Costs()
    assert costs.batch_most_s == Settings().batch_ms / 1e3
    assert costs.unreachable_s == nodes.HUNG_S + nodes.ALIVE_S
    assert costs.gone_s == nodes.GONE_S + nodes.LOOK_ROUND_S


def test_figures_are_whole() -> None:
    found = simulate(Costs(), SMALL, Cluster(3), seconds=5.0)
    assert all(math.isfinite(getattr(found.figures, field.name)) for field in fields(Figures))
    assert found.figures.calls_s == pytest.approx(SMALL.calls_s, rel=0.1)
    assert found.between(found.begin_s, found.end_s) == found.figures


def test_wrong_parameters_are_named() -> None:
    with pytest.raises(InvalidInput, match="replicas"):
        Cluster(3, lost=3)
    with pytest.raises(InvalidInput, match="calls_s is 0"):
        Load(calls_s=0.0)
    with pytest.raises(InvalidInput, match="direct is 2"):
        Load(calls_s=1.0, direct=2.0)
