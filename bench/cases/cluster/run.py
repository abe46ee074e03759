"""Measures HMI beside Ray Serve on the same load, in turns, on one machine.

As a host of models: dedicated models of the tenants, of which each replica keeps some, and adapters of one
model. As what is in front of HMI: see `bench.cases.cluster.ingress`.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from bench.cases.cluster import ingress
from bench.cases.serve.http_fleet import copied, target, tenants, wait_chosen
from bench.cases.serve.traffic import tenants_in_turn
from bench.harness.home import Home, tenant_of
from bench.harness.load import LoadClient, LoadFigures, LoadRequests, RequestTarget, Turn, client
from bench.harness.report import Figure, in_turn, known, median_ratio
from bench.harness.server import NO_JOBS, ONE_THREAD, Server, ServerArm, hmi, running
from hmi.errors import Unavailable
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source
from hmi.resident import resident

APP = Path(__file__).with_name("ray_app.py")
BEST = {"RAY_SERVE_THROUGHPUT_OPTIMIZED": "1", "RAY_SERVE_ENABLE_DIRECT_INGRESS": "0"}
"""Ray Serve's own set of settings for throughput, but with its proxy, which knows who has which model."""
ARMS = ("same_memory", "half", "adapter_int8", "adapter_fp32", "ingress")
GOAL = 10.0
"""HMI's throughput, divided by that of Ray Serve with dedicated models."""
CALLERS = (1, 16)
TOKENS, TEXTS, TURN = 30, 64, 20_000
IDLE_S = 5.0
MIB = 1 << 20
Report = Callable[[str], None]


@dataclass(frozen=True)
class ClusterPlan:
    """The sizes of a run. The defaults give figures."""

    tenants: int = 300
    pairs: int = 5
    seconds: float = 4.0
    warm_calls: int = 8
    """Calls for each tenant's model that a replica may keep, before it is measured."""


class Bench:
    """What all arms share: HMI's data folder, the texts, the client, and how a peer is started."""

    def __init__(self, plan: ClusterPlan, python: Path, home: Home, folder: Path, sender: LoadClient) -> None:
        self.plan, self.home, self.folder, self.sender = plan, home, folder, sender
        self._python, self._phases = python, 0
        self.texts = [json.dumps({"inputs": text}) for text in home.texts().of(TOKENS, TEXTS)]

    def peer(self, name: str, mode: str, *options: str) -> ServerArm:
        """Return Ray Serve with an application. It gets no more of this process's environment than it needs."""
        command = (str(self._python), "-P", str(APP), mode, "--port", "{port}", *options)
        given = {"HOME": str(self.folder), "PYTHONPATH": "", "RAY_USAGE_STATS_ENABLED": "0", **BEST}
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


def run(
    plan: ClusterPlan, python: Path, only: Sequence[str], data: Path | None, report: Report
) -> Iterator[Figure]:
    """Measure. python: of the peer. only: some of ARMS; none: all. data: a folder that keeps HMI's tenants.

    Raises InvalidInput, StorageFull; Unavailable if a server does not start or the models are not written.
    """
    arms = known(only, ARMS) or ARMS
    report(f"{plan.tenants} tenants with a model each")
    with tenants(plan.tenants, data) as (home, folder), client() as sender:
        bench = Bench(plan, python, home, folder, sender)
        if hosts := [arm for arm in arms if arm != "ingress"]:
            yield from _hosts(bench, hosts, report)
        if "ingress" in arms:
            yield from ingress.measure(bench, report)


def _hosts(bench: Bench, arms: Sequence[str], report: Report) -> Iterator[Figure]:
    plan, home = bench.plan, bench.home
    report("the peer's models")
    folder = bench.write()
    with running(hmi(copied(home, bench.folder / "alone"), *NO_JOBS), bench.folder) as alone:
        chosen = wait_chosen(alone, bench.sender, home, plan.pairs == 1)
        asked = [target(alone.arm, home, i) for i in range(plan.tenants)]
        bench.load(alone.port, asked, CALLERS[-1], 0.0, plan.warm_calls * plan.tenants)
        kept = alone.memory().all
        yield Figure("hmi_memory", kept / MIB, "MiB", why=f"executor: {chosen}")
        alone.halt()
        for name in arms:
            report(name)
            bytes_ = (folder / "whole-int8.onnx").stat().st_size
            models = {"same_memory": max(1, kept // bytes_ // 2), "half": max(1, plan.tenants // 4)}
            count = models.get(name, plan.tenants)
            tokenizer = find_source(DEFAULT_PACKAGE).folder / "tokenizer.json"
            options = ("--folder", str(folder), "--tokenizer", str(tokenizer), "--models", str(count))
            mode, _, precision = name.partition("_") if name not in models else ("dedicated", "", "int8")
            arm = bench.peer(name, mode, *options, "--precision", precision)
            yield Figure(f"{name}_models", 2 * count, "models", why="which the two replicas keep")
            try:
                with running(arm, bench.folder) as peer:
                    yield from _host(bench, alone, asked, peer, 2 * count)
            except Unavailable as error:
                yield Figure(f"{name}_absent", None, "", why=str(error))


def _host(
    bench: Bench, alone: Server, asked: Sequence[RequestTarget], peer: Server, models: int
) -> Iterator[Figure]:
    """One peer beside HMI, which is halted meanwhile. The peer cannot be halted: Ray would miss its nodes."""
    named = [RequestTarget("/", header=f"serve_multiplexed_model_id: {tenant_of(i)}") for i in range(len(asked))]
    bench.load(peer.port, named, CALLERS[-1], 0.0, bench.plan.warm_calls * min(models, len(asked)))
    name, before = peer.arm.name, peer.cpu_s()
    time.sleep(IDLE_S)
    yield Figure(f"{name}_idle", (peer.cpu_s() - before) / IDLE_S, "of a core", why="without any call")
    yield Figure(f"{name}_memory", sum(resident(pid).anonymous for pid in peer.pids()) / MIB, "MiB")

    def one(callers: int) -> LoadFigures:
        with alone.awake():
            return bench.load(alone.port, asked, callers, bench.plan.seconds)

    for callers in CALLERS:
        works = {
            "hmi": partial(one, callers),
            name: partial(bench.load, peer.port, named, callers, bench.plan.seconds),
        }
        yield from figures(f"{name}_{callers}", works, bench.plan.pairs, "hmi", GOAL)


def figures(
    name: str, works: Mapping[str, Callable[[], Any]], pairs: int, first: str, goal: float | None = None
) -> Iterator[Figure]:
    """Run loads in turn. Yields each one's times and rate, and the rate of `first` divided by each other's."""
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
            yield Figure(f"{name}_over", median_ratio(rates, first, arm), "x", goal, runs=pairs, peer=arm)
