"""Measures servers that share a bucket: a primary, replicas, and the same server without a bucket."""

from __future__ import annotations

import json
import os
import random
import secrets
import shutil
import signal
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from functools import partial
from http.client import HTTPConnection
from multiprocessing import get_context
from pathlib import Path
from typing import Any

from bench.cases.serve.http_fleet import copied, guard, target, wait_chosen
from bench.harness.home import (
    MODEL,
    ROOT,
    Contents,
    Ground,
    Home,
    HomeModel,
    build,
    publish_at_once,
    tenant_of,
    write_tenants,
)
from bench.harness.load import LoadRequests, client
from bench.harness.report import Figure, in_turn, seconds
from bench.harness.server import NO_JOBS, Server, hmi, running
from hmi.config import Settings
from hmi.core import ModelId
from hmi.errors import Conflict, Unavailable
from hmi.manager import Manager
from hmi.manager.following import LOOK_S
from hmi.stores.bucket import Bucket
from hmi.stores.layout import Layout
from hmi.stores.records.registry import Registry

WRITERS, JOINS, REPLICAS = 4, 3, 3
TEXTS, CALLERS = 64, 16
GOAL = 1.02
"""The largest factor by which a bucket may slow calls to infer."""
LONGEST_S = 120.0
FORM = b'--f\r\nContent-Disposition: form-data; name="%b"%b\r\n\r\n%b\r\n'
Report = Callable[[str], None]


@dataclass(frozen=True)
class NodesPlan:
    """The sizes of a run. The defaults give figures."""

    contents: Contents = field(default_factory=lambda: Contents(8))
    changes: int = 200
    rollbacks: int = 20
    uploads: int = 5
    upload_bytes: int = 50_000_000
    records: int = 10_000
    """Tenants of the registry that a new node joins."""
    seconds: float = 3.0
    pairs: int = 5
    reads_s: float = 30.0
    """Seconds for which the replica is read while another primary starts."""
    quick: bool = False


QUICK = NodesPlan(Contents(2), 4, 2, 1, 100_000, 20, 0.3, 1, 15.0, quick=True)


def run(plan: NodesPlan, url: str | None, data: Path | None, report: Report) -> Iterator[Figure]:
    """Measure. url: the bucket; None: a temporary folder. data: a folder that keeps the tenants.

    Raises StorageFull; Unavailable if a server or the bucket does not answer.
    """
    with tempfile.TemporaryDirectory(prefix="hmi-bench-") as made:
        folder = Path(made)
        report(f"{plan.contents.tenants} tenants with a model of two versions each")
        home = build(plan.contents, (data or folder) / "bench-nodes")
        guard(home)
        with closing(Manager(Settings(data=home.data, job_workers=0))) as manager:
            second = [HomeModel(tenant_of(i), 1_000 + i, number=2) for i in range(home.tenants)]
            if len(manager.registry.model(home.model(0)).versions) < 2:
                write_tenants(manager, Ground.of(manager, ROOT), second)
        place = f"{url or folder}/bucket-{secrets.token_hex(4)}"
        yield from _changes(plan, home, folder, f"{place}-changes", report)
        yield from _join(plan, home, folder, f"{place}-join", report)
        yield from _servers(plan, home, folder, f"{place}-servers", report)


def _changes(plan: NodesPlan, home: Home, folder: Path, place: str, report: Report) -> Iterator[Figure]:
    report("changes of the registry")
    works: dict[str, Callable[[], float]] = {}
    with ExitStack() as stack:
        for name, journal in (("alone", None), ("journal", Bucket(place).journal)):
            path = Path(shutil.copytree(Layout(home.data).registry, folder / f"registry-{name}"))
            registry = stack.enter_context(closing(Registry.open(path, journal=journal)))
            works[name] = partial(seconds, partial(_change, registry, home.model(0)), time.perf_counter)
        yield from _times("change", in_turn(works, plan.changes), "journal", "alone")
        report(f"{WRITERS} nodes that change it at the same time")
        before, made = registry.model(home.model(0)).current, WRITERS * plan.changes
        with ProcessPoolExecutor(WRITERS, mp_context=get_context("spawn")) as pool:
            work = partial(_many, place, home.model(0), plan.changes)
            spans = list(pool.map(work, [folder / f"node-{i}" for i in range(WRITERS)]))
        took = max(end for _, end, _ in spans) - min(begun for begun, _, _ in spans)
        yield Figure("at_once", made / took, "changes/s", runs=made)
        yield Figure("at_once_refused", sum(refused for _, _, refused in spans), "changes", runs=made)
        registry.catch_up()
        lost = made - (registry.model(home.model(0)).current - before)
        yield Figure("at_once_lost", lost, "changes", 0, False, made)


def _change(registry: Registry, model: ModelId) -> None:
    """Change a model's record as a rollback does, so that each change counts."""
    registry.change_model(model, lambda record: record.model_copy(update={"current": record.current + 1}))


