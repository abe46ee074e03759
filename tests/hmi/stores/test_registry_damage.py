"""A damaged registry file gives no wrong or missing answer and kills no process, and few tenants notice."""

from __future__ import annotations

import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import get_args

import lmdb
import pytest

from hmi.config import Settings
from hmi.core import JobRecord, JobState, ModelId, TenantRecord, now
from hmi.errors import Damaged, HmiError, NotFound
from hmi.manager import Manager
from hmi.manager.tenants import new_key
from hmi.metrics import Metrics
from hmi.stores.records import once_table
from hmi.stores.records.job_table import asked_to_stop
from hmi.stores.records.registry import Registry
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import mark_of
from tests.hmi.labs.runner_bodies import version_by
from tests.hmi.labs.runner_lab import Lab
from tests.waiting import wait_until

TENANTS = 60
PAGE = 4096


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A closed registry of several pages: a tenant, a key and a model each."""
    registry = Registry.open(tmp_path / "registry")
    for name in names():
        registry.create_tenant(TenantRecord(tenant=name, created=now()), new_key(name, ("infer",))[0])
        registry.publish_model(ModelId(name, "m"), version_by("j1", metrics={"note": 1.0}))
    registry.close()
    return tmp_path / "registry"


def names() -> list[str]:
    return [f"t{i:02d}" for i in range(TENANTS)]


def raw_records(folder: Path) -> dict[bytes, bytes]:
    with lmdb.open(str(folder), readonly=True) as env, env.begin() as txn, txn.cursor() as cursor:
        return dict(cursor)


def damaged(folder: Path, old: bytes, new: bytes) -> None:
    """Overwrite bytes in the file itself, as a failing disk does."""
    path = folder / "data.mdb"
    raw = path.read_bytes()
    assert raw.count(old) >= 1
    path.write_bytes(raw.replace(old, new))


def models(registry: Registry) -> dict[str, str]:
    """For each tenant: "found", or the kind of the error."""
    found = {}
    for name in names():
        try:
            found[name] = registry.model(ModelId(name, "m")).tenant
        except HmiError as error:
            found[name] = error.kind
    return found


@pytest.fixture
def opened(folder: Path) -> Iterator[Registry]:
    registry = Registry.open(folder)
    yield registry
    registry.close()


def test_a_changed_key_is_damage_for_its_own_record(folder: Path) -> None:
    damaged(folder, b"model/t07.m", b"model/t07.q")
    registry = Registry.open(folder)
    found = models(registry)
    assert found.pop("t07") == "damaged"
    assert all(name == tenant for name, tenant in found.items())
    with pytest.raises(Damaged, match=r"'model/t07\.[mq]'.*restore"):
        registry.models()
    assert [m.tenant for m in registry.models("t08")] == ["t08"]
    with pytest.raises(NotFound):
        registry.model(ModelId("t07", "never"))
    with pytest.raises(Damaged):  # a new registry must not be created beside the lost one
        registry.publish_model(ModelId("t07", "m"), version_by("j2"))
    assert any("model/t07.m" in problem for problem in registry.problems())
    registry.close()


def test_an_open_after_another_process_has_checked_reads_no_page(
    folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    damaged(folder, b"model/t08.m", b"model/t98.m")  # out of order, which the check reports
    Registry.open(folder, checked=True).close()
    assert caplog.messages == []
    Registry.open(folder).close()
    assert len(caplog.messages) == 1


def test_a_changed_value_is_damage(folder: Path) -> None:
    damaged(folder, b'"tenant":"t07","name":"m"', b'"tenant":"t09","name":"m"')
    registry = Registry.open(folder)
    with pytest.raises(Damaged, match=r"'model/t07\.m' is damaged: restore <data>/registry"):
        registry.model(ModelId("t07", "m"))
    registry.close()


def test_a_lost_key_does_not_open_the_server(folder: Path) -> None:
    registry = Registry.open(folder)
    record, _ = new_key(None, ("admin",))
    registry.put_key(record)
    registry.close()
    damaged(folder, f"keyof//{record.key_id}".encode(), f"keyoe//{record.key_id}".encode())
    registry = Registry.open(folder)
    with pytest.raises(Damaged):
        registry.keys(None)
    registry.close()


@pytest.mark.parametrize("at", ["half", "a page", "nothing", "gone", "no meta pages"])
def test_a_shorter_file_is_refused(folder: Path, at: str) -> None:
    """Opened in a child process, which must end by itself and not by a signal."""
    data = folder / "data.mdb"
    raw = data.read_bytes()
    (folder.parent / "adapters").mkdir()
    (folder.parent / "adapters" / "some.safetensors").write_bytes(b"")
    if at == "gone":
        data.unlink()
    else:
        rest = {
            "half": raw[: len(raw) // 2],
            "a page": raw[:PAGE],
            "nothing": b"",
            "no meta pages": b"\x55" * len(raw),
        }
        data.write_bytes(rest[at])
    code = (
        "import sys; from pathlib import Path\n"
        "from hmi.stores.records.registry import Registry; from hmi.errors import Damaged\n"
        "try: Registry.open(Path(sys.argv[1])).models()\n"
        "except Damaged as error: print(error.message); sys.exit(7)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60
    )
    assert ran.returncode == 7, ran.stderr
    assert "restore <data>/registry" in ran.stdout


def test_no_damaged_page_gives_a_wrong_answer(folder: Path) -> None:
    """With any page zeroed or some of its bytes changed, an answer is the former one or `damaged`."""
    data = folder / "data.mdb"
    raw = data.read_bytes()
    rng = random.Random(3)
    tried, served = 0, 0
    for page in range(len(raw) // PAGE):
        changes = [(page * PAGE, bytes(PAGE))]
        for _ in range(12):
            at = page * PAGE + rng.randrange(PAGE)
            changes.append((at, bytes([raw[at] ^ (1 << rng.randrange(8))])))
        for at, new in changes:
            if raw[at : at + len(new)] == new:
                continue
            data.write_bytes(raw[:at] + new + raw[at + len(new) :])
            tried += 1
            try:
                registry = Registry.open(folder)
            except Damaged:
                continue
            found = models(registry)
            assert all(tenant in (name, "damaged") for name, tenant in found.items()), (
                page,
                at % PAGE,
                found,
            )
            assert registry.problems() or all(name == tenant for name, tenant in found.items())
            served += list(found.values()).count("damaged") < TENANTS
            registry.close()
    assert tried > 100
    assert served > tried // 4, "most damage concerns one record, and the others must still be served"


def test_a_page_that_goes_bad_while_it_is_served(folder: Path, opened: Registry) -> None:
    assert set(models(opened)) == set(names())
    data = folder / "data.mdb"
    raw = data.read_bytes()
    with data.open("r+b") as file:  # in place: this process sees it at once through its map
        for page in range(2, len(raw) // PAGE):
            file.seek(page * PAGE)
            file.write(bytes(PAGE))
    assert set(models(opened).values()) == {"damaged"}


def test_a_registry_of_the_format_before_is_taken_over(folder: Path) -> None:
    before = raw_records(folder)
    with lmdb.open(str(folder)) as env, env.begin(write=True) as txn:
        for key, value in before.items():
            txn.delete(key)
            if not key.startswith(b"=") and key != b"format":
                txn.put(key, value[8:])
    registry = Registry.open(folder)
    assert all(name == tenant for name, tenant in models(registry).items())
    assert registry.problems() == []
    registry.close()
    assert raw_records(folder) == before
    # A damaged table of this format must not be mistaken for an old one.
    damaged(folder, b"format", b"formas")
    with pytest.raises(Damaged):
        Registry.open(folder)


def test_a_folder_of_the_format_before_gets_this_one(tmp_path: Path) -> None:
    Manager(Settings(data=tmp_path, job_workers=0)).close()
    (tmp_path / "FORMAT").write_text("1\n")
    Manager(Settings(data=tmp_path, job_workers=0)).close()
    assert (tmp_path / "FORMAT").read_text() == "2\n"


def test_damage_of_one_record_is_told_and_stops_neither_start_nor_jobs(folder: Path) -> None:
    """Nothing is collected as garbage while it is unknown which artefacts are garbage."""
    damaged(folder, b"model/t07.m", b"model/t07.q")
    manager = Manager(Settings(data=folder.parent, job_workers=0))
    assert any("model/t07.m" in problem for problem in manager.verify())
    assert manager.registry.jobs(state="queued") == []
    with pytest.raises(Damaged):
        manager.collect_garbage()
    assert manager.model("t08.m").tenant == "t08"
    manager.close()


def test_a_damaged_job_holds_up_no_other(folder: Path) -> None:
    registry = Registry.open(folder)
    for i, name in enumerate(names()[:2]):
        spec = {"model": f"{name}.m", "note": f"note {i}"}
        registry.put_job(
            JobRecord(job=f"j{i}", kind="fine_tune", state="running", created=now(), tenant=name, spec=spec)
        )
    registry.close()
    damaged(folder, b"note 0", b"note 9")
    manager = Manager(Settings(data=folder.parent, job_workers=0))
    with pytest.raises(Damaged):
        manager.job("j0")
    manager.runner.recover()  # as each new job and each list of jobs would
    assert manager.job("j1").state == "queued", "its process has gone"
    assert [job.job for job in manager.registry.page_of_jobs(names()[1], None, None, None, 9)[0]] == ["j1"]
    manager.close()


def running_jobs(folder: Path, count: int) -> None:
    registry = Registry.open(folder)
    for i in range(count):
        spec = {"model": f"t{i:02d}.m", "note": f"note {i}"}
        registry.put_job(JobRecord(job=f"j{i}", kind="fine_tune", state="running", created=now(), spec=spec))
    registry.close()


def test_a_damaged_count_costs_its_own_line_and_is_counted_anew(folder: Path) -> None:
    running_jobs(folder, 3)
    value = raw_records(folder)[b"jobcount/running"]
    damaged(folder, value, value[:-1] + b"7")
    registry, metrics = Registry.open(folder), Metrics()
    metrics.watch_jobs(registry.count_jobs, get_args(JobState))
    assert "running" not in registry.count_jobs()
    text = metrics.render().decode()
    assert 'hmi_jobs{state="queued"} 0.0' in text
    assert "hmi_jobs_unread 1.0" in text
    assert "hmi_tenant_requests" in text
    registry.update_job("j0", lambda job: job.model_copy(update={"state": "failed"}))
    assert Counter(registry.count_jobs()) == Counter(running=2, failed=1)
    assert "hmi_jobs_unread 0.0" in metrics.render().decode()
    assert registry.problems() == []
    registry.close()
    metrics = Metrics()
    metrics.watch_jobs(registry.count_jobs, get_args(JobState))  # closed: none of it can be read
    assert "hmi_jobs_unread 5.0" in metrics.render().decode()


def test_the_reaper_goes_on_with_other_jobs(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Two real processes run; the record of one is damaged, and both die."""
    lab = Lab(tmp_path / "data")
    runner = lab.runner(workers=2)
    runner._housekeeping = lambda: None
    jobs = [lab.submit(runner, "count", steps=1000, note=f"note {i}") for i in range(2)]
    runner._start_queued()
    pids = [lab.counting(job) for job in jobs]
    lab.registry.update_job(jobs[1], asked_to_stop)
    data = lab.layout.registry / "data.mdb"
    with data.open("r+b") as file:  # in place: the map of this process shows it at once
        raw = file.read()
        for at in (m.start() for m in re.finditer(b"note 0", raw)):
            file.seek(at)
            file.write(b"note 9")
    with pytest.raises(Damaged):
        lab.registry.job(jobs[0])
    runner._reap()
    assert jobs[1] in runner._cancelled_at, "it is waited for, whatever comes before it"
    assert jobs[0] not in runner._cancelled_at, "nobody knows that it was cancelled"
    for pid in pids:
        os.kill(pid, signal.SIGKILL)

    def reaped() -> bool:
        runner._reap()
        return not runner._children

    wait_until(reaped)
    assert lab.registry.job(jobs[1]).state == "cancelled"
    runner._clean()
    told = [record for record in caplog.records if jobs[0] in record.getMessage()]
    assert told
    assert all(record.exc_info is None for record in caplog.records)
    runner.stop()
    lab.registry.close()


