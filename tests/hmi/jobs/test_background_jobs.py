"""Background jobs in the runner, with real processes: they start last, give way, and take turns."""

from __future__ import annotations

import os
import signal
import time
from typing import Any

import pytest

from hmi.core import JobRecord, ModelId, TenantRecord, now
from hmi.jobs.runtime import memory_room
from hmi.jobs.runtime.folders import JobFolder, new_job_id
from hmi.jobs.runtime.memory_room import MemoryRoom
from hmi.jobs.runtime.runner import JobRunner, JobTurns
from hmi.manager.tenants import new_key
from tests.hmi.labs.runner_bodies import version_by
from tests.hmi.labs.runner_lab import Lab
from tests.waiting import wait_until

SLOW = {"do": "count", "steps": 3000, "pause_s": 0.02}
"""A minute's work, which no test waits for."""


def behind(lab: Lab, name: str, **spec: Any) -> str:
    """Publish a version of a model, and queue the job that is to improve it."""
    model = ModelId.parse(name)
    lab.registry.publish_model(model, version_by(f"made-{name}"))
    job = new_job_id()
    lab.folder(job, "input").mkdir(parents=True)
    record = JobRecord(
        job=job,
        kind="improve",
        state="queued",
        created=now(),
        tenant=model.tenant,
        spec={"model": name, **spec},
    )
    assert lab.registry.rooms.queue_improvement(record, model, 1)
    return job


def running(lab: Lab, job: str) -> bool:
    return lab.registry.job(job).state == "running"


def test_it_gives_way_and_goes_on_where_it_was(lab: Lab) -> None:
    job = behind(lab, "acme.m", **{**SLOW, "steps": 60})
    runner = lab.runner()
    runner.start()
    lab.counting(job)
    ordinary = lab.submit(runner, "count", steps=3)
    lab.end_of(ordinary)
    stopped = lab.until(job, lambda record: record.state in ("queued", "succeeded"))
    assert stopped.state == "queued", "the only place was given to the job that somebody waits for"
    assert stopped.attempts == 0, "an orderly stop costs no attempt"
    done = lab.end_of(job)
    assert done.result == {"counted": 60, "input": None}
    starts = [start for _, start in lab.attempts(job)]
    assert starts[0] == 0
    assert starts[-1] > 0, "it went on from its checkpoint"


def test_it_starts_only_when_no_other_job_waits(lab: Lab) -> None:
    submitter = lab.runner(workers=0)
    job = behind(lab, "acme.m", do="count", steps=1)
    others = [lab.submit(submitter, "count", steps=2) for _ in range(2)]
    lab.runner().start()
    assert lab.end_of(job).state == "succeeded"
    ends = [lab.registry.job(other).ended for other in others]
    started = lab.registry.job(job).started
    assert started is not None
    assert all(end is not None and end <= started for end in ends)


def test_a_free_place_is_used_beside_other_jobs(lab: Lab) -> None:
    job = behind(lab, "acme.m", **SLOW)
    runner = lab.runner(workers=2)
    ordinary = lab.submit(runner, "count", steps=3000)
    runner.start()
    wait_until(lambda: running(lab, job) and running(lab, ordinary))
    assert lab.registry.background_jobs("running") == [("acme", job)]


def test_a_killed_process_resumes_and_a_stopped_server_puts_it_back(lab: Lab) -> None:
    job = behind(lab, "acme.m", **SLOW)
    first = lab.runner()
    first.start()
    os.kill(lab.counting(job), signal.SIGKILL)
    lab.until(job, lambda record: len(lab.attempts(job)) == 2)
    assert lab.attempts(job)[1][1] > 0
    first.stop()
    assert lab.registry.job(job).state == "queued"
    assert lab.registry.background_jobs("queued") == [("acme", job)]
    assert lab.registry.background_jobs("running") == []


def test_deleting_its_tenant_ends_it_while_it_runs(lab: Lab) -> None:
    job = behind(lab, "acme.m", **SLOW)
    runner = lab.runner()
    runner.start()
    lab.counting(job)
    lab.registry.delete_tenant("acme")
    runner.forget([job])
    assert not lab.folder(job).exists()


def test_a_command_starts_none(lab: Lab) -> None:
    job = behind(lab, "acme.m", do="count", steps=1)
    runner = lab.runner()
    runner.start(background=False)
    lab.end_of(lab.submit(runner, "count", steps=1))
    lab.end_of(lab.submit(runner, "count", steps=1))
    assert lab.registry.job(job).state == "queued"
    assert runner.run_one(job).state == "succeeded", "'hmi job resume' runs it"


