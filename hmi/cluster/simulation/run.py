"""Runs a simulation: calls arrive, servers pass them to each other, answer them, and some servers vanish."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from collections.abc import Callable
from functools import partial

import numpy as np
from numpy.typing import NDArray

from hmi.api.nodes.ring import Ring, ranked
from hmi.cluster.simulation.clock import Clock
from hmi.cluster.simulation.outcome import Answered, Outcome, figures_of
from hmi.cluster.simulation.parameters import Cluster, Costs, Load
from hmi.cluster.simulation.replica import Call, Replica
from hmi.cluster.simulation.warm import Floats, last_uses, lru, rows_in_memory, zipf

DRAIN_S = 60.0
"""Time after the last arrival in which calls are still answered."""
MOST_ORDERS = 65536


def simulate(
    costs: Costs, load: Load, cluster: Cluster, *, seconds: float, settle_s: float = 5.0, seed: int = 0
) -> Outcome:
    """Simulate servers for `seconds`, after `settle_s` that do not count. One seed gives one outcome.

    It begins with caches as they are after a long time under this load, and with empty queues.
    """
    return _Simulation(costs, load, cluster, settle_s, settle_s + seconds, seed).run()


class _Orders:
    """The servers in each key's order, for all servers of a simulation: they see the same servers."""

    def __init__(self) -> None:
        self._servers: tuple[str, ...] = ()
        self._orders: dict[str, list[str]] = {}

    def of(self, key: str, servers: tuple[str, ...]) -> list[str]:
        if servers != self._servers or len(self._orders) >= MOST_ORDERS:
            self._servers = servers
            self._orders.clear()
        order = self._orders.get(key)
        if order is None:
            order = self._orders[key] = ranked(key, servers)
        return order


class _Ring(Ring):
    """A server's ring. It shares the orders of keys with others: 200 servers' own would fill the memory."""

    def __init__(self, me: str, orders: _Orders) -> None:
        super().__init__(me)
        self._shared, self._names = orders, tuple[str, ...]()

    def set(self, servers: dict[str, str]) -> None:  # type: ignore[override]  # only dicts come here
        super().set(servers)
        self._names = tuple(servers)

    def _order(self, tenant: str) -> list[str]:
        return self._shared.of(tenant, self._names)


class _Arrivals:
    """The calls that will come until a time: their times, tenants, receivers and tokens."""

    def __init__(
        self, load: Load, popular: Floats, replicas: int, until: float, draw: np.random.Generator
    ) -> None:
        count = int(draw.poisson(load.calls_s * until))
        self.at = np.sort(draw.random(count)) * until
        self.tenant = np.searchsorted(np.cumsum(popular), draw.random(count) * popular.sum())
        self.entry = draw.integers(0, replicas, count)
        self.direct = draw.random(count) < load.direct
        shape = (count, load.texts)
        mean = math.log(load.tokens) - load.spread**2 / 2
        drawn = draw.lognormal(mean, load.spread, shape) if load.spread else np.full(shape, load.tokens)
        self.tokens = np.maximum(3.0, drawn)