def _many(place: str, model: ModelId, changes: int, folder: Path) -> tuple[float, float, int]:
    """Make changes as one more node. Returns when it began, when it ended (monotonic clock), and how many
    changes were refused, and made again, because other nodes were always first."""
    refused = done = 0
    with closing(Registry.open(folder, journal=Bucket(place).journal)) as registry:
        began = time.monotonic()
        while done < changes:
            try:
                _change(registry, model)
                done += 1
            except Conflict:
                refused += 1
        return began, time.monotonic(), refused


def _join(plan: NodesPlan, home: Home, folder: Path, place: str, report: Report) -> Iterator[Figure]:
    report(f"a registry of {plan.records} tenants, and a node that joins it")
    (folder / "many").mkdir()
    shutil.copytree(Layout(home.data).registry, Layout(folder / "many").registry)
    with closing(Manager(Settings(data=folder / "many", job_workers=0))) as manager:
        version = manager.registry.model(home.model(0)).versions[0]
        missing = range(home.tenants, plan.records)
        publish_at_once(manager, [(ModelId(tenant_of(i), MODEL), version) for i in missing])
    journal = Bucket(place).journal

    def join(name: str) -> float:
        began = time.perf_counter()
        with closing(Registry.open(folder / name, journal=journal)) as registry:
            took = time.perf_counter() - began
            assert registry.count_tenants() == plan.records
            return took

    yield Figure("share", join(str(Layout(folder / "many").registry)), "s", peer="an empty bucket")
    yield Figure("join", statistics.median(join(f"join-{i}") for i in range(JOINS)), "s", runs=JOINS)
    yield Figure("join_bytes", journal.need_head()[0].whole.bytes, "bytes")


class _Caller:
    """Calls of one tenant to one server, over a connection that stays open."""

    def __init__(self, server: Server, home: Home, tenant: int = 0) -> None:
        self._connection = HTTPConnection("127.0.0.1", server.port, timeout=LONGEST_S)
        self._key, self.model, self.tenant = home.key(tenant), home.model(tenant), tenant_of(tenant)

    def __call__(self, method: str, path: str, body: Any = None) -> Any:
        """Returns the JSON of the answer. Raises Unavailable if it is no success, OSError, HTTPException."""
        kind = "multipart/form-data; boundary=f" if isinstance(body, bytes) else "application/json"
        data = body if body is None or isinstance(body, bytes) else json.dumps(body)
        headers = {"Authorization": f"Bearer {self._key}", "Content-Type": kind}
        self._connection.request(method, path, data, headers if body else headers | {"Content-Type": ""})
        answer = self._connection.getresponse()
        found = answer.read()
        if answer.status >= 300:
            raise Unavailable(f"{method} {path} answered {answer.status}: {found[:300]!r}")
        return json.loads(found)

    def version(self) -> int:
        """The version that answers a text."""
        return int(self("POST", f"/infer/{self.model}", {"inputs": ["good market"]})["version"])

    def roll_back(self, version: int) -> None:
        self("POST", f"/manage/models/{self.model}/rollback", {"version": version})

    def show(self) -> None:
        self("GET", f"/manage/tenants/{self.tenant}")

    def upload(self, form: bytes) -> float:
        """Returns the seconds of the upload. The file is deleted afterwards."""
        began = time.perf_counter()
        file = self("POST", "/v1/files", form)["id"]
        took = time.perf_counter() - began
        self("DELETE", f"/v1/files/{file}")
        return took


