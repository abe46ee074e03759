"""What is in front of HMI: calls to the tenant's own server, to another one, and through Ray Serve.

Two servers share a bucket. The tenants are those of the first, so that it computes all answers, and the ways
to it differ alone. Ray Serve's ingress passes a call to a deployment that ranks the servers as HMI does.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path

from bench.cases.cluster.beside import CALLERS, SETTINGS, Bench, figures
from bench.cases.serve.http_fleet import copied, target, wait_chosen
from bench.harness.home import tenant_of
from bench.harness.load import RequestTarget
from bench.harness.report import Figure
from bench.harness.server import NO_JOBS, Server, hmi, running
from hmi.api.nodes import ring
from hmi.config import Settings
from hmi.manager import Manager


def measure(bench: Bench, report: Callable[[str], None]) -> Iterator[Figure]:
    """Yield times and rates. Raises Unavailable."""

    def node(name: str, role: str) -> Server:
        options = ("--bucket", str(folder / "bucket"), "--role", role, "--no-improve")
        return stack.enter_context(running(hmi(folder / name, *NO_JOBS, *options, name=name), folder))

    home, folder = bench.home, bench.folder
    with ExitStack() as stack:
        report("two servers that share a bucket")
        copied(home, folder / "first")
        with closing(Manager(Settings(data=folder / "first", job_workers=0))) as manager:
            _, key = manager.create_key(None, ("admin",))
        servers = [node("first", "primary"), node("second", "replica")]
        ids = {json.loads(server.get("/manage/server", key))["id"]: server for server in servers}
        first, second = ids
        names = [i for i in range(home.tenants) if ring.ranked(tenant_of(i), ids)[0] == first]
        targets = [target(ids[first].arm, home, i) for i in names]
        bench.load([ids[first]], targets, CALLERS[-1], len(targets))
        chosen = wait_chosen(ids[first], bench.sender, home, bench.plan.pairs == 1)
        yield Figure("ingress_tenants", len(names), "tenants", why=f"executor: {chosen}")
        urls = json.dumps({id: f"http://127.0.0.1:{server.port}" for id, server in ids.items()})
        options = ("--servers", urls, "--ring", str(Path(ring.__file__)))
        echo = [RequestTarget("/echo")]
        for mode, settings in SETTINGS.items():
            report(f"Ray Serve in front, by its {mode}")
            with running(bench.peer(mode, settings, "route", *options), folder) as ray:
                here, there = ids[first], ids[second]
                ways = {"direct": [here], "passed": [there, here], "ray": [ray, here]}
                for way in ways.values():
                    bench.load(way, targets, CALLERS[-1], len(targets))
                yield Figure(f"{mode}_idle", bench.wait_idle(ray), "cores", why="without any call")
                for callers in CALLERS:
                    works = {k: partial(bench.load, way, targets, callers) for k, way in ways.items()}
                    works["echo"] = partial(bench.load, [ray], echo, callers)
                    yield from figures(f"{mode}_{callers}", works, bench.plan.pairs, "passed")
        view = {id: json.loads(server.get("/manage/server", key)) for id, server in ids.items()}
        yield Figure("ingress_passed", view[second]["passed"], "calls", why="by the second server")
        yield Figure("ingress_answered", view[first]["answered"], "calls", why="for it by the first")
