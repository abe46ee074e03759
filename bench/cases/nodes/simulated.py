"""Measures what a simulation of many servers needs, and compares its prediction with three real servers."""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from functools import cache, partial
from pathlib import Path
from statistics import fmean
from typing import Any

import numpy as np

from bench.cases.serve.http_fleet import copied, target, wait_chosen
from bench.harness.home import MEAN_LOG, SPREAD_LOG, Contents, Home, build
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, client
from bench.harness.report import Figure
from bench.harness.server import NO_JOBS, Server, cpu_s, hmi, running
from hmi.api.nodes.ring import ranked
from hmi.cli.top.scrape import Scrape
from hmi.cluster.simulation.outcome import Outcome
from hmi.cluster.simulation.parameters import Cluster, Costs, Load, Routing
from hmi.cluster.simulation.run import simulate

REPLICAS, TEXTS, SEEDS = 3, 256, 10
GOAL = 0.2
"""The most by which a prediction may miss, as a part of what was measured."""
MEMORY_GOAL = 0.95
"""The part of calls that find their module in memory, beside one server with the memory of all."""
SHORT, LONG, MANY = 16, 112, 8
FRESH_S = 1.2
"""Metrics are up to a second old."""


@dataclass(frozen=True)
class SimulatedPlan:
    """The sizes of a run."""

    tenants: int = 100
    pool_modules: int = 16
    """Modules that fit into a server's memory."""
    calls_s: float = 15.0
    warm_s: float = 20.0
    seconds: float = 90.0
    phase_s: float = 4.0
    """Seconds of each phase in which costs are measured."""


QUICK = SimulatedPlan(12, 3, 10.0, 2.0, 3.0, 0.5)


@dataclass(frozen=True)
class _Used:
    """The figures of one phase: CPU seconds of event loop, other threads and client; metrics."""

    seen: LoadFigures
    loop_s: float
    rest_s: float
    client_s: float
    batches: float
    texts: float
    tokens: float
    queued_s: float
    """Seconds in which its threads waited for a core."""

    @property
    def calls(self) -> int:
        return len(self.seen.ms)

    @property
    def others(self) -> float:
        """Threads of other programs that wanted a core, by how long a thread waited for one."""
        run_s = self.loop_s + self.rest_s
        return max(0.0, (os.cpu_count() or 1) * (run_s + self.queued_s) / run_s - 1)