def _servers(plan: NodesPlan, home: Home, folder: Path, place: str, report: Report) -> Iterator[Figure]:
    def node(name: str, role: str) -> Server:
        arm = hmi(folder / name, *NO_JOBS, "--bucket", place, "--role", role, "--no-improve", name=name)
        return stack.enter_context(running(arm, folder))

    with ExitStack() as stack:
        report("a primary, and cold replicas")
        copied(home, folder / "primary")
        primary = node("primary", "primary")
        manage, cold = _Caller(primary, home), {"first": list[float](), "second": list[float]()}
        for i in range(REPLICAS):
            replica = node(f"replica {i}", "replica")
            for tenant, name in enumerate(cold):
                cold[name].append(seconds(_Caller(replica, home, tenant).version, time.perf_counter))
            if i < REPLICAS - 1:
                os.killpg(replica.pid, signal.SIGKILL)
        for name, times in cold.items():
            yield Figure(f"cold_{name}", 1e3 * statistics.median(times), "ms", runs=REPLICAS)
        through = _Caller(replica, home)
        report("rollbacks, and how soon they are live at the replica")
        live, draw = list[float](), random.Random(1)
        for turn in range(plan.rollbacks):
            time.sleep(LOOK_S * draw.random())  # else it would always follow the replica's last look
            manage.roll_back(1 + turn % 2)
            began = time.perf_counter()
            while through.version() != 1 + turn % 2:
                time.sleep(0.001)
            live.append(1e3 * (time.perf_counter() - began))
        yield Figure("live", statistics.median(live), "ms", runs=len(live))
        yield Figure("live_worst", max(live), "ms", runs=len(live))
        report("calls that manage")
        timed = partial(seconds, clock=time.perf_counter)
        calls = {"direct": partial(timed, manage.show), "through": partial(timed, through.show)}
        yield from _times("get", in_turn(calls, plan.changes), "through", "direct")
        line = b'{"text": "good market", "label": "a"}\n'
        file = (b'file"; filename="rows.jsonl', b"", line * (plan.upload_bytes // len(line)))
        form = b"".join(FORM % part for part in ((b"purpose", b"", b"fine-tune"), file)) + b"--f--\r\n"
        calls = {"direct": partial(manage.upload, form), "through": partial(through.upload, form)}
        yield from _times("upload", in_turn(calls, plan.uploads), "through", "direct")
        yield from _infer(plan, home, folder, primary, replica, report)
        yield from _take_over(plan, home, primary, replica, lambda: node("heir", "primary"), report)


def _times(name: str, found: dict[str, list[float]], over: str, under: str) -> Iterator[Figure]:
    """The seconds of two works in turn, as milliseconds and as a ratio of their medians."""
    for arm, times in found.items():
        yield Figure(f"{name}_{arm}", 1e3 * statistics.median(times), "ms", runs=len(times))
    ratio = statistics.median(found[over]) / statistics.median(found[under])
    yield Figure(f"{name}_{over}_over_{under}", ratio, "x", runs=len(found[over]))


def _infer(
    plan: NodesPlan, home: Home, folder: Path, primary: Server, replica: Server, report: Report
) -> Iterator[Figure]:
    """Calls to infer at the replica and at a server without a bucket, in turn. The others are halted."""
    report("calls to infer, with a bucket and without")
    with client() as sender, running(hmi(copied(home, folder / "plain"), *NO_JOBS), folder) as plain:
        chosen = {wait_chosen(server, sender, home, plan.quick) for server in (replica, plain)}
        texts = [json.dumps({"inputs": text}) for text in home.texts().of(None, TEXTS)]

        def phase(server: Server, callers: int) -> Any:
            targets = [target(server.arm, home, i) for i in range(home.tenants)]
            requests = LoadRequests(server.port, targets, texts)
            with server.awake():
                return sender.closed(requests, seconds=plan.seconds, callers=callers)

        for server in (primary, replica, plain):
            server.halt()
        for callers in (1, CALLERS):
            works = {"replica": partial(phase, replica, callers), "alone": partial(phase, plain, callers)}
            seen: Any = in_turn(works, plan.pairs)  # LoadFigures, not seconds
            why = f"executors: {', '.join(sorted(chosen))}"
            for share in (0.5, 0.99):
                found = {arm: [one.at(share) / 1e3 for one in some] for arm, some in seen.items()}
                yield from _times(f"infer_{callers}_p{share * 100:.0f}", found, "replica", "alone")
            slower = [a.a_second / r.a_second for r, a in zip(seen["replica"], seen["alone"], strict=True)]
            runs = len(slower)
            yield Figure(
                f"infer_{callers}_slower", statistics.median(slower), "x", GOAL, False, runs, "alone", why
            )
            for arm, some in seen.items():
                rate = statistics.median(one.a_second for one in some)
                yield Figure(f"infer_{callers}_{arm}", rate, "calls/s", runs=runs)
            failed = sum(one.failures for some in seen.values() for one in some)
            yield Figure(f"infer_{callers}_failed", failed, "calls", 0, False)
        for server in (primary, replica):
            server.go_on()


def _take_over(
    plan: NodesPlan, home: Home, primary: Server, replica: Server, heir: Callable[[], Server], report: Report
) -> Iterator[Figure]:
    report("the primary is killed, and another one starts")
    with client() as sender:
        targets = [target(replica.arm, home, i) for i in range(home.tenants)]
        requests = LoadRequests(replica.port, targets, [json.dumps({"inputs": "good market"})])
        sender.begin_closed(requests, seconds=plan.reads_s, think_s=0.01)
        os.killpg(primary.pid, signal.SIGKILL)
        began = time.monotonic()
        _Caller(heir(), home).show()
        yield Figure("take_over", time.monotonic() - began, "s")
        through = _Caller(replica, home)
        while True:
            with suppress(Unavailable):
                through.roll_back(1)
                break
            assert time.monotonic() < began + LONGEST_S, "the replica never found the new primary"
        yield Figure("take_over_through_replica", time.monotonic() - began, "s", why="a change")
        seen = sender.end()
        yield Figure("take_over_reads_failed", seen.failures, "calls", 0, False, len(seen.ms))
