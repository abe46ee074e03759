"""The registry: durable facts, one step each, shared by processes."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from hmi.core import JobRecord, KeyRecord, ModelId, RootRecord, TenantRecord, now
from hmi.errors import Conflict, Damaged, InvalidInput, JobCancelled, NotFound, Unavailable
from hmi.manager.tenants import new_key
from hmi.stores.ledger import Ledger
from hmi.stores.registry import Registry
from tests.hmi.runner_bodies import version_by

ACME = ModelId("acme", "mood")


@pytest.fixture
def registry(tmp_path: Path) -> Registry:
    opened = Registry.open(tmp_path / "registry", first_map=1 << 17)
    add_tenant(opened, "acme")
    yield opened
    opened.close()


def add_tenant(registry: Registry, name: str) -> str:
    key, plain = new_key(name, ("infer", "manage"))
    registry.create_tenant(TenantRecord(tenant=name, created=now()), key)
    return plain


def _tenant(name: str) -> tuple[TenantRecord, KeyRecord]:
    return TenantRecord(tenant=name, created=now()), new_key(name, ("infer",))[0]


def job(name: str, **changes: object) -> JobRecord:
    fields = {"job": name, "kind": "fine_tune", "state": "queued", "created": now(), "tenant": "acme"}
    return JobRecord.model_validate({**fields, **changes})


def sha(plain: str) -> str:
    return hashlib.sha256(plain.encode()).hexdigest()


def test_a_key_is_found_by_its_hash_and_never_stored(registry: Registry, tmp_path: Path) -> None:
    plain = add_tenant(registry, "beta")
    found = registry.find_key(sha(plain))
    assert found is not None
    assert (found.tenant, found.scopes) == ("beta", ("infer", "manage"))
    assert registry.find_key(sha(plain + "x")) is None
    assert registry.find_key("../" + sha(plain)) is None
    assert plain.encode() not in (tmp_path / "registry" / "data.mdb").read_bytes()
    registry.revoke_key(found.key_id)
    assert registry.find_key(sha(plain)) is None
    assert registry.keys("beta") == []
    with pytest.raises(NotFound):
        registry.revoke_key(found.key_id)


def test_keys_of_the_administrator_and_of_tenants_are_apart(registry: Registry) -> None:
    admin, _ = new_key(None, ("admin",))
    registry.put_key(admin)
    assert [k.key_id for k in registry.keys(None)] == [admin.key_id]
    assert admin.key_id not in {k.key_id for k in registry.keys("acme")}
    registry.delete_tenant("acme")
    assert registry.any_keys()
    stray = KeyRecord(key_id="k9", sha256="0" * 64, tenant="nobody", scopes=("infer",), created=now())
    with pytest.raises(NotFound):
        registry.put_key(stray)


def test_a_tenant_exists_once(registry: Registry) -> None:
    with pytest.raises(Conflict):
        add_tenant(registry, "acme")
    assert len(registry.keys("acme")) == 1


@pytest.mark.parametrize("name", ["", "../x", "a/b", "A", "-a", "a.b", "a" * 64, "a\0", "a\n"])
def test_impossible_names_never_reach_the_table(registry: Registry, name: str) -> None:
    with pytest.raises(InvalidInput):
        registry.tenant(name)
    with pytest.raises(InvalidInput):
        registry.model(ModelId(name, "m"))
    with pytest.raises(InvalidInput):
        registry.root(name)
    if name not in ("A", "a" * 64):
        with pytest.raises(NotFound):
            registry.job(name)


def test_publishing_is_once_for_a_job_and_numbers_go_up(registry: Registry) -> None:
    assert registry.publish_model(ACME, version_by("j1")).current == 1
    assert registry.publish_model(ACME, version_by("j1")).current == 1
    assert registry.publish_model(ACME, version_by("j2")).current == 2
    assert registry.set_current(ACME, 1).live.job == "j1"
    assert registry.publish_model(ACME, version_by("j2")).current == 1, "a repetition must not undo a rollback"
    assert [v.version for v in registry.publish_model(ACME, version_by("j3")).versions] == [1, 2, 3]
    with pytest.raises(Conflict):
        registry.publish_model(ACME, version_by("j4", version=3))
    with pytest.raises(NotFound, match="1, 2, 3"):
        registry.set_current(ACME, 9)


def test_old_versions_go_and_numbers_are_not_used_again(registry: Registry) -> None:
    for n in range(1, 12):
        registry.publish_model(ACME, version_by(f"j{n}"))
    record = registry.model(ACME)
    assert [v.version for v in record.versions] == list(range(4, 12))
    assert record.live.version == 11


def test_a_cancelled_job_or_a_deleted_tenants_cannot_publish(registry: Registry) -> None:
    registry.put_job(job("j1", state="running", spec={"model": str(ACME)}))
    registry.publish_model(ACME, version_by("j0"))
    registry.delete_model(ACME)
    assert registry.job("j1").cancel_requested
    with pytest.raises(JobCancelled):
        registry.publish_model(ACME, version_by("j1"))
    registry.put_job(job("j2", state="running"))
    models, keys, jobs = registry.delete_tenant("acme")
    assert (models, len(keys), jobs) == ([], 1, ["j1", "j2"])
    with pytest.raises(NotFound):
        registry.publish_model(ACME, version_by("j2"))
    add_tenant(registry, "acme")
    with pytest.raises(JobCancelled):
        registry.publish_model(ACME, version_by("j2"))
    assert registry.models() == []


def test_deleting_a_tenant_leaves_the_neighbours(registry: Registry) -> None:
    for name in ("acm", "acme-2", "acmf"):
        add_tenant(registry, name)
        registry.publish_model(ModelId(name, "mood"), version_by(f"j-{name}"))
        registry.put_job(job(f"j-{name}", tenant=name))
    registry.publish_model(ACME, version_by("j1"))
    models, _, _ = registry.delete_tenant("acme")
    assert [m.tenant for m in models] == ["acme"]
    assert {m.tenant for m in registry.models()} == {"acm", "acme-2", "acmf"}
    assert {j.tenant for j in registry.jobs()} == {"acm", "acme-2", "acmf"}
    assert {t.tenant for t in registry.tenants()} == {"acm", "acme-2", "acmf"}
    assert [len(registry.keys(t)) for t in ("acm", "acme-2", "acmf")] == [1, 1, 1]


def test_pages_of_models_meet_and_do_not_overlap(registry: Registry) -> None:
    add_tenant(registry, "acme-2")
    names = sorted([f"acme.m{i}" for i in range(7)] + [f"acme-2.m{i}" for i in range(3)])
    for name in names:
        registry.publish_model(ModelId.parse(name), version_by(f"j-{name}"))
    seen: list[str] = []
    while page := registry.models(after=seen[-1] if seen else None, limit=3):
        seen += [f"{m.tenant}.{m.name}" for m in page]
    assert seen == names
    assert len(registry.models(tenant="acme", after="acme.m4")) == 2
    assert len(registry.models(tenant="acme", after="aaa.m4")) == 7
    assert registry.models(tenant="acme", after="zeta.m4") == []
    assert registry.models(limit=0) == []


def test_one_live_job_for_a_target(registry: Registry) -> None:
    registry.add_job(job("j1", spec={"model": "acme.mood"}))
    with pytest.raises(Conflict, match="j1"):
        registry.add_job(job("j2", spec={"model": "acme.mood"}))
    registry.add_job(job("j3", spec={"model": "acme.other"}))
    registry.update_job("j1", lambda r: r.model_copy(update={"state": "failed"}))
    registry.add_job(job("j4", spec={"model": "acme.mood"}))
    assert [j.job for j in registry.live_jobs()] == ["j3", "j4"]
    assert [j.job for j in registry.jobs()] == ["j1", "j3", "j4"]
    assert [j.job for j in registry.jobs(state="failed")] == ["j1"]


def test_the_map_grows_and_other_readers_follow(registry: Registry) -> None:
    stop, read = threading.Event(), []

    def keep_reading() -> None:
        while not stop.is_set():
            read.append(len(registry.jobs()))

    thread = threading.Thread(target=keep_reading)
    thread.start()
    for i in range(40):
        registry.put_job(job(f"j{i:03}", spec={"text": "x" * 20_000}))
    stop.set()
    thread.join()
    assert len(registry.jobs()) == 40
    assert read == sorted(read), "a later snapshot never has fewer jobs"


def test_two_processes_grow_and_read_one_registry(registry: Registry, tmp_path: Path) -> None:
    script = (
        "import sys; from pathlib import Path; from hmi.stores.registry import Registry\n"
        "r = Registry.open(Path(sys.argv[1]))\n"
        "for i in range(200): r.store(f'k{i}', 's', {'text': 'x' * 20_000, 'n': i})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "registry")], check=True, timeout=60)
    assert registry.remember("k199", "s") is not None
    registry.store("mine", "s", {"n": 1})
    assert registry.remember("mine", "s") == {"n": 1}


def test_a_writer_killed_in_a_transaction_leaves_nothing_and_blocks_nobody(registry: Registry, tmp_path: Path) -> None:
    script = (
        "import sys, time; from pathlib import Path; from hmi.stores.ledger import Ledger\n"
        "l = Ledger.open(Path(sys.argv[1]))\n"
        "def body(t):\n"
        "    t.put('root/half', b'{}'); print('in', flush=True); time.sleep(60)\n"
        "l.write(body)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "registry")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "in\n"
        os.kill(process.pid, signal.SIGKILL)
    registry.store("after", "s", {"n": 1})
    assert registry.roots() == []
    assert registry.remember("after", "s") == {"n": 1}


def test_answers_are_remembered_for_their_time(registry: Registry) -> None:
    registry.store("key", "scope", {"n": 1}, ttl_s=0.05)
    assert registry.remember("key", "scope") == {"n": 1}
    assert registry.remember("key", "other") is None
    time.sleep(0.06)
    assert registry.remember("key", "scope") is None


def test_expired_answers_are_dropped(registry: Registry, tmp_path: Path) -> None:
    for i in range(5):
        registry.store(f"k{i}", "s", {"n": i}, ttl_s=-5)
    registry.store("k0", "s", {"n": "again"})
    assert registry.remember("k0", "s") == {"n": "again"}
    ledger = Ledger.open(tmp_path / "registry")
    assert len(ledger.read(lambda t: t.keys("once/"))) == 1
    assert len(ledger.read(lambda t: t.keys("onceuntil/"))) == 1
    ledger.close()


def test_what_cannot_be_read_is_reported_as_damage(registry: Registry, tmp_path: Path) -> None:
    ledger = Ledger.open(tmp_path / "registry")
    ledger.write(lambda t: t.put("root/tiny", b'{"name": "tiny", "of-a-later-release": 1}'))
    with pytest.raises(Damaged, match="upgrade"):
        registry.root("tiny")
    ledger.close()


def test_records_survive_reopening_and_a_closed_registry_says_so(tmp_path: Path) -> None:
    first = Registry.open(tmp_path / "r")
    record = RootRecord(
        name="tiny", version="v1", created=now(), source={"kind": "folder"}, dim=32, layers=4, split=2,
        fidelity={"cosine": 0.9}, bytes=1, job="j1",
    )  # fmt: skip
    first.put_root(record)
    first.close()
    with pytest.raises(Unavailable):
        first.roots()
    second = Registry.open(tmp_path / "r")
    assert second.roots() == [record]
    assert second.root("tiny") == record
    assert second.delete_root("tiny")
    assert not second.delete_root("tiny")
    second.close()


def test_a_forked_child_may_not_use_the_parents_registry(registry: Registry, tmp_path: Path) -> None:
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        try:
            os.write(write, _said_by_child(registry, tmp_path).encode())
        finally:
            os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 100) == b'["acme", "child"]'
    assert [t.tenant for t in registry.tenants()] == ["acme", "child"]


def _said_by_child(registry: Registry, tmp_path: Path) -> str:
    try:
        registry.tenants()
    except AssertionError:
        own = Registry.open(tmp_path / "registry")
        own.create_tenant(*_tenant("child"))
        return json.dumps([t.tenant for t in own.tenants()])
    return "used"


def test_nothing_can_come_to_depend_on_a_domain_while_it_is_deleted(registry: Registry) -> None:
    registry.publish_model(ACME, version_by("j1", domain="tiny/news"))
    registry.put_job(job("j2", spec={"domain": "tiny/news/sport"}))
    inside, done = threading.Event(), threading.Event()

    def publish() -> None:
        inside.wait()
        registry.publish_model(ModelId("acme", "late"), version_by("j3"))
        done.set()

    thread = threading.Thread(target=publish)
    thread.start()

    def act(models: list[str], jobs: list[str]) -> tuple[list[str], list[str]]:
        inside.set()
        assert not done.wait(0.2)
        return models, jobs

    assert registry.while_unused("tiny/news", act) == (["acme.mood"], ["j2"])
    thread.join()
    assert [m.name for m in registry.models_on("tiny/news")] == ["late", "mood"]
