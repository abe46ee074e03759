"""Which of several servers runs a job: exactly one, and only that one changes what the job changes."""

from __future__ import annotations

import json
import random
import threading
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from hmi.core import ModelId
from hmi.errors import Damaged, JobCancelled, Unavailable
from hmi.jobs.runtime.process import put_back
from hmi.stores.journal.journal import Journal
from hmi.stores.records import claims, model_table
from hmi.stores.records.claims import LostClaim
from hmi.stores.records.nodes import KINDS, PRIMARY, SERVER
from hmi.stores.records.registry import Registry
from hmi.stores.records.sealed import RegistryTxn
from hmi.stores.records.table import JOB, LIVE
from tests.hmi.labs.registry_lab import add_tenant, job
from tests.hmi.labs.runner_bodies import version_by


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Registry]]:
    """Three servers that share a registry. The first one is the primary."""
    with ExitStack() as stack:
        found = []
        for name in "abc":
            journal = Journal(str(tmp_path / "bucket"))
            found.append(Registry.open(tmp_path / name / "registry", journal=journal))
            stack.callback(found[-1].close)
        found[0].lead("http://a")
        add_tenant(found[0], "acme")
        yield found


def test_exactly_one_server_gets_a_job(servers: list[Registry]) -> None:
    rng, won = random.Random(5), set[int]()
    for turn in range(12):
        servers[0].put_job(job(f"j{turn}"))
        got = dict[int, bool]()
        start = threading.Barrier(3)

        def take(at: int, name: str, start: threading.Barrier = start, got: dict[int, bool] = got) -> None:
            start.wait()
            got[at] = servers[at].take_job(name)

        threads = [threading.Thread(target=take, args=(at, f"j{turn}")) for at in rng.sample(range(3), 3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        (winner,) = (at for at, has in got.items() if has)
        won.add(winner)
        for server in servers:
            server.catch_up()
            assert server.job(f"j{turn}").node == servers[winner].node()
        assert servers[winner].take_job(f"j{turn}"), "what it has, it may take again"


def test_a_replica_takes_only_what_it_may(servers: list[Registry]) -> None:
    primary, replica, _ = servers
    for name, changes in {
        "j1": {"kind": "erase", "tenant": None},
        "j2": {"for_primary": True},
        "j3": {"state": "running"},
        "j4": {"state": "cancelled"},
    }.items():
        primary.put_job(job(name, **changes))
        assert not replica.take_job(name), name
    assert [name for name in ("j1", "j2", "j3", "j4") if primary.take_job(name)] == ["j1", "j2"]
    with pytest.raises(Unavailable, match="primary"):
        add_tenant(replica, "globex")
    with pytest.raises(Unavailable, match="primary"):
        replica.update_job("j1", lambda record: record.model_copy(update={"attempts": 7}))


def test_a_replica_takes_nothing_from_a_primary_of_an_earlier_release(servers: list[Registry]) -> None:
    """Such a primary might not be able to read what the replica writes."""
    earlier, replica, _ = servers
    earlier.put_job(job("j1"))

    def write(txn: RegistryTxn, kinds: tuple[str, ...] | None) -> None:
        if kinds is None:
            txn.delete(KINDS)
        else:
            txn.put(KINDS, json.dumps({"node": earlier.node(), "kinds": kinds, "more": 1}).encode())

    for kinds in (None, (), ("erase",)):
        earlier._database.write(lambda txn, kinds=kinds: write(txn, kinds))  # type: ignore[misc]
        replica.catch_up()
        assert replica.primary_kinds() == {*(kinds or ())}
        assert not replica.take_job("j1")
    earlier.lead("http://a")  # as this release
    assert replica.take_job("j1")
    replica.lead("http://b")
    entry = json.dumps({"node": earlier.node(), "url": "http://a"}).encode()
    earlier._database.write(lambda txn: txn.put(PRIMARY, entry))  # as an earlier release takes over
    replica.catch_up()
    assert replica.primary_kinds() == set(), "they are those of another server"


def publish(server: Registry, name: str) -> None:
    """Publish a model as the process of a job does, at this server."""
    model, version = ModelId("acme", name), version_by(name)
    server._database.write(
        lambda txn: model_table.publish_model(server._table, txn, model, version), claims.by_holder(name)
    )


def test_only_the_server_that_has_a_job_publishes_for_it(servers: list[Registry]) -> None:
    """Against a reference that knows who has each job, in a random order of everything that may happen."""
    rng, holder, published, done = random.Random(11), dict[str, int | None](), dict[str, int](), set[str]()
    refused = 0
    for _ in range(400):
        at, act = (
            rng.randrange(3),
            rng.choice(("add", "take", "take", "run", "publish", "back", "end", "drop")),
        )
        if act == "add":
            servers[0].put_job(job(f"j{len(holder)}"))
            holder[f"j{len(holder)}"] = None
        live = sorted(holder.keys() - done)
        name = rng.choice(live[:4]) if live else ""
        if not name or (act == "publish" and name in published):
            continue
        server, mine = servers[at], holder[name] == at
        if act == "take":
            took = server.take_job(name)
            servers[at].catch_up()
            queued = server.job(name).state == "queued"
            assert took == (queued and holder[name] in (None, at)), (name, at)
            holder[name] = at if took else holder[name]
        elif act == "run" and mine:
            server.update_job(name, lambda record: record.model_copy(update={"state": "running"}))
        elif act == "publish":
            try:
                publish(server, name)
            except LostClaim:
                refused += 1
                assert not mine
            else:
                assert mine
                published[name] = at
        elif act == "back":  # the primary believes that the holder is gone
            servers[0].catch_up()
            put_back(servers[0], name, crashed=False, of=servers[0].job(name).node)
            holder[name] = None
        elif act == "end" and mine:
            server.update_job(name, lambda record: record.model_copy(update={"state": "succeeded"}))
            holder[name] = None
            done.add(name)
        elif act == "drop" and rng.random() < 0.2:
            servers[0].update_job(name, lambda record: record.model_copy(update={"state": "cancelled"}))
            holder[name] = None
            done.add(name)
    for server in servers:
        server.catch_up()
        assert {model.name for model in server.models()} == published.keys()
    assert len(published) > 3
    assert refused > 10


def test_nothing_is_published_for_a_job_whose_tenant_is_gone(servers: list[Registry]) -> None:
    primary, replica, _ = servers
    primary.put_job(job("j1"))
    assert replica.take_job("j1")
    replica.update_job("j1", lambda record: record.model_copy(update={"state": "running"}))
    assert replica.has_claim("j1")
    primary.delete_tenant("acme")
    add_tenant(primary, "acme")  # another one, by the same name
    with pytest.raises(JobCancelled):
        publish(replica, "j1")
    primary.forget_gone("j1")
    with pytest.raises(LostClaim):
        publish(replica, "j1")
    assert not replica.has_claim("j1")
    replica.forget_gone("j1")


def test_a_registry_of_its_own_knows_no_servers(tmp_path: Path) -> None:
    registry = Registry.open(tmp_path / "registry")
    add_tenant(registry, "acme")
    registry.put_job(job("j1", kind="erase", tenant=None))
    assert registry.node() == ""
    assert registry.take_job("j1")
    assert registry.job("j1").node is None
    assert "node" not in registry.job("j1").model_dump_json(), "an earlier release reads the record"
    # As in a backup of a server that shared its registry.
    registry.put_job(job("j2", state="running", node="0123", attempts=1))
    assert put_back(registry, "j2").state == "queued"
    registry.close()


def test_records_of_a_newer_release(servers: list[Registry]) -> None:
    """During an upgrade one server may have a newer release. Others read what they know of its entries, and
    refuse its jobs by name."""
    newer, older, third = servers
    older.enter("http://b")

    def write(txn: RegistryTxn) -> None:
        entry = {"node": newer.node(), "url": "http://a", "zone": "z1"}
        txn.put(SERVER + newer.node(), json.dumps(entry).encode())
        txn.put(PRIMARY, json.dumps(entry).encode())
        txn.put("zone/z1", b"a key of a newer release")
        for name, more in {"j1": {"kind": "dream"}, "j2": {"node": older.node(), "zone": "z1"}}.items():
            raw = json.loads(job(name, state="running").model_dump_json())
            txn.put(JOB + name, json.dumps({**raw, **more}).encode())
            txn.put(LIVE + name, b"")

    newer._database.write(write)
    older.catch_up()
    assert {one.node: one.url for one in older.servers()} == {
        newer.node(): "http://a",
        older.node(): "http://b",
    }
    primary = older.primary()
    assert primary is not None
    assert (primary.node, primary.url) == (newer.node(), "http://a")
    assert older._database.read(lambda txn: txn.get("zone/z1")) == b"a key of a newer release"
    assert older.live_jobs(tolerant=True) == []
    for read in (lambda: older.job("j1"), lambda: older.take_job("j1"), lambda: older.has_claim("j2")):
        with pytest.raises(Damaged, match="written by a newer release, or is damaged; upgrade"):
            read()
    third.enter("http://c")
    assert third.lead("http://c"), "it leads, whatever the newer one's entry said"
    newer._database.write(lambda txn: txn.put(SERVER + newer.node(), b"{}"), claims.anyone)
    older.catch_up()
    with pytest.raises(Damaged, match=r"'server/.*' cannot be read"):
        older.servers()
