"""The registry in several processes: growth, kills, forks, a full disk, damage."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from hmi.core import ModelId
from hmi.errors import Damaged, HmiError, StorageFull, Unavailable
from hmi.stores.records.registry import Registry
from hmi.stores.records.registry_database import RegistryDatabase
from hmi.stores.records.sealed import RegistryTxn
from tests.disks import small_disk
from tests.hmi.labs.manager_lab import root_record
from tests.hmi.labs.registry_lab import add_tenant, job, tenant_with_key
from tests.hmi.labs.runner_bodies import version_by

ACME = ModelId("acme", "mood")


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
        "import sys; from pathlib import Path; from hmi.stores.records.registry import Registry\n"
        "r = Registry.open(Path(sys.argv[1]))\n"
        "for i in range(200): r.store(f'k{i}', 's', {'text': 'x' * 20_000, 'n': i})\n"
    )
    subprocess.run([sys.executable, "-c", script, str(tmp_path / "registry")], check=True, timeout=60)
    assert registry.remember("k199", "s") is not None
    registry.store("mine", "s", {"n": 1})
    assert registry.remember("mine", "s") == {"n": 1}


def test_a_writer_killed_in_a_transaction_leaves_nothing_and_blocks_nobody(
    registry: Registry, tmp_path: Path
) -> None:
    script = (
        "import sys, time; from pathlib import Path; from hmi.stores.records.registry_database import "
        "RegistryDatabase\n"
        "l = RegistryDatabase.open(Path(sys.argv[1]))\n"
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


@pytest.mark.parametrize("ending", [signal.SIGCONT, signal.SIGKILL])
def test_a_writer_that_is_stopped_holds_others_for_a_time_only(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ending: signal.Signals
) -> None:
    monkeypatch.setattr("plot_store.database.database.MAX_WAIT_S", 0.3)
    script = (
        "import os, signal, sys; from pathlib import Path; from hmi.stores.records.registry_database import "
        "RegistryDatabase\n"
        "l = RegistryDatabase.open(Path(sys.argv[1]))\n"
        "def body(t):\n"
        "    print('in', flush=True); os.kill(os.getpid(), signal.SIGSTOP); t.put('gone/late', b'{}')\n"
        "l.write(body)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "registry")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as stopped:
        try:
            assert stopped.stdout is not None
            assert stopped.stdout.readline() == "in\n"
            with pytest.raises(
                Unavailable, match=f"process {stopped.pid} holds the write lock of the registry"
            ):
                add_tenant(registry, "late")
            assert [t.tenant for t in registry.tenants()] == ["acme"]  # readers do not wait
        finally:
            stopped.send_signal(ending)
    monkeypatch.undo()
    add_tenant(registry, "late")
    assert registry._database.read(lambda t: t.keys("gone/")) == ["late"] * (ending == signal.SIGCONT)


def test_readers_that_were_killed_block_nobody(registry: Registry, tmp_path: Path) -> None:
    """While this process has the registry open, only a check for dead readers frees
    their slots in LMDB's table."""
    script = (
        "import os, sys, lmdb; env, found = lmdb.open(sys.argv[1], readonly=True), []\n"
        "try:\n"
        "    while True: found.append(env.begin())\n"
        "except lmdb.ReadersFullError:\n"
        "    print(len(found), flush=True); os._exit(9)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "registry")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert int(done.stdout) > 4000, done.stderr
    read = registry._database.read
    # The second process needs a slot of its own.
    assert read(lambda t: read(lambda inner: inner.keys("tenant/"))) == ["acme"]
    assert registry._database._database.forget_dead_readers() == 0


def test_what_cannot_be_read_is_reported_as_damage(registry: Registry, tmp_path: Path) -> None:
    database = RegistryDatabase.open(tmp_path / "registry")
    database.write(lambda t: t.put("root/tiny", b'{"name": "tiny", "of-a-later-release": 1}'))
    with pytest.raises(Damaged, match="upgrade"):
        registry.root("tiny")
    database.release()


def test_records_survive_reopening_and_a_closed_registry_says_so(tmp_path: Path) -> None:
    first = Registry.open(tmp_path / "r")
    record = root_record("tiny", fidelity={"cosine": 0.9})
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
    except HmiError:  # `Forked`: a bug of ours
        own = Registry.open(tmp_path / "registry")
        own.create_tenant(*tenant_with_key("child"))
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
    assert [m.name for m in registry.models()] == ["late", "mood"]


def _store_until_full(registry: Registry) -> int:
    """Store answers until the disk is full, and return how many fitted."""
    for n in range(1000):
        try:
            registry.store(f"k{n}", "s", {"text": "x" * 20_000})
        except StorageFull:
            return n
    raise AssertionError("the disk never got full")


def test_a_really_full_disk_loses_nothing_and_ends_when_there_is_room(tmp_path: Path) -> None:
    with small_disk(tmp_path / "disk", 1 << 20) as disk:
        opened = Registry.open(disk / "registry")
        stored = _store_until_full(opened)
        assert stored > 5
        assert opened.remember(f"k{stored}", "s") is None
        opened.close()
        reopened = Registry.open(disk / "registry")
        assert all(reopened.remember(f"k{i}", "s") for i in range(stored))
        subprocess.run(["mount", "-o", "remount,size=4m", str(disk)], check=True)
        reopened.store("more", "s", {"text": "x" * 20_000})
        assert reopened.remember("more", "s") is not None
        reopened.close()


def test_a_fork_in_the_middle_of_a_transaction_undoes_nothing(
    registry: Registry, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The child has a copy of the transaction. Closing the copy would undo it, so the child
    may not open the registry."""
    monkeypatch.setattr("plot_store.database.database._MAX_PAUSE_S", 0.2)
    inside, go_on = threading.Event(), threading.Event()

    def slow(txn: RegistryTxn) -> None:
        txn.put("gone/slow", b"{}")
        inside.set()
        assert go_on.wait(60)

    thread = threading.Thread(target=lambda: registry._database.write(slow))
    thread.start()
    assert inside.wait(60)
    pid = os.fork()
    if not pid:
        code = 1
        try:
            Registry.open(tmp_path / "registry")
        except HmiError as error:
            code = 0 if "while this process forked" in error.message else 2
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    go_on.set()
    thread.join(60)
    assert registry._database.read(lambda t: t.keys("gone/")) == ["slow"]
