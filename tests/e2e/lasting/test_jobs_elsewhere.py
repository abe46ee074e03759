"""Jobs of servers that share a bucket: replicas run them, and one that dies costs what followed its last
checkpoint."""

from __future__ import annotations

import json
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

REPEATED = 300
"""So often the texts of a large corpus recur: counting it takes longer than a server takes to start."""


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
    assert not [one for one in Bucket(str(nodes.bucket)).names("jobs") if built in one or trained in one]
    replica.kill()


def test_a_replica_that_dies_costs_what_followed_its_last_checkpoint(nodes: Nodes, primary: Lab) -> None:
    bucket, replica = Bucket(str(nodes.bucket)), replica_of(nodes, "third")
    job = fine_tune(primary, "acme.long", epochs=60)
    wait_until(lambda: any("checkpoint" in _listed(bucket, job) for _ in [0]), 120)
    began = record(primary, job)
    assert (began["state"], began["node"]) == ("running", node_of(replica))
    replica.kill()
    fourth = replica_of(nodes, "fourth")
    succeeded(primary, job)
    ended = record(primary, job)
    assert (ended["node"], ended["attempts"]) == (node_of(fourth), 2)
    assert fourth.ask("acme.long") == primary.ask("acme.long")


def test_servers_count_one_corpus_and_one_of_them_dies(nodes: Nodes, primary: Lab) -> None:
    """Whichever server has the build. The corpus repeats few texts, so little follows the counting."""
    texts, bucket = random_texts(400, seed=8) * REPEATED, Bucket(str(nodes.bucket))
    corpus = primary.file("large", "\n".join(texts).encode())
    cut = ("--count-part-bytes", str(corpus.stat().st_size // 24))

    def build(domain: str) -> str:
        body = {"domain": domain, "alpha": 60}
        return str(primary.client.request("POST", "/manage/domains", body, files={"corpus": corpus})["job"])

    def parts(job: str) -> list[dict[str, Any]]:
        return [
            one for one in records(primary) if one["kind"] == "count_part" and one["spec"]["build"] == job
        ]

    def counted(job: str, node: str) -> int:
        return sum(one["state"] == "succeeded" and one.get("node") == node for one in parts(job))

    fifth = nodes.start("fifth", "replica", "--replica-jobs", "1")
    succeeded(primary, build("tiny/alone"))
    fifth.kill()
    primary.kill()
    primary.arguments += ("--job-workers", "1", *cut)
    primary.start()

    shared = build("tiny/shared")
    wait_until(lambda: record(primary, shared)["state"] == "running")
    assert record(primary, shared)["node"] == node_of(primary)
    fifth.arguments += cut
    fifth.start()
    node = node_of(fifth)
    wait_until(lambda: counted(shared, node) > 0, 60)
    wait_until(lambda: any(one["state"] == "running" and one["node"] == node for one in parts(shared)))
    fifth.kill()
    forget(primary, bucket, node)
    succeeded(primary, shared)
    assert not parts(shared)
    same(primary, "tiny/alone", "tiny/shared")

    primary.kill()
    primary.arguments += ("--job-workers", "0")
    primary.start()
    fifth.start()
    there = build("tiny/there")
    wait_until(lambda: record(primary, there)["state"] == "running")
    primary.kill()
    primary.arguments += ("--job-workers", "1")
    primary.start()
    wait_until(lambda: counted(there, node_of(primary)) > 0, 60)
    succeeded(primary, there)
    same(primary, "tiny/alone", "tiny/there")
    wait_until(lambda: not [name for name in bucket.names("jobs") if there in name or shared in name])
    fifth.kill()


def records(lab: Lab) -> list[dict[str, Any]]:
    registry = Registry.open(lab.data / "registry", checked=True)
    try:
        return [json.loads(one.model_dump_json()) for one in registry.jobs()]
    finally:
        registry.close()


def forget(lab: Lab, bucket: Bucket, node: str) -> None:
    """Take a server that is dead off the list, as the primary does after half a minute."""
    registry = Registry.open(lab.data / "registry", checked=True, journal=bucket.journal)
    try:
        registry.leave(node)
    finally:
        registry.close()


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
