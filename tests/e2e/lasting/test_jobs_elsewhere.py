"""Jobs of servers that share a bucket: replicas run them, and one that dies costs what followed its last
checkpoint."""

from __future__ import annotations

import json
import os
import signal
from contextlib import closing, suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from hmi.stores.bucket import Bucket
from hmi.stores.records.registry import Registry
from plot_store import Store
from tests.e2e.lasting.test_kill import Lab, fine_tune
from tests.e2e.lasting.test_nodes import Nodes, answers, nodes, succeeded, update, with_root
from tests.tiny import random_texts
from tests.waiting import wait_until

__all__ = ["nodes"]

PARTS = 4
REPEATED = 160
"""So often the texts of a large corpus recur: to count it takes long enough to look at it meanwhile."""


@pytest.fixture(scope="module")
def primary(nodes: Nodes, tiny_source: Path) -> Lab:
    """It imports a root, and then runs no jobs."""
    lab = with_root(nodes, tiny_source)
    lab.client.request("POST", "/manage/tenants", {"tenant": "acme"})
    lab.kill()
    lab.arguments += ("--job-workers", "0")
    lab.start()
    return lab


def replica_of(nodes: Nodes, name: str) -> Lab:
    return nodes.start(name, "replica", "--replica-jobs", "1")


def record(lab: Lab, job: str) -> dict[str, Any]:
    """A job's record in a server's registry."""
    registry = Registry.open(lab.data / "registry", checked=True)
    try:
        return json.loads(registry.job(job).model_dump_json())
    finally:
        registry.close()


def node_of(lab: Lab) -> str:
    (entry,) = [
        one
        for one in lab.client.request("GET", "/manage/servers")["servers"]
        if one["url"].endswith(f":{lab.port}")
    ]
    return str(entry["id"])


def test_a_replica_with_an_empty_folder_builds_and_trains(nodes: Nodes, primary: Lab) -> None:
    replica = replica_of(nodes, "second")
    corpus = primary.file("corpus", "\n".join(random_texts(500, seed=3)).encode())
    body = {"domain": "tiny/news", "alpha": 100}
    built = primary.client.request("POST", "/manage/domains", body, files={"corpus": corpus})["job"]
    assert succeeded(primary, built)["progress"]["total"] > 0
    assert "tiny/news" in primary.domains()
    trained = fine_tune(primary, "acme.first", epochs=2, domain="tiny/news")
    succeeded(primary, trained)
    wait_until(lambda: answers(replica, "acme.first"))
    assert replica.ask("acme.first") == primary.ask("acme.first")
    assert record(primary, trained)["node"] == node_of(replica)
    assert record(primary, built)["made"]
    assert primary.client.request("GET", f"/manage/jobs/{trained}")["server"] == replica.client.url
    jobs = primary.client.request("GET", "/manage/jobs")["jobs"]
    assert {job["job"]: job["server"] for job in jobs}[built] == primary.client.url, "which published it"

    body = {"alpha": 100}
    corpus = primary.file("corpus", "\n".join(random_texts(500, seed=4)).encode())
    path = "/manage/domains/tiny%2Fnews/update"
    succeeded(primary, primary.client.request("POST", path, body, files={"corpus": corpus})["job"])
    succeeded(primary, update(primary, "acme.first"))
    rows = "\n".join(json.dumps({"text": text}) for text in random_texts(60, seed=5))
    texts = primary.file("texts", rows.encode())
    path = "/manage/models/acme.first/ramps"
    succeeded(primary, primary.client.request("POST", path, {}, files={"unlabelled": texts})["job"])
    wait_until(lambda: replica.ask("acme.first") == primary.ask("acme.first"))
    names = partial(Bucket(str(nodes.bucket)).names, "jobs")
    wait_until(lambda: not [one for one in names() if built in one or trained in one])
    replica.kill()


