"""Measures HMI beside Ray Serve on the same load, in turns, on one machine.

As a host of models: dedicated models of the tenants, of which each replica keeps some, and adapters of one
model. As what is in front of HMI: see `bench.cases.cluster.ingress`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path

from bench.cases.cluster import ingress
from bench.cases.cluster.beside import CALLERS, SETTINGS, Bench, ClusterPlan, Load, Report, figures
from bench.cases.serve.http_fleet import copied, target, tenants, wait_chosen
from bench.harness.home import tenant_of
from bench.harness.load import RequestTarget, client
from bench.harness.report import Figure, known
from bench.harness.server import NO_JOBS, Server, hmi, running
from hmi.errors import Unavailable
from hmi.model.sources.source import DEFAULT_PACKAGE, find_source
from hmi.resident import resident

ARMS = {
    "same_memory": ("dedicated", "int8", "proxy"),
    "half": ("dedicated", "int8", "proxy"),
    "half_haproxy": ("dedicated", "int8", "haproxy"),
    "adapter_int8": ("adapter", "int8", "haproxy"),
    "adapter_fp32": ("adapter", "fp32", "haproxy"),
}
"""Mode, precision and way in of each host of models. The replicas keep as much as HMI takes, half, or all."""
INGRESS = "ingress"
GOAL = 10.0
"""HMI's throughput, divided by that of Ray Serve with dedicated models."""
MIB = 1 << 20


def run(
    plan: ClusterPlan, python: Path, only: Sequence[str], data: Path | None, report: Report
) -> Iterator[Figure]:
    """Measure. python: of the peer. only: some of ARMS and INGRESS; none: all. data: a folder that keeps
    HMI's tenants.

    Raises InvalidInput, StorageFull; Unavailable if a server does not start or the models are not written.
    """
    arms = known(only, (*ARMS, INGRESS)) or (*ARMS, INGRESS)
    report(f"{plan.tenants} tenants with a model each")
    with tenants(plan.tenants, data) as (home, folder), client() as sender:
        bench = Bench(plan, python, home, folder, sender)
        if hosts := [arm for arm in arms if arm != INGRESS]:
            yield from _hosts(bench, hosts, report)
        if INGRESS in arms:
            yield from ingress.measure(bench, report)


def _hosts(bench: Bench, arms: Sequence[str], report: Report) -> Iterator[Figure]:
    plan, home = bench.plan, bench.home
    report("the peer's models")
    folder = bench.write()
    arm = hmi(copied(home, bench.folder / "alone"), *NO_JOBS, "--streams", str(plan.streams))
    with running(arm, bench.folder) as alone:
        chosen = wait_chosen(alone, bench.sender, home, plan.pairs == 1)
        asked = [target(alone.arm, home, i) for i in range(plan.tenants)]
        bench.load([alone], asked, CALLERS[-1], plan.warm_calls * plan.tenants)
        kept = alone.memory().all
        yield Figure("hmi_memory", kept / MIB, "MiB", why=f"executor: {chosen}")
        alone.halt()
        tokenizer = find_source(DEFAULT_PACKAGE).folder / "tokenizer.json"
        for name in arms:
            report(name)
            mode, precision, way = ARMS[name]
            fit = kept // (folder / "whole-int8.onnx").stat().st_size
            models = {"same_memory": fit, "half": plan.tenants // 2, "half_haproxy": plan.tenants // 2}
            count = max(1, models[name] // 2) if mode == "dedicated" else plan.tenants
            options = ("--folder", str(folder), "--tokenizer", str(tokenizer), "--models", str(count))
            arm = bench.peer(name, SETTINGS[way], mode, *options, "--precision", precision)
            yield Figure(f"{name}_models", count, "models", why="which each of the two replicas keeps")
            try:
                with running(arm, bench.folder) as peer:
                    yield from _host(bench, alone, asked, peer, min(2 * count, plan.tenants))
            except Unavailable as error:
                yield Figure(f"{name}_absent", None, "", why=str(error))


def _host(
    bench: Bench, alone: Server, asked: Sequence[RequestTarget], peer: Server, models: int
) -> Iterator[Figure]:
    """One peer beside HMI, which is halted meanwhile. The peer is not: Ray would miss its nodes."""
    headers = [f"serve_multiplexed_model_id: {tenant_of(i)}" for i in range(len(asked))]
    named = [RequestTarget("/", header=header) for header in headers]
    bench.load([peer], named, CALLERS[-1], bench.plan.warm_calls * models)
    name, dedicated = peer.arm.name, ARMS[peer.arm.name][0] == "dedicated"
    yield Figure(f"{name}_idle", bench.wait_idle(peer), "cores", why="without any call")
    yield Figure(f"{name}_memory", sum(resident(pid).anonymous for pid in peer.pids()) / MIB, "MiB")

    def one(callers: int) -> Load:
        with alone.awake():
            return bench.load([alone], asked, callers)

    for callers in CALLERS:
        works = {"hmi": partial(one, callers), "ray": partial(bench.load, [peer], named, callers)}
        yield from figures(f"{name}_{callers}", works, bench.plan.pairs, "hmi", GOAL if dedicated else None)