def test_housekeeping_goes_on_past_what_is_damaged(folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Garbage collection alone is left out, while it is unknown which artefacts are garbage."""
    running_jobs(folder, 2)
    damaged(folder, b"note 0", b"note 9")
    manager = Manager(Settings(data=folder.parent, job_workers=0))
    cared: list[str] = []
    manager.maintenance.housekeeping = lambda: cared.append("for")  # type: ignore[method-assign]
    for name in ("j0", "j9"):
        path = manager._parts.layout.jobs / name / "input"
        path.mkdir(parents=True)
        os.utime(path.parent, (0, 0))
    manager.runner._clean()
    assert (folder.parent / "jobs" / "j0").exists(), "nobody knows whether it is at an end"
    assert not (folder.parent / "jobs" / "j9").exists(), "nobody's"
    assert cared
    told = [record.getMessage() for record in caplog.records]
    assert any("collecting failed; the rest continues: damaged:" in line for line in told)
    assert all(record.exc_info is None for record in caplog.records)
    manager.close()


def test_a_kept_answer_that_is_damaged_keeps_no_other(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    registry = Registry.open(folder)
    registry.store("k1", "s", {"note": "answer 1"}, ttl_s=50)
    registry.store("k2", "s", {"note": "answer 2"}, ttl_s=60)
    held = [key for key in raw_records_of(registry) if key.startswith(b"once")]
    registry.close()
    damaged(folder, b"answer 1", b"answer 9")
    registry = Registry.open(folder)
    later = time.time() + 100
    monkeypatch.setattr(once_table, "time", SimpleNamespace(time=lambda: later))
    registry.store("k3", "s", {"note": "answer 3"})
    left = [key for key in raw_records_of(registry) if key.startswith(b"once")]
    assert sum(key in held for key in left) == 1, "the damaged one alone, of which `problems` tells"
    assert any("once/" in problem for problem in registry.problems())
    registry.close()


def test_marks_are_deleted_with_their_records(opened: Registry, folder: Path) -> None:
    for name in names():
        opened.delete_tenant(name)
    gone = ("tenant/", "model/", "key")
    left = [
        key
        for key in raw_records_of(opened)
        if key.startswith((*(p.encode() for p in gone), *(mark_of(p.encode()) for p in gone)))
    ]
    assert left == []
    assert opened.problems() == []


def raw_records_of(registry: Registry) -> list[bytes]:
    database = registry._database
    assert isinstance(database, RegistryDatabase)
    return database._database.read(lambda raw: [key for key, _ in raw.cursor()])