def run(plan: SimulatedPlan, data: Path | None, report: Callable[[str], None]) -> Iterator[Figure]:
    """Measure costs, then three servers, and simulate them. Yields the costs, and both.

    data: a folder that keeps the tenants. Raises StorageFull; Unavailable if a server does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="hmi-bench-") as made, client() as sender:
        folder = Path(made)
        report(f"{plan.tenants} tenants")
        home = build(Contents(plan.tenants), (data or folder) / "bench-nodes")
        with ExitStack() as stack:
            report("a server alone, and servers that share a bucket")
            alone = hmi(copied(home, folder / "alone"), *NO_JOBS, "--no-improve")
            single = stack.enter_context(running(alone, folder))
            servers = _servers(plan, home, folder, stack)
            names = [json.loads(server.get("/manage/server"))["id"] for server in servers]
            firsts = [names.index(ranked(home.model(i).tenant, names)[0]) for i in range(plan.tenants)]
            _warmed(plan, home, single, servers, firsts, sender)
            report("costs")
            costs, usual = _costs(plan, home, single, sender)
            costs = _shared_costs(plan, home, costs, usual, servers[-1], firsts, sender)
            for name in ("call", "forward", "batch", "text", "token", "wait", "load", "bucket"):
                yield Figure(f"cost_{name}", 1e3 * float(getattr(costs, f"{name}_s")), "ms")
            yield Figure("cost_module", costs.module_bytes, "bytes")
            report(f"{plan.calls_s:g} calls a second to {REPLICAS} servers")
            before = _others(plan, home, single, sender)
            real = _real(plan, home, servers)
            others = (before + _others(plan, home, single, sender)) / 2
            yield Figure("others", others, "threads")
            report("one server with the memory of all")
            pool = {"HMI_POOL_BYTES": str(REPLICAS * _pool(plan))}
            arm = hmi(copied(home, folder / "one"), *NO_JOBS, "--no-improve", name="one", **pool)
            one = _real(plan, home, [stack.enter_context(running(arm, folder))])
            yield Figure("in_memory_one", one["in_memory"], "share")
            yield Figure("in_memory_over_one", real["in_memory"] / one["in_memory"], "x", MEMORY_GOAL)
        routing: Routing = "tenant" if real["passed"] else "random"
        mean = float(np.exp(MEAN_LOG + SPREAD_LOG**2 / 2))
        load = Load(plan.calls_s, plan.tenants, tokens=mean, spread=SPREAD_LOG, domains=1, ngrams=50_000)
        cores = (os.cpu_count() or 1) - plan.calls_s * usual.client_s / usual.calls
        cluster = Cluster(
            REPLICAS, routing, pool_bytes=_pool(plan), served_s=plan.warm_s, cores=cores, others=others
        )
        work = partial(simulate, costs, load, cluster, seconds=plan.seconds)
        yield from _compared(real, [work(seed=seed) for seed in range(SEEDS)])


def _compared(real: dict[str, float], found: Sequence[Outcome]) -> Iterator[Figure]:
    """Each figure as measured, as predicted (the mean over seeds), and by how much it is missed."""
    mean = {
        "calls_s": fmean(one.figures.calls_s for one in found),
        "p50": 1e3 * fmean(one.figures.p50_s for one in found),
        "p99": 1e3 * fmean(one.figures.p99_s for one in found),
        "in_memory": fmean(one.figures.module_memory for one in found),
        "passed": fmean(one.figures.passed for one in found),
    }
    units = {"calls_s": "calls/s", "p50": "ms", "p99": "ms"}
    for name, value in mean.items():
        yield Figure(f"{name}_measured", real[name], units.get(name, "share"))
        yield Figure(f"{name}_simulated", value, units.get(name, "share"), runs=len(found))
        if real[name]:
            yield Figure(f"{name}_missed", abs(value / real[name] - 1), "share", GOAL, at_least=False)
    spread = [1e3 * one.figures.p99_s for one in found]
    yield Figure("p99_simulated_least", min(spread), "ms", runs=len(found))
    yield Figure("p99_simulated_most", max(spread), "ms", runs=len(found))
    yield Figure("failed", real["failed"], "calls", 0, False)


def _scrape(server: Server) -> Scrape:
    time.sleep(FRESH_S)
    return Scrape.parse(server.get("/metrics"))


def _used(server: Server, send: Callable[[], LoadFigures]) -> _Used:
    """Send requests to a server, and return what that took."""
    before, threads, mine, queued = (
        _scrape(server),
        server.threads_cpu_s(),
        _client_cpu_s(),
        _queued_s(server),
    )
    seen = send()
    spent = {thread: s - threads.get(thread, 0.0) for thread, s in server.threads_cpu_s().items()}
    client_s, queued_s, after = _client_cpu_s() - mine, _queued_s(server) - queued, _scrape(server)

    def grown(name: str) -> float:
        return (after.value(name) or 0.0) - (before.value(name) or 0.0)

    loop_s = spent.pop(str(server.pid))
    sums = [grown(f"hmi_{name}") for name in ("batch_seconds_count", "batch_inputs_sum", "batch_tokens_sum")]
    batches, texts, tokens = sums
    return _Used(seen, loop_s, sum(spent.values()), client_s, batches, texts, tokens, queued_s)


def _queued_s(server: Server) -> float:
    """Seconds in which the server's threads were ready to run and had no core."""
    files = Path(f"/proc/{server.pid}/task").glob("*/schedstat")
    return sum(int(file.read_text().split()[1]) for file in files) / 1e9


