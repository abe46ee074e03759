"""The runner with real processes: whatever dies, each job reaches an end and
publishes completely and once."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from hmi.core import ModelId, Progress
from hmi.errors import Conflict, NotFound
from hmi.jobs.runtime.folders import JobFolder
from hmi.jobs.runtime.starter import Child
from tests.hmi.labs.runner_lab import BODIES, Lab, gone
from tests.waiting import wait_until


def test_a_job_runs_reports_and_is_tidied(lab: Lab, tmp_path: Path) -> None:
    own = tmp_path / "rows.jsonl"
    own.write_text("rows")
    runner = lab.runner()
    job = lab.submit(runner, "count", {"data": own}, steps=40)
    assert lab.folder(job, "input/data").read_text() == "rows"
    seen: list[Progress] = []
    record = runner.run_one(job, seen.append)
    assert record.state == "succeeded"
    assert record.result == {"counted": 40, "input": "rows"}
    assert (record.attempts, record.error) == (1, None)
    assert record.started is not None
    assert record.ended is not None
    assert record.cost is not None
    assert record.cost.cpu_ms > 0
    assert record.cost.peak_bytes is None or record.cost.peak_bytes > 1 << 20
    assert own.exists(), "a user's own file is copied, not moved"
    assert [p.step for p in seen] == sorted(p.step for p in seen)
    assert len(seen) > 2
    assert any(p.rate and p.eta_ms is not None for p in seen)
    last = runner.read_progress(job)
    assert (last.phase, last.step, last.total, last.eta_ms, last.loss) == ("counting", 40, 40, 0, 1 / 40)
    assert {p.name for p in lab.folder(job).iterdir()} <= {"progress.json", "log.txt", "lock"}
    with pytest.raises(Conflict, match="succeeded"):
        runner.cancel(job)


def test_failures_have_a_kind_and_a_reason(lab: Lab) -> None:
    runner = lab.runner(workers=2)
    runner.start()
    bad = lab.end_of(lab.submit(runner, "fail"))
    assert bad.error == {"kind": "invalid_data", "message": "row 3: `label` is missing", "field": "data"}
    missing = lab.submit(lab.runner(workers=0), "count", {"data": b"rows"}, steps=1)
    lab.folder(missing, "input/data").unlink()
    failed = lab.end_of(missing)
    assert failed.state == "failed"
    assert failed.error["kind"] == "damaged"
    assert "'data'" in failed.error["message"]


def test_a_killed_job_resumes_from_its_checkpoint(lab: Lab) -> None:
    runner = lab.runner()
    runner.start()
    job = lab.submit(runner, "count", steps=120)
    os.kill(lab.counting(job), signal.SIGKILL)
    record = lab.end_of(job)
    assert (record.state, record.attempts, record.result["counted"]) == ("succeeded", 2, 120)
    (_, first), (_, second) = lab.attempts(job)
    assert first == 0
    assert second > 0


def test_a_job_that_always_dies_fails_in_the_end(lab: Lab) -> None:
    runner = lab.runner()
    job = lab.submit(runner, "die")
    lab.registry.update_job(job, lambda r: r.model_copy(update={"attempts": 3, "stalled": 3}))
    record = runner.run_one(job)
    assert (record.state, record.attempts) == ("failed", 5)
    assert record.error["kind"] == "interrupted"
    assert "5 times in a row" in record.error["message"]


def test_deaths_count_only_while_no_checkpoint_comes_between(lab: Lab) -> None:
    runner = lab.runner()
    well = lab.submit(runner, "step_and_die", steps=7)
    record = runner.run_one(well)
    assert (record.state, record.attempts, record.result) == ("succeeded", 8, {"steps": 7})
    stuck = lab.submit(runner, "step_and_die", steps=7, stuck=3)
    record = runner.run_one(stuck)
    assert (record.state, record.attempts) == ("failed", 7), "five deaths since the last step"
    assert record.error is not None
    assert record.error["kind"] == "interrupted"


def test_a_publication_survives_death_just_after_it_and_is_not_repeated(lab: Lab) -> None:
    runner = lab.runner()
    job = lab.submit(runner, "publish_then_die", model="acme.mood")
    record = runner.run_one(job)
    assert (record.state, record.attempts, record.result) == ("succeeded", 2, {"versions": 1})
    assert len(lab.registry.model(ModelId("acme", "mood")).versions) == 1


def test_cancelling(lab: Lab) -> None:
    runner = lab.runner()
    runner.start()
    running = lab.submit(runner, "count", {"data": b"rows"}, steps=100_000)
    waiting = lab.submit(runner, "count", {"data": b"rows"}, steps=100_000)
    pid = lab.counting(running)
    assert runner.cancel(waiting).state == "cancelled"
    assert not lab.folder(waiting, "input").exists()
    assert runner.cancel(running).cancel_requested
    record = lab.end_of(running)
    assert (record.state, record.error, record.result) == ("cancelled", None, None)
    assert gone(pid)
    lab.until(running, lambda _: not lab.folder(running, "input").exists())
    with pytest.raises(Conflict):
        runner.cancel(running)
    with pytest.raises(NotFound):
        runner.cancel("../../etc")


def test_an_orderly_stop_puts_the_job_back_and_costs_no_attempt(lab: Lab) -> None:
    first = lab.runner()
    first.start()
    job = lab.submit(first, "count", steps=120)
    pid = lab.counting(job)
    first.stop()
    record = lab.registry.job(job)
    assert (record.state, record.attempts) == ("queued", 0)
    assert gone(pid, 0.5)
    second = lab.runner()
    second.start()
    record = lab.end_of(job)
    assert (record.state, record.attempts) == ("succeeded", 1)
    assert lab.attempts(job)[-1][1] > 0


SERVER = """
import sys, time
from pathlib import Path
from hmi.config import Settings
from hmi.jobs.runtime.runner import JobRunner
from hmi.stores.records.registry import Registry
settings = Settings(data=Path(sys.argv[1]))
runner = JobRunner(Registry.open(settings.data / "registry"), settings, 1, bodies=sys.argv[2])
runner.start()
time.sleep(120)
"""


def test_a_job_dies_with_its_server_and_the_next_server_resumes_it(lab: Lab) -> None:
    here = lab.runner(workers=0)
    job = lab.submit(here, "count", steps=200)
    with subprocess.Popen([sys.executable, "-c", SERVER, str(lab.settings.data), BODIES]) as server:
        pid = lab.counting(job)
        server.send_signal(signal.SIGKILL)
    assert gone(pid, 2), "the job outlived its server"
    assert lab.registry.job(job).state == "running"
    runner = lab.runner()
    runner.start()
    record = lab.end_of(job)
    assert (record.state, record.attempts) == ("succeeded", 2)
    assert lab.attempts(job)[-1][1] > 0


def test_two_runners_on_one_folder_run_each_job_once(lab: Lab) -> None:
    one, two = lab.runner(2), lab.runner(2)
    jobs = [lab.submit(one, "count", steps=5) for _ in range(2)]
    one.start()
    two.start()
    follower = lab.runner()
    assert follower.run_one(jobs[1]).state == "succeeded"
    assert [lab.end_of(j).attempts for j in jobs] == [1, 1]
    assert [len(lab.attempts(j)) for j in jobs] == [1, 1]


FOREGROUND = """
import signal, sys
# A shell starts background jobs with SIGINT ignored, and so does whatever runs these tests in one.
signal.signal(signal.SIGINT, signal.default_int_handler)
from pathlib import Path
from hmi.config import Settings
from hmi.jobs.runtime.runner import JobRunner
from hmi.stores.records.registry import Registry
settings = Settings(data=Path(sys.argv[1]))
runner = JobRunner(Registry.open(settings.data / "registry"), settings, 1, bodies=sys.argv[2])
print(runner.run_one(sys.argv[3], lambda p: print("at", p.step, flush=True)).state)
"""


def test_ctrl_c_cancels_a_foreground_job(lab: Lab) -> None:
    job = lab.submit(lab.runner(workers=0), "count", steps=100_000)
    command = [sys.executable, "-c", FOREGROUND, str(lab.settings.data), BODIES, job]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, start_new_session=True) as process:
        pid = lab.counting(job)
        os.killpg(process.pid, signal.SIGINT)
        out, _ = process.communicate(timeout=30)
    assert process.returncode == 0
    assert out.splitlines()[-1] == "cancelled"
    assert lab.registry.job(job).state == "cancelled"
    assert gone(pid)


def test_a_deleted_tenants_job_is_stopped_and_its_folder_goes(lab: Lab) -> None:
    runner = lab.runner()
    runner.start()
    job = lab.submit(runner, "count", {"data": b"secret"}, steps=100_000)
    pid = lab.counting(job)
    other = lab.runner(workers=0)
    _, _, jobs, _ = lab.registry.delete_tenant("acme")
    # By the runner of another process: the job finds its record gone and removes its own folder.
    other.forget(jobs)
    assert gone(pid)
    wait_until(lambda: not lab.folder(job).exists())
    assert lab.registry.jobs() == []


@pytest.mark.parametrize("how", ["list", "show", "cancel", "submit"])
def test_a_job_whose_process_has_gone_is_not_said_to_run(lab: Lab, how: str) -> None:
    """As between two commands on a folder, no runner supervises the job: a look at it
    settles its state by its lock."""
    runner, target = lab.runner(), {"steps": 1000, "model": "acme.m"}
    job = lab.submit(runner, "count", **target)
    child = Child(lab.settings, JobFolder(lab.layout.jobs, job), job, BODIES)
    pid = lab.counting(job)
    runner.recover()
    assert runner.refresh(job).state == "running", "its process has the lock"
    with pytest.raises(Conflict, match="is working on acme"):
        lab.submit(runner, "count", **target)
    os.kill(pid, signal.SIGKILL)
    assert not child.wait(10) or lab.registry.job(job).state == "running", "nobody has looked yet"
    if how == "list":
        runner.recover()
        assert lab.registry.job(job).state == "queued"
    elif how == "show":
        assert runner.refresh(job).state == "queued"
    elif how == "submit":
        with pytest.raises(Conflict, match="was interrupted"):
            lab.submit(runner, "count", **target)
    else:
        assert runner.cancel(job).state == "cancelled"
        lab.submit(runner, "count", **target)
