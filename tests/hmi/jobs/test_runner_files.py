"""The files of a job: its input, progress, errors, and what crashes leave behind."""

from __future__ import annotations

import json
import os
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path

import pytest

import plot_store
from hmi.core import Progress, TenantRecord, now
from hmi.errors import Conflict, InvalidInput, NotFound, StorageFull
from hmi.jobs.runtime.cleaning import clean
from hmi.jobs.runtime.process import describe
from hmi.manager.tenants import new_key
from tests.hmi.labs.runner_lab import Lab


@pytest.mark.parametrize(
    ("error", "kind", "said"),
    [
        (OSError(28, "No space left on device"), "storage_full", "free some space"),
        (plot_store.StoreFull("no space"), "storage_full", "no space"),
        (plot_store.Conflict("somebody was first"), "conflict", "somebody was first"),
        (plot_store.FormatTooNew("format 9: upgrade"), "damaged", "upgrade"),
        (ZeroDivisionError("odd"), "internal", "ZeroDivisionError: odd"),
        (
            FileNotFoundError(2, "No such file or directory", "/srv/x"),
            "internal",
            "FileNotFoundError: No such file",
        ),
    ],
)
def test_errors_are_described(error: Exception, kind: str, said: str) -> None:
    logged: list[str] = []
    found = describe(error, logged.append)
    assert found["kind"] == kind
    assert said in found["message"]
    assert bool(logged) == (kind == "internal")
    assert "/srv" not in found["message"], "whoever reads the job must not learn where files lie"


def test_inputs_are_whole_or_the_job_is_not_there(
    lab: Lab, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
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

    job = lab.submit(runner, "count", steps=1)
    monkeypatch.setattr(runner, "recover", recover_badly)
    lab.registry.update_job(
        job, lambda r: r.model_copy(update={"state": "running", "attempts": 5, "stalled": 4})
    )
    runner.start()
    record = lab.end_of(job)
    assert failed.is_set()
    assert (record.state, record.error["kind"]) == ("failed", "interrupted")
    assert "5 times" in record.error["message"]


def test_tenants_take_turns(lab: Lab) -> None:
    lab.registry.create_tenant(TenantRecord(tenant="beta", created=now()), new_key("beta", ("infer",))[0])
    runner = lab.runner()
    for tenant in ("acme", "acme", "acme", "beta", None, "beta"):
        runner.submit("fine_tune", {"do": "count", "steps": 1}, tenant)
        time.sleep(0.002)  # two jobs of one millisecond have no order
    runner.start()
    ids = [record.job for record in lab.registry.jobs()]
    started = sorted((lab.end_of(job) for job in ids), key=lambda record: record.started or "")
    assert [record.tenant for record in started] == ["acme", "beta", None, "acme", "beta", "acme"]


def test_old_jobs_are_forgotten_with_their_folders(lab: Lab) -> None:
    runner = lab.runner(workers=0)
    ages = {0: 0, 1: 2, 2: 3, 3: 29, 4: 31}
    jobs = {}
    for name, days in ages.items():
        jobs[name] = lab.submit(runner, "count", steps=1)
        ended = (datetime.now(UTC) - timedelta(days=days)).isoformat()
        lab.registry.update_job(
            jobs[name], lambda r, e=ended: r.model_copy(update={"state": "failed", "ended": e})
        )
    live = lab.submit(runner, "count", steps=1)
    assert lab.registry.drop_ended_jobs(keep=2) == [jobs[2], jobs[3], jobs[4]]
    assert [r.job for r in lab.registry.jobs()] == [jobs[0], jobs[1], live]
    ended = (datetime.now(UTC) - timedelta(days=31)).isoformat()
    lab.registry.update_job(jobs[1], lambda r: r.model_copy(update={"ended": ended}))
    runner._clean()
    assert not lab.folder(jobs[1]).exists()
    assert lab.folder(jobs[0]).exists()
    assert lab.folder(live).exists()