def _client_cpu_s() -> float:
    """CPU seconds of the processes that send requests."""
    mine = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return sum(cpu_s(int(p)) for p in mine if b"harness.sender" in Path(f"/proc/{p}/cmdline").read_bytes())


@cache
def _bodies(home: Home, tokens: int | None) -> list[str]:
    """Bodies of a text each. tokens: None: of real lengths."""
    return [json.dumps({"inputs": text}) for text in home.texts().of(tokens, TEXTS)]


def _warmed(
    plan: SimulatedPlan,
    home: Home,
    single: Server,
    servers: Sequence[Server],
    firsts: Sequence[int],
    sender: LoadClient,
) -> None:
    """Let each server load the root and the PLOT and choose its executor, the single one all modules, too."""
    for i, server in enumerate([single, *servers]):
        mine = range(plan.tenants) if server is single else [firsts.index(i - 1)]
        _phase(server, home, mine, sender, least=max(4, len(mine)))
        wait_chosen(server, sender, home, plan.phase_s < 1)


def _phase(
    server: Server,
    home: Home,
    tenants: Sequence[int],
    sender: LoadClient,
    bodies: Sequence[str] = (),
    **how: Any,
) -> _Used:
    """Send calls of these tenants in turn. bodies: default: a text each, of real lengths."""
    bodies = bodies or _bodies(home, None)
    targets = [target(server.arm, home, i) for i in tenants]
    turn = [(i % len(tenants), i * 7 % len(bodies)) for i in range(len(tenants) * len(bodies))]
    requests = LoadRequests(server.port, targets, bodies)
    return _used(server, partial(sender.closed, requests, turn, **how))


def _costs(plan: SimulatedPlan, home: Home, server: Server, sender: LoadClient) -> tuple[Costs, _Used]:
    """The costs of a server that has everything in memory, and its phase of usual texts."""
    whole = _scrape(server)
    modules = whole.value("hmi_adapter_pool_load_seconds_count") or 1
    least = 8 * MANY
    work = partial(_phase, server, home, range(plan.tenants), sender, seconds=plan.phase_s, least=least)
    short, long = (work(bodies=_bodies(home, tokens)) for tokens in (SHORT, LONG))
    many, usual = work(bodies=_bodies(home, SHORT), callers=MANY), work()
    rows = [(one.batches, one.texts, one.tokens) for one in (short, long, many)]
    solved = np.linalg.solve(np.array(rows), [one.rest_s for one in (short, long, many)])
    batch_s, text_s, token_s = np.maximum(solved, 1e-6).tolist()
    usual_s = (usual.loop_s + usual.rest_s + usual.queued_s) / usual.calls
    costs = Costs(
        call_s=usual.loop_s / usual.calls,
        batch_s=batch_s,
        text_s=text_s,
        token_s=token_s,
        wait_s=max(0.0, fmean(usual.seen.ms) / 1e3 - usual_s),
        module_bytes=int((whole.value("hmi_adapter_pool_bytes") or 0) / modules),
    )
    return costs, usual


def _pool(plan: SimulatedPlan) -> int:
    """Bytes for the plan's number of modules. Their sizes differ a little."""
    return int((plan.pool_modules + 0.5) * Costs().module_bytes)


def _servers(plan: SimulatedPlan, home: Home, folder: Path, stack: ExitStack) -> list[Server]:
    """Start a primary and replicas that share a bucket. The replicas have nothing yet."""
    copied(home, folder / "server-0")

    def start(i: int) -> Server:
        options = ("--bucket", f"{folder}/bucket", "--role", "replica" if i else "primary", "--no-improve")
        arm = hmi(
            folder / f"server-{i}", *NO_JOBS, *options, name=f"server-{i}", HMI_POOL_BYTES=str(_pool(plan))
        )
        return stack.enter_context(running(arm, folder))

    return [start(i) for i in range(REPLICAS)]


