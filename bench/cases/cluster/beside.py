"""What both parts of `bench cluster` share: the load, Ray Serve as a server, and figures of loads in turn."""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.home import Home
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, RequestTarget, Turn
from bench.harness.report import Figure, in_turn, median_ratio
from bench.harness.server import ONE_THREAD, ServerArm
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
Report = Callable[[str], None]


@dataclass(frozen=True)
class ClusterPlan:
    """The sizes of a run. The defaults give figures."""

    tenants: int = 300
    pairs: int = 5
    seconds: float = 4.0
    warm_calls: int = 4
    """Calls for each tenant's model that a replica may keep, before it is measured."""


class Bench:
    """What all arms share: HMI's data folder, the texts, the client, and how a peer is started."""

    def __init__(self, plan: ClusterPlan, python: Path, home: Home, folder: Path, sender: LoadClient) -> None:
        self.plan, self.home, self.folder, self.sender = plan, home, folder, sender
        self._python, self._phases = python, 0
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
        self, port: int, targets: Sequence[RequestTarget], callers: int, seconds: float, least: int = 1
    ) -> LoadFigures:
        """Send texts for tenants by Zipf. Each time other ones are drawn, so that no cache has seen them."""
        self._phases += 1
        drawn = tenants_in_turn("zipf", len(targets), TURN, self._phases).tolist()
        turn: Turn = [(tenant, i % TEXTS) for i, tenant in enumerate(drawn)]
        requests = LoadRequests(port, targets, self.texts)
        return self.sender.closed(requests, turn, callers=callers, seconds=seconds, least=least)


def figures(
    name: str, works: Mapping[str, Callable[[], Any]], pairs: int, first: str, goal: float | None = None
) -> Iterator[Figure]:
    """Run loads in turn. Yields times and rates, and the rate of `first` divided by each other one's."""
    seen: Mapping[str, Sequence[LoadFigures]] = in_turn(works, pairs)  # type: ignore[assignment]
    rates = {arm: [one.a_second for one in some] for arm, some in seen.items()}
    for arm, some in seen.items():
        for share in (0.5, 0.99):
            at = statistics.median(one.at(share) for one in some)
            yield Figure(f"{name}_{arm}_p{share * 100:.0f}", at, "ms", runs=pairs)
        yield Figure(f"{name}_{arm}", statistics.median(rates[arm]), "calls/s", runs=pairs)
        failed = sum(one.failures for one in some)
        yield Figure(f"{name}_{arm}_failed", failed, "calls", 0, False, sum(len(one.ms) for one in some))
    for arm in works:
        if arm != first:
            ratio = median_ratio(rates, first, arm)
            yield Figure(f"{name}_{first}_over", ratio, "x", goal, runs=pairs, peer=arm)