def test_a_replica_that_dies_costs_what_followed_its_last_checkpoint(nodes: Nodes, primary: Lab) -> None:
    bucket, replica = Bucket(str(nodes.bucket)), replica_of(nodes, "third")
    job = fine_tune(primary, "acme.long", epochs=60)
    wait_until(lambda: any("checkpoint" in _listed(bucket, job) for _ in [0]), 120)
    wait_until(lambda: record(primary, job)["state"] == "running")  # it follows
    assert record(primary, job)["node"] == node_of(replica)
    replica.kill()
    fourth = replica_of(nodes, "fourth")
    succeeded(primary, job)
    ended = record(primary, job)
    assert (ended["node"], ended["attempts"]) == (node_of(fourth), 2)
    assert fourth.ask("acme.long") == primary.ask("acme.long")
    fourth.kill()


def test_servers_count_one_corpus(nodes: Nodes, primary: Lab) -> None:
    """The primary builds, and the other server dies while it counts a part."""
    bucket = Bucket(str(nodes.bucket))
    # It repeats few texts, so little follows the counting.
    corpus = primary.file("large", "\n".join(random_texts(400, seed=8) * REPEATED).encode())
    cut = ("--count-part-bytes", str(corpus.stat().st_size // PARTS + 1))

    def build(domain: str, by: Lab) -> str:
        body = {"domain": domain, "alpha": 60}
        return at(
            by, primary.client.request("POST", "/manage/domains", body, files={"corpus": corpus})["job"]
        )

    def at(lab: Lab, job: str) -> str:
        wait_until(lambda: record(primary, job)["state"] == "running")
        assert record(primary, job)["node"] == node_of(lab)
        return job

    def parts(job: str) -> list[tuple[str, str | None]]:
        """The state and server of each part that the build has not taken back."""
        with closing(Registry.open(primary.data / "registry", checked=True)) as registry:
            return [(one.state, one.node) for one in registry.jobs() if one.spec.get("build") == job]

    def phase(job: str) -> str | None:
        progress = primary.client.request("GET", f"/manage/jobs/{job}")["progress"]
        return progress and progress["phase"]

    replica = replica_of(nodes, "fifth")
    succeeded(primary, build("tiny/alone", replica))
    busy = at(replica, fine_tune(primary, "acme.second", epochs=200))  # it has one place for jobs
    primary.kill()
    primary.arguments += ("--job-workers", "1", *cut)
    primary.start()
    node = node_of(replica)
    shared = build("tiny/shared", primary)
    # Not while it queues parts: it would keep everybody from the registry.
    wait_until(lambda: phase(shared) == "counting n-grams")
    process = holder(primary, shared)
    os.kill(process, signal.SIGSTOP)  # it would have counted everything before the other server begins
    primary.client.request("DELETE", f"/manage/jobs/{busy}")
    wait_until(lambda: ("running", node) in parts(shared))
    replica.kill()
    assert ("running", node) in parts(shared)
    with closing(Registry.open(primary.data / "registry", checked=True, journal=bucket.journal)) as registry:
        registry.leave(node)  # as the primary does when a server does not answer
    os.kill(process, signal.SIGCONT)
    succeeded(primary, shared)
    same(primary, "tiny/alone", "tiny/shared")
    assert not parts(shared)
    assert not [name for name in bucket.names("jobs") if shared in name]


def holder(lab: Lab, job: str) -> int:
    """The process that runs a job: it holds the lock of the job's folder."""
    lock = str(lab.data / "jobs" / job / "lock")
    for link in Path("/proc").glob("[0-9]*/fd/*"):
        with suppress(OSError):
            if os.readlink(link) == lock and int(link.parts[2]) != lab.server.pid:  # type: ignore[union-attr]
                return int(link.parts[2])
    raise AssertionError(f"no process runs {job}")


def same(lab: Lab, one: str, other: str) -> None:
    with Store.open(lab.data / "plots", read_only=True) as store:
        a, b = store.version(one), store.version(other)
        assert a.meta["report"] == b.meta["report"]
        with store.reader(a.id) as first, store.reader(b.id) as second:
            for order in (2, 3):
                ngrams = first.ngrams(order)
                assert np.array_equal(ngrams, second.ngrams(order))
                assert np.array_equal(first.get(order, ngrams)[0], second.get(order, ngrams)[0])


def _listed(bucket: Bucket, job: str) -> str:
    return " ".join(
        (bucket.read(name) or b"").decode() for name in bucket.names(f"jobs/{job}/kept") if "files" in name
    )