def _shared_costs(
    plan: SimulatedPlan,
    home: Home,
    costs: Costs,
    usual: _Used,
    entry: Server,
    firsts: Sequence[int],
    sender: LoadClient,
) -> Costs:
    """Add what it takes to fetch a module, to load one, and to pass a call on.

    entry: the last server. A call that is passed on is handled by the event loops of two servers.
    """
    mine = [i for i, first in enumerate(firsts) if first == REPLICAS - 1][1:]
    others = [i for i, first in enumerate(firsts) if first != REPLICAS - 1]
    fetched = _phase(entry, home, mine, sender, least=len(mine))
    # More tenants in turn than modules fit: each is loaded from the disk.
    loaded = _phase(entry, home, mine, sender, seconds=plan.phase_s, least=len(mine))
    passed = _phase(entry, home, others, sender, seconds=plan.phase_s, least=8)
    return replace(
        costs,
        bucket_s=max(0.0, fmean(fetched.seen.ms) - fmean(loaded.seen.ms)) / 1e3,
        bucket_bytes_s=float("inf"),
        load_s=max(0.0, loaded.rest_s / loaded.calls - usual.rest_s / usual.calls),
        forward_s=max(0.0, passed.loop_s / passed.calls - loaded.loop_s / loaded.calls),
    )


def _others(plan: SimulatedPlan, home: Home, server: Server, sender: LoadClient) -> float:
    """Threads of other programs that want a core, as a server sees them that gets its part of the load.

    A thread that computes all the time would wait longer: the system lets those first that slept.
    """
    draw, seconds = np.random.default_rng(7), 4 * plan.phase_s
    times = np.sort(draw.random(max(2, round(plan.calls_s / REPLICAS * seconds))) * seconds)
    requests = LoadRequests(server.port, [target(server.arm, home, 0)], _bodies(home, None))
    arrivals = [(at, 0, i % TEXTS) for i, at in enumerate(times.tolist())]
    return _used(server, partial(sender.opened, requests, arrivals)).others


def _real(plan: SimulatedPlan, home: Home, servers: Sequence[Server]) -> dict[str, float]:
    """Send open load to all servers alike, and return what was seen."""
    draw = np.random.default_rng(5)
    bodies = _bodies(home, None)
    shares = np.arange(1, plan.tenants + 1, dtype=float) ** -1.0
    rank = draw.permutation(plan.tenants)

    def arrivals(seconds: float) -> list[tuple[float, int, int]]:
        count = draw.poisson(plan.calls_s / len(servers) * seconds)
        tenants = rank[draw.choice(plan.tenants, count, p=shares / shares.sum())]
        which = draw.integers(0, len(bodies), count)
        return list(
            zip(np.sort(draw.random(count) * seconds).tolist(), tenants.tolist(), which.tolist(), strict=True)
        )

    def events(event: str) -> float:
        return sum(s.value("hmi_adapter_pool_total", event=event) or 0.0 for s in map(_scrape, servers))

    def passed() -> float:
        return sum(float(json.loads(s.get("/manage/server"))["passed"]) for s in servers)

    with ExitStack() as stack:
        senders = [stack.enter_context(client()) for _ in servers]

        def opened(seconds: float) -> list[LoadFigures]:
            for server, one in zip(servers, senders, strict=True):
                targets = [target(server.arm, home, i) for i in range(plan.tenants)]
                one.begin_opened(LoadRequests(server.port, targets, bodies), arrivals(seconds))
            return [one.end() for one in senders]

        opened(plan.warm_s)
        hits, misses, before = events("hit"), events("miss"), passed()
        seen = opened(plan.seconds)
        hits, misses, before = events("hit") - hits, events("miss") - misses, passed() - before
    ms = sorted(one for some in seen for one in some.ms)
    return {
        "calls_s": len(ms) / plan.seconds,
        "p50": ms[len(ms) // 2],
        "p99": ms[int(0.99 * len(ms))],
        "in_memory": hits / (hits + misses),
        "passed": before / len(ms),
        "failed": float(sum(one.failures for one in seen)),
    }
