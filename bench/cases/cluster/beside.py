"""Parts of `bench cluster`: the load, Ray Serve as a server, and the figures of loads in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.home import Home
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, RequestTarget, Turn
from bench.harness.report import Figure, in_turn, median_ratio
from bench.harness.server import ONE_THREAD, Server, ServerArm
from hmi.errors import Unavailable
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source

APP = Path(__file__).with_name("ray_app.py")
FAST = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1"}
"""Ray Serve's own set of settings for throughput."""
SETTINGS = {
    "proxy": {**FAST, "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"},
    "haproxy": {**FAST, "RAY_SERVE_ENABLE_HA_PROXY": "1", "RAY_SERVE_HAPROXY_METRICS_ENABLED": "0"},
}
"""Ray Serve's two ways in: its own proxy, which knows who has which model, and HAProxy, which is faster."""
CALLERS = (1, 16)
TOKENS, TEXTS, TURN = 30, 64, 20_000
IDLE_S = 5.0
Report = Callable[[str], None]


@dataclass(frozen=True)
class ClusterPlan:
    """The sizes of a run. The defaults give figures."""

    tenants: int = 300
    pairs: int = 5
    seconds: float = 4.0
    streams: int = 1
    """HMI's compute threads."""
    warm_calls: int = 3
    """Calls for each tenant's model that a replica may keep, before it is measured."""


class Bench:
    """HMI's data folder, the texts and the client of all arms. It also starts peers."""

    def __init__(self, plan: ClusterPlan, python: Path, home: Home, folder: Path, sender: LoadClient) -> None:
        self.plan, self.home, self.folder, self.sender = plan, home, folder, sender
        self._python, self._phases = python, 0
        self.idle: dict[int, float] = {}
        """Cores that a server takes without calls, by its process."""
        self.texts = [json.dumps({"inputs": text}) for text in home.texts().of(TOKENS, TEXTS)]

    def peer(self, name: str, settings: Mapping[str, str], mode: str, *options: str) -> ServerArm:
        """Return Ray Serve with an application. Its settings and token stay in the temporary folder."""
        command = (str(self._python), "-P", str(APP), mode, "--port", "{port}", *options)
        given = {"HOME": str(self.folder), "PYTHONPATH": "", "RAY_USAGE_STATS_ENABLED": "0", **settings}
        return ServerArm(name, command, "/", "/", given)

    def write(self) -> Path:
        """Write the peer's models. Raises Unavailable."""
        folder, source = self.folder / "models", find_source(DEFAULT_PACKAGE).folder
        folder.mkdir()
        options = ("--folder", str(folder), "--source", str(source), "--tenants", str(self.plan.tenants))
        command = [str(self._python), "-P", str(APP), "write", *options]
        environment = {**os.environ, **ONE_THREAD, "PYTHONPATH": "", "HF_HUB_OFFLINE": "1"}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        if done.returncode:
            raise Unavailable(f"the peer's models were not written: {done.stderr.strip()[-300:]}")
        return folder

    def load(
        self, servers: Sequence[Server], targets: Sequence[RequestTarget], callers: int, least: int = 0
    ) -> Load:
        """Send texts for tenants by Zipf to the first of the servers, which all take part in the answers.

        Each run draws other tenants, so that no cache has seen them. least: the number of calls to make, in
        place of the plan's time.
        """
        self._phases += 1
        drawn = tenants_in_turn("zipf", len(targets), TURN, self._phases).tolist()
        turn: Turn = [(tenant, i % TEXTS) for i, tenant in enumerate(drawn)]
        requests = LoadRequests(servers[0].port, targets, self.texts)
        seconds, before = 0.0 if least else self.plan.seconds, sum(server.cpu_s() for server in servers)
        seen = self.sender.closed(requests, turn, callers=callers, seconds=seconds, least=max(1, least))
        spent = sum(server.cpu_s() for server in servers) - before
        idle = sum(self.idle.get(server.pid, 0.0) for server in servers) * seen.seconds
        return Load(seen, 1e3 * (spent - idle) / len(seen.ms))

    def wait_idle(self, server: Server) -> float:
        """Measure how many cores a server without calls takes. `load` leaves them out from now on."""
        before = server.cpu_s()
        time.sleep(IDLE_S)
        self.idle[server.pid] = (server.cpu_s() - before) / IDLE_S
        return self.idle[server.pid]


@dataclass(frozen=True)
class Load:
    """The figures of a load, and the CPU milliseconds of a call at the servers, less what they take idle."""

    seen: LoadFigures
    cpu_ms: float


def figures(
    name: str, works: Mapping[str, Callable[[], Any]], pairs: int, first: str, goal: float | None = None
) -> Iterator[Figure]:
    """Run loads in turn. Yields times, rates and CPU time, and how `first` stands beside each other one."""
    found: Mapping[str, Sequence[Load]] = in_turn(works, pairs)  # type: ignore[assignment]
    rates = {arm: [load.seen.a_second for load in some] for arm, some in found.items()}
    spent = {arm: [load.cpu_ms for load in some] for arm, some in found.items()}
    for arm, loads in found.items():
        for share in (0.5, 0.99):
            at = statistics.median(load.seen.at(share) for load in loads)
            yield Figure(f"{name}_{arm}_p{share * 100:.0f}", at, "ms", runs=pairs)
        yield Figure(f"{name}_{arm}_rate", statistics.median(rates[arm]), "calls/s", runs=pairs)
        yield Figure(f"{name}_{arm}_cpu", statistics.median(spent[arm]), "ms a call", runs=pairs)
        failed = sum(load.seen.failures for load in loads)
        calls = sum(len(load.seen.ms) for load in loads)
        yield Figure(f"{name}_{arm}_failed", failed, "calls", 0, False, calls)
    for arm in works:
        if arm != first:
            faster, less = median_ratio(rates, first, arm), median_ratio(spent, arm, first)
            yield Figure(f"{name}_{first}_rate_over", faster, "x", goal, runs=pairs, peer=arm)
            yield Figure(f"{name}_{first}_less_cpu", less, "x", goal, runs=pairs, peer=arm)