class _Simulation:
    def __init__(
        self, costs: Costs, load: Load, cluster: Cluster, begin: float, end: float, seed: int
    ) -> None:
        """begin, end: of what counts, in seconds."""
        self._costs, self._load, self._cluster, self._from_s, self._to_s = costs, load, cluster, begin, end
        self._draw, self._coin = np.random.default_rng(seed), random.Random(seed)
        self._clock = Clock(cluster.cores, cluster.others)
        self._names = [f"server-{i}" for i in range(cluster.replicas)]
        self._number = {name: i for i, name in enumerate(self._names)}
        plot_bytes = load.ngrams / load.domains * costs.gram_bytes
        plot_s = costs.bucket_s + plot_bytes / costs.bucket_bytes_s
        self._replicas = [Replica(self._clock, costs, cluster.pool_bytes, plot_s) for _ in self._names]
        self._orders = _Orders()
        self._rings = [_Ring(name, self._orders) for name in self._names]
        self._living = list(range(cluster.replicas))
        self._balancer_knows = True
        self._last: dict[int, int] = {}
        self._under_way: set[Call] = set()
        self._seen: list[Answered] = []
        popular = zipf(load.tenants, load.zipf)
        self._rates: Floats = popular * load.calls_s
        self._arrivals = _Arrivals(load, popular, cluster.replicas, end, self._draw)
        domains = np.arange(load.tenants) % load.domains
        self._domain_rates: Floats = np.bincount(domains, self._rates, load.domains).astype(np.float64)
        for ring in self._rings:
            ring.set(dict.fromkeys(self._names, ""))
        self._homes = self._homes_of_all()
        self._rows: list[Floats] = []
        self._warm()

    # The beginning

    def _homes_of_all(self) -> NDArray[np.intp]:
        """The server that answers each tenant first. That of a tenant which makes no call is drawn, since it
        only takes memory, and hashes of a million names take minutes."""
        count, by_domain = self._load.tenants, self._cluster.routing == "domain"
        homes = self._draw.integers(0, len(self._names), count)
        keys = np.arange(min(self._load.domains, count)) if by_domain else np.unique(self._arrivals.tenant)
        for tenant in keys.tolist():
            homes[tenant] = self._number[self._orders.of(self._key(tenant), tuple(self._names))[0]]
        return homes[np.arange(count) % self._load.domains] if by_domain else homes

    def _key(self, tenant: int) -> str:
        """What a tenant's calls are routed by."""
        return f"t{tenant}" if self._cluster.routing == "tenant" else f"d{tenant % self._load.domains}"

    def _warm(self) -> None:
        cluster, count = self._cluster, len(self._replicas)
        if cluster.routing == "random":
            for replica in self._replicas:
                held = lru(last_uses(self._rates / count, self._draw), replica.room)
                replica.pool = OrderedDict.fromkeys(held.tolist())
        else:
            self._warm_homes()
        self._warm_plots()

    def _warm_homes(self) -> None:
        """Fill the memories when each tenant has one server.

        Tenants that were asked long ago are left out: no server has so few others that it still has them.
        """
        ages = last_uses(self._rates, self._draw)
        rooms = sum(replica.room for replica in self._replicas)
        used = lru(ages, min(len(ages), 2 * rooms))
        homes = self._homes[used]
        for i, replica in enumerate(self._replicas):
            replica.pool = OrderedDict.fromkeys(used[homes == i][-replica.room :].tolist())

    def _warm_plots(self) -> None:
        """Put PLOTs on the disks, and say which part of their rows is in memory."""
        load, cluster, count = self._load, self._cluster, len(self._replicas)
        rows, costs = load.ngrams / load.domains, self._costs
        tokens = load.texts * load.tokens
        shares = partial(
            rows_in_memory,
            rows=rows,
            row_bytes=costs.gram_bytes,
            exponent=load.gram_zipf,
            room=cluster.plot_bytes,
        )
        if cluster.routing != "domain":
            same = shares(self._domain_rates * tokens / count)
            self._rows = [same] * count
            for replica in self._replicas:
                there = self._draw.random(load.domains) < self._asked(self._domain_rates / count)
                replica.plots = set(np.flatnonzero(there).tolist())
            return
        homes = self._homes[: load.domains]
        asked = self._draw.random(load.domains) < self._asked(self._domain_rates)
        for i, replica in enumerate(self._replicas):
            mine = np.flatnonzero(homes == i)
            replica.plots = set(np.flatnonzero((homes == i) & asked).tolist())
            share = np.ones(load.domains)  # a PLOT that comes from the bucket is written through the memory
            if len(mine):
                share[mine] = shares(np.asarray(self._domain_rates[mine]) * tokens)
            self._rows.append(share)

    def _asked(self, rates: Floats) -> Floats:
        """The chance that something was needed while the servers ran."""
        return np.asarray(-np.expm1(-rates * self._cluster.served_s), dtype=np.float64)

    def _on_disk(self, tenant: int, replica: int) -> bool:
        """Draw whether a module that was not needed since the beginning is on a server's disk."""
        rate = float(self._rates[tenant])
        if self._cluster.routing == "random":
            rate /= len(self._replicas)
        elif self._homes[tenant] != replica:
            return False
        return self._coin.random() < -math.expm1(-rate * self._cluster.served_s)

    # Calls

    def run(self) -> Outcome:
        """Let calls arrive until the end, and answer them."""
        begin, end, cluster = self._from_s, self._to_s, self._cluster
        if len(self._arrivals.at):
            self._clock.wait(float(self._arrivals.at[0]), self._arrive, 0)
        if cluster.lost:
            self._clock.wait(begin + cluster.lost_s, self._lose)
        self._clock.run(end)
        computed = sum(replica.computed_s for replica in self._replicas)
        handled = sum(replica.handled_s for replica in self._replicas)
        self._clock.run(end + DRAIN_S)
        for call in self._under_way:
            self._seen.append(Answered(call.arrived, -1.0, call.module, call.plot, False, False))
        seen: NDArray[np.float64] = np.array(self._seen, dtype=np.float64).reshape(-1, len(Answered._fields))
        pools = [list(self._replicas[i].pool) for i in self._living]
        held, copies = np.unique(
            np.concatenate([np.array(pool, dtype=np.int64) for pool in pools]), return_counts=True
        )
        return Outcome(
            costs=self._costs,
            load=self._load,
            cluster=cluster,
            figures=figures_of(seen, begin, end),
            seen=seen,
            begin_s=begin,
            end_s=end,
            rows_in_memory=self._mean_rows(),
            copies=float(copies.sum() / max(1, len(held))),
            several=float((copies > 1).sum() / max(1, len(held))),
            busy=computed / (end * len(self._replicas)),
            loop=handled / (end * len(self._replicas)),
            **self._disk(),
        )

    def _arrive(self, i: int) -> None:
        given = self._arrivals
        if i + 1 < len(given.at):
            self._clock.wait(float(given.at[i + 1]) - self._clock.now, self._arrive, i + 1)
        tenant, entry = int(given.tenant[i]), int(given.entry[i])
        if given.direct[i]:
            by_chance = self._cluster.routing == "random"
            entry = self._last.get(tenant, entry if by_chance else int(self._homes[tenant]))
        call = Call(self._clock.now, tenant, given.tokens[i].tolist(), entry)
        if not self._replicas[entry].alive:
            if not self._balancer_knows:
                self._end(call, failed=True)
                return
            call.entry = call.at = self._living[entry % len(self._living)]
        self._under_way.add(call)
        self._replicas[call.entry].handle(self._costs.call_s, self._route, call)

    def _route(self, call: Call) -> None:
        if self._cluster.routing == "random":
            self._admit(call)
            return
        me, key = self._replicas[call.entry], self._key(call.tenant)
        chosen = self._rings[call.entry].choose(key, me.wait_s(call.tenant), self._clock.now)
        to = self._number[chosen]
        if to == call.entry:
            self._admit(call)
        else:
            me.handle(self._costs.forward_s, self._pass_on, call, to)

    def _pass_on(self, call: Call, to: int) -> None:
        if not self._replicas[to].alive:
            self._clock.wait(self._costs.unreachable_s, self._not_reached, call, to)
            return
        call.at = to
        self._clock.wait(self._costs.network_s, self._passed, call, to)

    def _passed(self, call: Call, to: int) -> None:
        self._replicas[to].handle(self._costs.call_s, self._admit, call)

    def _not_reached(self, call: Call, to: int) -> None:
        """Answer a call whose server gives no answer, as servers do. Later calls go to the next server."""
        if call in self._under_way:
            self._rings[call.entry].failed(self._names[to])
            call.at = call.entry
            self._admit(call)

    def _admit(self, call: Call) -> None:
        """Let a server load what a call needs, and queue its texts."""
        at, replica, domain = call.at, self._replicas[call.at], call.tenant % self._load.domains

        def still(then: Callable[[], None]) -> None:
            if call.at == at and call in self._under_way:
                then()

        def load() -> None:
            replica.need_module(call, partial(self._on_disk, call.tenant, at), partial(still, put))

        def put() -> None:
            costs, missing = self._costs, 1 - float(self._rows[at][domain])
            token_s = costs.token_s + missing * costs.page_s
            replica.put(call.tenant, [costs.text_s + n * token_s for n in call.texts], partial(still, done))

        def done() -> None:
            call.left -= 1
            if not call.left:
                self._answer(call)

        replica.need_plot(call, domain, partial(still, load))

    def _answer(self, call: Call) -> None:
        if call.at == call.entry:
            self._end(call)
            return
        replica, key = self._replicas[call.at], self._key(call.tenant)
        waits_s = replica.lag_s + replica.wait_s(call.tenant)
        self._rings[call.entry].heard(self._names[call.at], key, waits_s, self._clock.now)
        self._clock.wait(self._costs.network_s, self._end, call)

    def _end(self, call: Call, failed: bool = False) -> None:
        self._under_way.discard(call)
        self._last[call.tenant] = call.at
        took_s = -1.0 if failed else self._clock.now - call.arrived + self._costs.wait_s
        passed = call.at != call.entry
        spilled = self._cluster.routing != "random" and self._first(call.tenant) != call.at
        self._seen.append(Answered(call.arrived, took_s, call.module, call.plot, passed, spilled))

    def _first(self, tenant: int) -> int:
        """The server that answers a tenant first, of those on the list."""
        return self._number[self._rings[self._living[0]]._order(self._key(tenant))[0]]

    # A zone that is lost

    def _lose(self) -> None:
        gone, costs = set(range(self._cluster.lost)), self._costs
        for i in gone:
            self._replicas[i].alive = False
        self._living = [i for i in self._living if i not in gone]
        self._balancer_knows = False
        self._clock.wait(self._cluster.balancer_s, self._notice)
        self._clock.wait(costs.gone_s, self._strike)
        for call in sorted(self._under_way, key=lambda call: call.arrived):
            if call.entry in gone:
                self._end(call, failed=True)
            elif call.at in gone:
                to, call.at = call.at, call.entry
                self._clock.wait(costs.unreachable_s, self._not_reached, call, to)

    def _notice(self) -> None:
        self._balancer_knows = True

    def _strike(self) -> None:
        """Take the lost servers off the list."""
        for i in self._living:
            self._rings[i].set({self._names[j]: "" for j in self._living})

    # What else is told

    def _mean_rows(self) -> float:
        """The share of look-ups whose row is in memory, over all servers."""
        weights = self._domain_rates / self._domain_rates.sum()
        if self._cluster.routing != "domain":
            return float(weights @ self._rows[0])
        homes = self._homes[: self._load.domains]
        return float(
            sum(w * self._rows[home][d] for d, (w, home) in enumerate(zip(weights, homes, strict=True)))
        )

    def _disk(self) -> dict[str, float]:
        """Bytes on the disk of a server that has run for `served_s`, in the mean."""
        count, load, costs = len(self._replicas), self._load, self._costs
        by = 1 if self._cluster.routing == "random" else count
        modules = self._asked(self._rates * by / count).sum() / by
        per_domain = 1 if self._cluster.routing != "domain" else count
        plots = self._asked(self._domain_rates * per_domain / count).sum() / per_domain
        return {
            "module_disk_bytes": float(modules) * costs.file_bytes,
            "plot_disk_bytes": float(plots) * load.ngrams / load.domains * costs.gram_bytes,
        }