def test_tenants_take_turns(lab: Lab) -> None:
    lab.registry.create_tenant(TenantRecord(tenant="zoo", created=now()), new_key("zoo", ("infer",))[0])
    jobs = [behind(lab, name, do="count", steps=1) for name in ("acme.a", "acme.b", "acme.c", "zoo.a")]
    runner: JobRunner = lab.runner()
    runner.start()
    ended = sorted((lab.end_of(job) for job in jobs), key=lambda record: record.started or "")
    assert [record.tenant for record in ended] == ["acme", "zoo", "acme", "acme"]


def test_turns_go_round_and_one_that_was_lost_comes_next() -> None:
    turns, waiting = JobTurns(), ["a", "b", "c"]
    drawn = []
    for _ in range(4):
        drawn.append(turns.first(waiting, str))
        turns.took(drawn[-1])
    assert drawn == ["a", "b", "c", "a"]
    turns.lost("c")
    assert turns.first(waiting, str) == "c"
    assert turns.first(waiting, str, {"c": 2, "b": 1, "a": 1}) == "b", "other servers run jobs of c"


def test_one_that_does_not_fit_into_memory_waits_and_says_so(lab: Lab) -> None:
    """Others start meanwhile: one that is smaller, and one that somebody waits for, whatever it takes."""
    left = [3 << 30]
    large = behind(lab, "acme.a", do="count", steps=1, memory_bytes=4 << 30)
    small = behind(lab, "acme.b", do="count", steps=1, memory_bytes=1 << 30)
    runner = lab.runner()
    runner._memory = MemoryRoom(lab.registry, lab.layout, 0, lambda: left[0])
    runner.start()
    assert lab.end_of(small).state == "succeeded"
    wait_until(lambda: runner.read_progress(large).phase != "")
    assert runner.read_progress(large).phase == (
        "waiting for memory: it takes up to 4.0 GiB, and 2.8 GiB are left for it"
    )
    assert lab.registry.job(large).state == "queued"
    ordinary = lab.submit(runner, "count", steps=1, memory_bytes=9 << 30)
    assert lab.end_of(ordinary).state == "succeeded"
    left[0] = 5 << 30
    assert lab.end_of(large).state == "succeeded"
    assert "memory" not in runner.read_progress(large).phase


def test_what_running_jobs_have_not_taken_yet_is_not_left(lab: Lab) -> None:
    first, second = jobs = [behind(lab, f"acme.{name}", memory_bytes=20 << 30) for name in "ab"]
    room = MemoryRoom(lab.registry, lab.layout, 0, lambda: 30 << 30)
    assert room.fitting(jobs) == [first, second]
    room.took("gone", os.getpid())
    assert room.fitting([second]) == [second], "a job that was deleted takes nothing"
    room.took(first, os.getpid())
    earlier = behind(lab, "acme.c")
    assert room.fitting([second, earlier]) == [earlier], "an earlier release's job says nothing"
    assert "takes up to 20.0 GiB" in JobFolder(lab.layout.jobs, second).read_progress().phase
    room.ended(first)
    assert room.fitting([second]) == [second]
    together = MemoryRoom(lab.registry, lab.layout, 30 << 30, lambda: 1 << 40)
    assert together.fitting([second]) == [second]
    together.took(first, os.getpid())
    assert together.fitting([second]) == []


def test_a_job_waits_an_hour_for_its_larger_teachers(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    job = behind(lab, "acme.a", memory_bytes=1 << 30, larger_bytes=4 << 30)
    room = MemoryRoom(lab.registry, lab.layout, 0, lambda: 2 << 30)
    assert room.fitting([job]) == []
    assert "takes up to 4.0 GiB" in JobFolder(lab.layout.jobs, job).read_progress().phase
    at = time.time()
    monkeypatch.setattr(time, "time", lambda: at + memory_room.LARGER_WAIT_S + 1)
    assert room.fitting([job]) == [job]


def test_many_that_do_not_fit_hold_up_no_other_and_are_told_in_turns(
    lab: Lab, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(memory_room, "TOLD_A_ROUND", 2)
    large = [behind(lab, f"acme.{i}", memory_bytes=8 << 30) for i in range(5)]
    small = behind(lab, "acme.z", memory_bytes=1 << 30)
    room = MemoryRoom(lab.registry, lab.layout, 0, lambda: 4 << 30)
    for told in (2, 4, 5):
        assert room.fitting([*large, small]) == [small]
        phases = [JobFolder(lab.layout.jobs, job).read_progress().phase for job in large]
        assert sum("waiting for memory" in phase for phase in phases) == told
