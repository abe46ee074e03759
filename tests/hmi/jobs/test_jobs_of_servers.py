"""Runners of two servers that share a bucket, with real processes of jobs."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from hmi.config import Settings
from hmi.core import ENDED, JobKind, JobRecord, TenantRecord, now
from hmi.errors import Unavailable
from hmi.jobs.runtime.kept import Kept
from hmi.jobs.runtime.runner import JobRunner
from hmi.manager.tenants import new_key
from hmi.stores.bucket import Bucket
from hmi.stores.layout import open_layout
from hmi.stores.records.registry import Registry
from tests.hmi.labs.runner_lab import BODIES, gone
from tests.waiting import wait_until


class Server:
    """A data folder, its registry, which follows the journal, and its runner."""

    def __init__(self, work: Path, name: str, role: str, jobs: int) -> None:
        self.settings = Settings(
            data=work / name,
            bucket=str(work / "bucket"),
            role=role,
            replica_jobs=jobs,
            job_workers=jobs,
            background_nice=0,
        )
        self.layout = open_layout(self.settings.data)
        self.registry = Registry.open(self.layout.registry, journal=Bucket(self.settings.bucket).journal)
        if role == "primary":
            self.registry.lead(f"http://{name}")
        self.registry.enter(f"http://{name}")
        self.runner = JobRunner(self.registry, self.settings, bodies=BODIES)
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._follow)
        self._thread.start()
        self.runner.start()

    def _follow(self) -> None:
        while not self._over.wait(0.1):
            self.registry.catch_up()

    def die(self) -> None:
        """End as a killed server does: its jobs die with it, and it says nothing to the others."""
        self._over.set()
        self._thread.join()
        self.runner._stopping.set()
        self.runner._wake.set()
        assert self.runner._thread is not None
        self.runner._thread.join()
        for child in self.runner._children.values():
            child.kill()
        self.runner.starter.close()
        self.registry.close()

    def stop(self) -> None:
        if not self._over.is_set():
            self.runner.stop()
            self._over.set()
            self._thread.join()
            self.registry.close()


@pytest.fixture
def start(tmp_path: Path) -> Iterator[type]:
    started: list[Server] = []

    def one(name: str, role: str = "replica", jobs: int = 1) -> Server:
        started.append(Server(tmp_path, name, role, jobs))
        if role == "primary" and not started[-1].registry.tenants():
            key = new_key("acme", ("infer",))[0]
            started[-1].registry.create_tenant(TenantRecord(tenant="acme", created=now()), key)
        return started[-1]

    yield one  # type: ignore[misc]
    for server in reversed(started):
        server.stop()


def submit(server: Server, do: str, kind: JobKind = "fine_tune", **spec: object) -> str:
    return server.runner.submit(kind, {"do": do, **spec}, "acme", {"data": b"rows"}).job


def end_of(server: Server, job: str, limit_s: float = 60.0) -> JobRecord:
    wait_until(lambda: server.registry.job(job).state in ENDED, limit_s)
    return server.registry.job(job)


def has_checkpoint(server: Server, job: str) -> bool:
    names = Bucket(server.settings.bucket).names(f"jobs/{job}/kept")
    return any(name.endswith("files.json") for name in names)


def starts(server: Server, job: str) -> list[tuple[int, int]]:
    """The process and first step of each attempt here."""
    path = server.settings.data / f"trace-{job}"
    lines = path.read_text().splitlines() if path.exists() else []
    return [(int(process), int(step)) for process, step in map(str.split, lines)]


def test_a_replica_runs_a_job_and_the_primary_shows_it(start) -> None:  # type: ignore[no-untyped-def]
    primary, replica = start("a", "primary", jobs=0), start("b")
    job = submit(primary, "count", steps=250)
    wait_until(lambda: primary.runner.read_progress(job).step > 0, 60)
    assert primary.registry.job(job).node == replica.registry.node()
    record = end_of(primary, job)
    assert (record.state, record.attempts, record.result) == (
        "succeeded",
        1,
        {"counted": 250, "input": "rows"},
    )
    wait_until(lambda: primary.runner.read_progress(job).step == 250)
    wait_until(lambda: not Bucket(primary.settings.bucket).names("jobs"))
    for server in (primary, replica):
        wait_until(lambda server=server: not (server.layout.jobs / job / "input").exists())  # type: ignore[misc]
    assert not starts(primary, job)


def test_a_server_that_dies_costs_what_followed_the_last_checkpoint(start) -> None:  # type: ignore[no-untyped-def]
    primary, replica = start("a", "primary", jobs=0), start("b")
    job = submit(primary, "count", steps=300)
    wait_until(lambda: has_checkpoint(primary, job), 60)
    wait_until(lambda: primary.runner.read_progress(job).step > 40)
    node, (process, _) = replica.registry.node(), starts(replica, job)[-1]
    replica.die()
    assert gone(process)
    other = start("c")
    assert primary.registry.job(job).node == node, "nobody else takes it while that server may live"
    primary.registry.leave(node)  # as the primary does when a server does not answer
    record = end_of(primary, job)
    assert (record.state, record.attempts, record.node) == ("succeeded", 2, other.registry.node())
    ((_, first),) = starts(other, job)
    assert first > 20


def test_a_cancelled_job_stops_at_the_replica(start) -> None:  # type: ignore[no-untyped-def]
    primary, replica = start("a", "primary", jobs=0), start("b")
    job = submit(primary, "count", steps=100_000)
    wait_until(lambda: starts(replica, job), 60)
    wait_until(lambda: primary.registry.job(job).state == "running")
    assert primary.runner.cancel(job).cancel_requested
    assert end_of(primary, job).state == "cancelled"
    assert gone(starts(replica, job)[0][0])


def test_a_job_that_was_given_to_another_server_stops_at_the_first(start) -> None:  # type: ignore[no-untyped-def]
    """The first server lives, and is only believed to be gone."""
    primary, replica = start("a", "primary", jobs=0), start("b")
    job = submit(primary, "count", steps=500)
    wait_until(lambda: primary.runner.read_progress(job).step > 0, 60)
    process = starts(replica, job)[0][0]
    os.kill(process, signal.SIGSTOP)
    primary.registry.leave(replica.registry.node())
    other = start("c")
    wait_until(lambda: primary.registry.job(job).node == other.registry.node(), 60)
    os.kill(process, signal.SIGCONT)
    assert gone(process)
    record = end_of(primary, job)
    assert (record.state, record.node) == ("succeeded", other.registry.node())
    assert len(starts(replica, job)) == 1


def test_a_server_that_lost_its_data_folder_does_not_keep_its_jobs(start) -> None:  # type: ignore[no-untyped-def]
    """Another one listens under its address, so the list has both."""
    primary = start("a", "primary", jobs=1)
    job = submit(primary, "count", steps=300)
    wait_until(lambda: has_checkpoint(primary, job), 60)
    primary.die()
    again = start("b", "primary", jobs=1)
    again.registry.enter("http://a")
    record = end_of(again, job)
    assert (record.state, record.node) == ("succeeded", again.registry.node())
    assert starts(again, job)[0][1] > 0


def test_a_server_that_comes_takes_the_place_of_one_with_its_address(start) -> None:  # type: ignore[no-untyped-def]
    primary, lost = start("a", "primary", jobs=0), start("b")
    job = submit(primary, "count", steps=300)
    wait_until(lambda: has_checkpoint(primary, job), 60)
    node = lost.registry.node()
    lost.die()
    third = start("c")
    assert primary.registry.job(job).node == node, "it is still listed, and seems to live"
    third.registry.enter("http://b")
    record = end_of(primary, job)
    assert (record.state, record.node) == ("succeeded", third.registry.node())
    assert {server.url for server in third.registry.servers()} == {"http://a", "http://b"}
    assert [one.node for one in third.registry.servers() if one.url == "http://b"] == [third.registry.node()]
    assert starts(third, job)[0][1] > 0, "from the checkpoint"


def test_jobs_are_spread_and_each_runs_once(start) -> None:  # type: ignore[no-untyped-def]
    primary = start("a", "primary", jobs=1)
    replicas = [start(name) for name in "bc"]
    jobs = [submit(primary, "count", steps=60 + at, model=f"acme.m{at}") for at in range(7)]
    ended = [end_of(primary, job, 120) for job in jobs]
    assert {record.state for record in ended} == {"succeeded"}
    for job in jobs:
        assert len([s for server in (primary, *replicas) for s in starts(server, job)]) == 1
    assert len({record.node for record in ended}) > 1


def test_a_stopped_server_gives_its_job_back_with_its_checkpoint(start) -> None:  # type: ignore[no-untyped-def]
    primary, replica = start("a", "primary", jobs=0), start("b")
    job = submit(primary, "count", steps=200)
    wait_until(lambda: primary.runner.read_progress(job).step > 20, 60)
    replica.stop()
    other = start("c")
    record = end_of(primary, job)
    assert (record.state, record.attempts, record.stalled) == ("succeeded", 1, 0)
    ((_, first),) = starts(other, job)
    assert first > 20


def test_a_replica_takes_no_job_while_it_answers(start) -> None:  # type: ignore[no-untyped-def]
    primary, replica = start("a", "primary", jobs=0), start("b")
    with replica.runner.pacer:
        job = submit(primary, "count", steps=3)
        wait_until(lambda: replica.registry.has_job(job))
        time.sleep(1)  # some rounds of the supervisor
        assert replica.registry.job(job).node is None
    assert end_of(primary, job).node == replica.registry.node()


def test_only_the_primary_takes_a_job_that_replicas_may_not(start) -> None:  # type: ignore[no-untyped-def]
    primary = start("a", "primary", jobs=1)
    start("b")
    job = submit(primary, "count", "shard_root", steps=5)
    assert end_of(primary, job).node == primary.registry.node()


def test_a_checkpoint_is_whole_or_the_one_before(tmp_path: Path) -> None:
    """Random changes of a job's folder. While they are put, the process may die, and another one goes on."""
    rng, bucket, here = random.Random(3), Bucket(str(tmp_path / "bucket")), tmp_path / "here"
    here.mkdir()
    real, left, whole, attempt = bucket.put, [0], dict[str, bytes](), 1

    def put(name: str, path: Path) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise Unavailable("the process died here")
        real(name, path)

    bucket.put = put  # type: ignore[method-assign]
    kept = Kept(bucket, "j1", attempt, here)
    for turn in range(60):
        for _ in range(rng.randrange(1, 4)):
            path = here / rng.choice(("a", "b", "sub/c", "sub/d"))
            path.parent.mkdir(exist_ok=True)
            if rng.random() < 0.2:
                path.unlink(missing_ok=True)
            else:
                path.write_bytes(rng.randbytes(rng.randrange(9)))
        (here / "plan.json").write_text(str(turn))
        left[0] = rng.choice((0, 1, 2, 99, 99, 99))
        try:
            kept.put()
            whole = content(here)
        except Unavailable:
            attempt += 1
            kept = Kept(bucket, "j1", attempt, here)
        left[0] = 99
        there = tmp_path / f"there{turn}"
        there.mkdir()
        (there / "stale").write_text("of an earlier attempt there")
        Kept(bucket, "j1", attempt + 1, there).fetch()
        assert content(there) == whole or not whole
    assert attempt > 10
    kept.put()
    Kept(bucket, "j1", 1, tmp_path / "there0").put()  # a process that lost the job long ago
    Kept(bucket, "j1", attempt + 1, tmp_path / "there1").fetch()
    assert content(tmp_path / "there1") == content(here)
    Kept(bucket, "j1", attempt, here).put()
    assert {name.split("/")[3] for name in bucket.names("jobs/j1/kept")} == {str(attempt)}


def content(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and not path.name.startswith(".")]
    return {str(path.relative_to(folder)): path.read_bytes() for path in paths}
