"""Servers that Ray keeps: killed, upgraded and scaled under load. Slow: `make cluster` (KILLS=20)."""

from __future__ import annotations

import json
import os
import random
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from hmi.errors import HmiError
from tests.cluster.lab import APART, HEAD, NODES, PYTHON, Cluster, connect, kill, load, networks
from tests.e2e.lasting.test_nodes import Nodes, with_root
from tests.waiting import wait_until

pytestmark = pytest.mark.slow
KILLS = int(os.environ.get("KILLS", "2"))
AWAY_S = float(os.environ.get("AWAY", "20"))
"""For how long the bucket is away."""
REDIS = bool(shutil.which("redis-server")) and os.environ.get("REDIS") != "0"
"""Whether what Ray's head knows is kept in Redis."""
TENANTS = [f"t{i}" for i in range(12)]
NONE: dict[str, Any] = {"wrong": [], "lost": [], "failed elsewhere": {}}


def has_ray() -> bool:
    return subprocess.run([PYTHON, "-c", "import ray"], capture_output=True).returncode == 0


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory, tiny_source: Path) -> Iterator[Cluster]:
    if not has_ray():
        pytest.skip("Ray has an environment of its own")
    work = tmp_path_factory.mktemp("cluster")
    first = with_root(Nodes(work), tiny_source, name="seed")
    for tenant in TENANTS:
        first.client.request("POST", "/manage/tenants", {"tenant": tenant})
    bodies = [{"model": f"{t}.e", "domain": "tiny", "task": "embedding"} for t in TENANTS]
    jobs = [first.client.request("POST", "/manage/models", body)["job"] for body in bodies]
    assert [view["error"] for view in first.finish(jobs)] == [None] * len(jobs)
    assert first.server is not None
    first.server.terminate()
    assert first.server.wait(60) == 0
    command = [sys.executable, "-m", "hmi", "key", "create", "--admin", "--json", "--data", str(first.data)]
    where = {**os.environ, "HMI_BUCKET": str(work / "bucket")}
    made = subprocess.run(command, env=where, capture_output=True, check=True)
    found = Cluster(work, TENANTS, json.loads(made.stdout)["key"])
    with networks():
        yield from running(found)


def running(found: Cluster) -> Iterator[Cluster]:
    """Ray and the servers, until the tests end."""
    began = time.monotonic()
    try:
        if REDIS:
            found.start_redis()
        for node in NODES:
            found.start_ray(node)
        started = time.monotonic()
        found.up()
        say("up", ray_s=started - began, servers_s=time.monotonic() - started)
        found.await_whole()
        found.right = {tenant: found.embed(HEAD, tenant) for tenant in TENANTS}
        yield found
    finally:
        for node in list(found.rays):
            found.kill_ray(node)
        for node in NODES:
            if (server := found.server(node)) is not None:
                kill(server.pid)
        if found.redis is not None:
            found.redis.kill()
            found.redis.wait()


def say(what: str, **figures: Any) -> None:
    """Append a line of figures to the file that FIGURES names."""
    if "FIGURES" in os.environ:
        rounded = {k: round(v, 2) if isinstance(v, float) else v for k, v in figures.items()}
        with Path(os.environ["FIGURES"]).open("a") as out:
            out.write(json.dumps({"what": what, **rounded}) + "\n")


def faults(cluster: Cluster, name: str, node: str, act: Callable[[], None]) -> dict[str, Any]:
    """Let something happen to a node under load. Returns what was wrong, lost, or failed elsewhere."""
    with load(cluster, name) as seen:
        time.sleep(1.0)
        act()
        whole_s = cluster.await_whole()
        time.sleep(1.0)
    others = {at: count for at, count in seen.failed.items() if at != node}
    lost = sorted(set(seen.created) - cluster.all_tenants())
    say(
        name.rpartition("-")[0],
        answers=seen.answers,
        wrong=len(seen.wrong),
        failed_there=seen.failed[node],
        failed_elsewhere=sum(others.values()),
        unanswered=seen.unanswered,
        changes=len(seen.created),
        refused=seen.refused,
        lost=len(lost),
        no_change_s=seen.longest_s,
        whole_s=whole_s,
    )
    assert seen.answers > 0
    return {"wrong": seen.wrong, "lost": lost, "failed elsewhere": others}


