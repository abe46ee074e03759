"""The runner, with real processes: whatever dies, every job reaches an end, and what is published is whole and once."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import plot_store
from hmi.config import Settings
from hmi.core import ENDED, JobRecord, ModelId, Progress, TenantRecord, now
from hmi.errors import Conflict, InvalidInput, NotFound, StorageFull
from hmi.jobs.cleaning import clean
from hmi.jobs.process import describe
from hmi.jobs.runner import JobRunner
from hmi.manager.tenants import new_key
from hmi.stores.layout import open_layout
from hmi.stores.registry import Registry

BODIES = "tests.hmi.runner_bodies:BODIES"


class Lab:
    """A data folder with one tenant, and runners on it."""

    def __init__(self, data: Path) -> None:
        self.settings = Settings(data=data)
        self.layout = open_layout(data)
        self.registry = Registry.open(self.layout.registry)
        self.registry.create_tenant(TenantRecord(tenant="acme", created=now()), new_key("acme", ("infer",))[0])
        self.runners: list[JobRunner] = []

    def runner(self, workers: int = 1) -> JobRunner:
        self.runners.append(JobRunner(self.registry, self.settings, workers, bodies=BODIES))
        return self.runners[-1]

    def submit(self, runner: JobRunner, do: str, inputs: dict[str, Any] | None = None, **spec: Any) -> str:
        return runner.submit("fine_tune", {"do": do, **spec}, "acme", inputs).job

    def until(self, job: str, done: Callable[[JobRecord], bool], limit_s: float = 40) -> JobRecord:
        deadline = time.monotonic() + limit_s
        while time.monotonic() < deadline:
            record = self.registry.job(job)
            if done(record):
                return record
            time.sleep(0.02)
        raise AssertionError(f"still {self.registry.job(job)}; log: {self.folder(job, 'log.txt').read_text()}")

    def end_of(self, job: str) -> JobRecord:
        return self.until(job, lambda r: r.state in ENDED)

    def counting(self, job: str) -> int:
        """Wait until the body has counted a few, and return the pid of its process."""
        self.until(job, lambda r: self.folder(job, "checkpoint.json").exists())
        return self.attempts(job)[-1][0]

    def attempts(self, job: str) -> list[tuple[int, int]]:
        lines = (self.settings.data / f"trace-{job}").read_text().splitlines()
        return [(int(pid), int(start)) for pid, start in (line.split() for line in lines)]

    def folder(self, job: str, name: str = "") -> Path:
        return self.layout.jobs / job / name


@pytest.fixture
def lab(tmp_path: Path) -> Iterator[Lab]:
    lab = Lab(tmp_path / "data")
    yield lab
    for runner in lab.runners:
        runner.stop()
    lab.registry.close()


def gone(pid: int, limit_s: float = 5) -> bool:
    deadline = time.monotonic() + limit_s
    while time.monotonic() < deadline:
        try:
            state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            return True
        if state == "Z":
            return True
        time.sleep(0.02)
    return False


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


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(28, "No space left on device"), "storage_full", "free some space"),
        (plot_store.StoreFull("no space"), "storage_full", "no space"),
        (plot_store.Conflict("somebody was first"), "conflict", "somebody was first"),
        (plot_store.FormatTooNew("format 9: upgrade"), "damaged", "upgrade"),
        (ZeroDivisionError("odd"), "internal", "ZeroDivisionError: odd"),
    ],
)
def test_errors_are_described(error: Exception, kind: str, said: str) -> None:
    logged: list[str] = []
    found = describe(error, logged.append)
    assert found["kind"] == kind
    assert said in found["message"]
    assert bool(logged) == (kind == "internal")


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
    lab.registry.update_job(job, lambda r: r.model_copy(update={"attempts": 4}))
    record = runner.run_one(job)
    assert (record.state, record.attempts) == ("failed", 5)
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
from hmi.jobs.runner import JobRunner
from hmi.stores.registry import Registry
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
import sys
from pathlib import Path
from hmi.config import Settings
from hmi.jobs.runner import JobRunner
from hmi.stores.registry import Registry
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


def test_inputs_are_whole_or_the_job_is_not_there(lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    runner = lab.runner(workers=0)
    with pytest.raises(InvalidInput, match="nothing-here"):
        lab.submit(runner, "count", {"data": tmp_path / "nothing-here"}, steps=1)
    with pytest.raises(InvalidInput):
        lab.submit(runner, "count", {"data": tmp_path}, steps=1)
    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", _full)
        with pytest.raises(StorageFull):
            lab.submit(runner, "count", {"data": b"rows"}, steps=1)
    with pytest.raises(NotFound):
        runner.submit("fine_tune", {}, "nobody", {"data": b"rows"})
    first = lab.submit(runner, "count", {"data": b"rows"}, steps=1, model="acme.m")
    with pytest.raises(Conflict, match=first):
        lab.submit(runner, "count", {"data": b"rows"}, steps=1, model="acme.m")
    assert [p.name for p in lab.layout.jobs.iterdir()] == [first]
    assert [j.job for j in lab.registry.jobs()] == [first]


def _full(_fd: int) -> None:
    raise OSError(28, "No space left on device")


def test_an_upload_is_moved(lab: Lab) -> None:
    lab.layout.incoming.mkdir()
    upload = lab.layout.incoming / "data"
    upload.write_text("rows")
    job = lab.submit(lab.runner(workers=0), "count", {"data": upload}, steps=1)
    assert not upload.exists()
    assert lab.folder(job, "input/data").read_text() == "rows"


def test_half_made_folders_go_and_others_stay(lab: Lab) -> None:
    runner = lab.runner(workers=0)
    queued = lab.submit(runner, "count", {"data": b"rows"}, steps=1)
    for name in ("jhalf", "jyoung", "not.a.job"):
        lab.folder(name).mkdir()
    for name in (queued, "jhalf", "not.a.job"):
        os.utime(lab.folder(name), (time.time() - 9999,) * 2)
    assert clean(lab.registry, lab.layout) == ["jhalf"]
    assert {p.name for p in lab.layout.jobs.iterdir()} == {queued, "jyoung", "not.a.job"}
    assert lab.folder(queued, "input/data").exists()


def test_a_deleted_tenants_job_is_stopped_and_its_folder_goes(lab: Lab) -> None:
    runner = lab.runner()
    runner.start()
    job = lab.submit(runner, "count", {"data": b"secret"}, steps=100_000)
    pid = lab.counting(job)
    other = lab.runner(workers=0)
    _, _, jobs = lab.registry.delete_tenant("acme")
    # By another process's runner: the job finds its record gone and removes its own folder.
    other.forget(jobs)
    assert gone(pid)
    deadline = time.monotonic() + 5
    while lab.folder(job).exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not lab.folder(job).exists()
    assert lab.registry.jobs() == []


def test_damaged_progress_reads_as_none(lab: Lab) -> None:
    runner = lab.runner(workers=0)
    job = lab.submit(runner, "count", steps=1)
    assert runner.read_progress(job) == Progress()
    for text in ("", "{", '{"step": "x"}', "[1]", json.dumps({"later": 1})):
        lab.folder(job, "progress.json").write_text(text)
        assert runner.read_progress(job) == Progress()
    with pytest.raises(NotFound):
        runner.read_progress("../" + job)


def test_the_supervisor_outlives_an_error(lab: Lab, monkeypatch: pytest.MonkeyPatch) -> None:
    failed = threading.Event()
    runner = lab.runner()
    original = runner.recover

    def recover_badly() -> None:
        if not failed.is_set():
            failed.set()
            raise StorageFull("no room left: free some space")
        original()

    monkeypatch.setattr(runner, "recover", recover_badly)
    job = lab.submit(runner, "count", steps=1)
    lab.registry.update_job(job, lambda r: r.model_copy(update={"state": "running", "attempts": 5}))
    runner.start()
    record = lab.end_of(job)
    assert failed.is_set()
    assert (record.state, record.error["kind"]) == ("failed", "interrupted")
    assert "5 times" in record.error["message"]