@pytest.mark.parametrize("turn", range(KILLS))
def test_a_server_is_killed(cluster: Cluster, turn: int) -> None:
    node = random.Random(turn).choice(NODES)
    server = cluster.server(node)

    def act() -> None:
        kill(server.pid)
        wait_until(lambda: cluster.server(node) not in (None, server))

    assert faults(cluster, f"server-{turn}", node, act) == NONE


@pytest.mark.parametrize("turn", range(KILLS))
def test_a_node_is_killed(cluster: Cluster, turn: int) -> None:
    """Ray and the server of a machine die together, and the machine comes back."""
    node = random.Random(turn).choice(NODES[1:])

    def act() -> None:
        kill(cluster.server(node).pid)
        cluster.kill_ray(node)
        time.sleep(2.0)
        cluster.start_ray(node)

    assert faults(cluster, f"node-{turn}", node, act) == NONE


@pytest.mark.skipif(not APART, reason="nodes have no network of their own here")
@pytest.mark.parametrize("turn", range((KILLS + 1) // 2))
def test_a_node_is_cut_off(cluster: Cluster, turn: int) -> None:
    """No one reaches a node for a while, though its server runs. Each other time it is the primary."""
    node = str(cluster.primary())
    if turn % 2:
        node = next(one for one in NODES[1:] if one != node)

    def act() -> None:
        connect(node, up=False)
        time.sleep(10.0)  # Ray waits longer for its nodes
        connect(node, up=True)

    assert faults(cluster, f"cut-{turn}", node, act) == NONE


@pytest.mark.parametrize("turn", range((KILLS + 1) // 2))
def test_the_head_is_killed(cluster: Cluster, turn: int) -> None:
    """Ray's head dies, with its server or without. The others go on without it. With Redis it comes back;
    without it, the other nodes' Ray ends, and `cluster up` adopts the servers."""
    with_server = turn % 2 == 1
    servers = {node: cluster.server(node).pid for node in NODES}

    def act() -> None:
        if with_server:
            kill(servers[HEAD])
        cluster.kill_ray(HEAD)
        if cluster.redis is not None:
            time.sleep(2.0)
            cluster.start_ray(HEAD)
            wait_until(lambda: len(cluster.hmi("status")["servers"]) == len(NODES), 120.0)
            return
        time.sleep(25.0)  # until the other nodes' Ray has given up
        for node in NODES[1:]:
            cluster.kill_ray(node)
        for node in NODES:
            cluster.start_ray(node)
        cluster.up()

    assert faults(cluster, f"head{'-redis' * REDIS}-{turn}", HEAD if with_server else "", act) == NONE
    kept = [node for node in NODES if not (with_server and node == HEAD)]
    assert {node: cluster.server(node).pid for node in kept} == {node: servers[node] for node in kept}


def test_the_bucket_is_away(cluster: Cluster) -> None:
    """All calls are answered meanwhile, and no change is acknowledged that is not there afterwards."""
    aside = cluster.bucket.with_name("aside")

    def act() -> None:
        cluster.bucket.rename(aside)
        cluster.bucket.write_text("a file, so that nothing can be read or written below it")
        time.sleep(AWAY_S)
        cluster.bucket.unlink()
        aside.rename(cluster.bucket)
        wait_until(lambda: creates(cluster, "back"), 60.0)

    assert faults(cluster, "away-0", "", act) == NONE


def creates(cluster: Cluster, tenant: str) -> bool:
    try:
        cluster.client(HEAD).request("POST", "/manage/tenants", {"tenant": tenant})
    except HmiError:
        return False
    return True


def test_all_servers_are_started_anew_under_load(cluster: Cluster) -> None:
    before = {cluster.server(node).pid for node in NODES}
    primary = cluster.primary()
    with load(cluster, "upgrade-0") as seen:
        began = time.monotonic()
        assert len(cluster.hmi("upgrade")["servers"]) == len(NODES)
        took = time.monotonic() - began
    cluster.await_whole()
    assert not before & {cluster.server(node).pid for node in NODES}
    assert cluster.primary() != primary
    say(
        "upgrade",
        answers=seen.answers,
        failed=dict(seen.failed),
        unanswered=seen.unanswered,
        refused=seen.refused,
        took_s=took,
    )
    assert seen.wrong == []
    assert seen.unanswered == 0


def test_the_number_of_servers_follows(cluster: Cluster) -> None:
    cluster.hmi("scale", "2")
    wait_until(lambda: sum(cluster.server(node) is not None for node in NODES) == 2, 120.0)
    cluster.hmi("scale", "3")
    cluster.await_whole()
    assert all(cluster.server(node) is not None for node in NODES)
