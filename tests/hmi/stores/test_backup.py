"""Backups of data folders with roots, PLOTs, models, keys and jobs: made, checked, pruned, restored."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import uuid
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest

from hmi.backup import claims
from hmi.backup.collection import entries, listed, newest, prune, verify
from hmi.backup.contents import PARTS, SNAPSHOTS, How, how
from hmi.backup.create import create, snapshot
from hmi.backup.manifest import Manifest, dump_files, files_of, manifest_of
from hmi.backup.restore import restore
from hmi.backup.target import Target, open_target, read_bytes
from hmi.config import Settings
from hmi.core import now
from hmi.errors import Conflict, Damaged, InvalidInput, NotFound, Unavailable
from hmi.manager import Manager
from hmi.stores.layout import Layout
from tests.bucket import credentials
from tests.hmi.labs.manager_lab import add_model, add_root, publish_plot
from tests.hmi.labs.registry_lab import job

TARGETS = ("folder", "memory", "s3")


@pytest.fixture
def filled(manager: Manager) -> Manager:
    """A manager on a data folder with a root, a branch, two tenants, a model and a queued job."""
    add_root(manager)
    (manager.settings.data / "roots" / "tiny" / "r1" / "root.json").write_text("{}")
    for name in ("acme", "globex"):
        manager.create_tenant(name)
    add_model(manager, "acme.m", publish_plot(manager, "tiny/a"))
    manager.runner.submit("fine_tune", {"model": "acme.n"}, "acme", {"data": b"rows"})
    return manager


@pytest.fixture(params=TARGETS)
def target(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Target:
    if request.param == "folder":
        return open_target(str(tmp_path / "backups"))
    pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'hmi-server[backup]')")
    if request.param == "s3":
        for variable, value in credentials(request.getfixturevalue("bucket")).items():
            monkeypatch.setenv(variable, value)
        return open_target(f"s3://plots/{uuid.uuid4().hex}/deep")
    return open_target(f"memory://{uuid.uuid4().hex}/deep")


def made(manager: Manager, target: Target) -> Manifest:
    return create(manager.settings.data, manager.registry, manager.plots, target)


def restored(target: Target, data: Path) -> Manager:
    restore(target, newest(target), data)
    return Manager(Settings(data=data, job_workers=0))


def test_every_part_of_a_data_folder_is_in_the_list() -> None:
    layout = Layout(Path("/data"))
    names = [name for name, value in vars(Layout).items() if isinstance(value, property)]
    paths = [getattr(layout, name) for name in names] + [layout.cascades("two")]
    tops = {path.relative_to("/data").parts[0] for path in paths}
    assert len(tops) > 12
    assert tops - PARTS.keys() == set(), "say in hmi/backup/contents.py how a backup takes this part"


def test_what_the_list_does_not_know_is_copied() -> None:
    assert how("a-part-of-the-future") is How.COPIED


def test_a_restored_folder_has_everything(filled: Manager, target: Target, tmp_path: Path) -> None:
    data = filled.settings.data
    extra = {"uploads/acme/rows.csv": b"a,b", "new-part/deep/file": b"new", "audit/1.jsonl": b"{}\n"}
    extra |= {"misses/x/y": b"sketch", "jobs/j0/log.txt": b"log"}
    left = {"incoming/form/data": b"", "server.json": b"{}", "adapters/.lock": b"", "roots/.a.tmp": b""}
    for name, content in {**extra, **left}.items():
        (data / name).parent.mkdir(parents=True, exist_ok=True)
        (data / name).write_bytes(content)
    key = filled.create_key("acme", ("infer",))[1]
    manifest = made(filled, target)
    again = restored(target, tmp_path / "new")
    assert again.verify() == filled.verify() == ()
    assert manifest.remarks == ()
    assert again.model("acme.m") == filled.model("acme.m")
    assert again.registry.keys("acme") == filled.registry.keys("acme")
    assert key not in (tmp_path / "new" / "registry" / "data.mdb").read_bytes().decode("latin-1")
    assert [j.spec["model"] for j in again.jobs()] == ["acme.n"]
    assert {name: (tmp_path / "new" / name).read_bytes() for name in extra} == extra
    assert not any((tmp_path / "new" / name).exists() for name in left)
    assert again.plots.verify().damages == ()
    assert not any((data / SNAPSHOTS).iterdir()), "nothing of the snapshot stays"
    again.close()


def test_a_second_backup_copies_only_what_is_new(filled: Manager, target: Target) -> None:
    first, second = made(filled, target), made(filled, target)
    assert (second.new_files, second.new_bytes) == (0, 0)
    assert second.bytes == first.bytes == first.new_bytes
    artefact = add_model(filled, "globex.m", filled.plots.refs()["tiny/a"], number=2.0)
    third = made(filled, target)
    held = {file.path: file for file in listed(target, third.backup)[1]}
    assert third.new_files == 2, "the registry and the new artefact"
    assert held[f"adapters/{artefact}.safetensors"].sha256 == artefact
    assert verify(target, third.backup) == ()


def test_an_interrupted_backup_is_none(filled: Manager, target: Target) -> None:
    class Stop(Exception):
        pass

    def stop(done: int, total: int) -> None:
        if done:
            raise Stop

    with pytest.raises(Stop):
        create(filled.settings.data, filled.registry, filled.plots, target, stop)
    assert entries(target) == []
    with pytest.raises(NotFound):
        newest(target)
    manifest = made(filled, target)
    assert [entry.manifest for entry in entries(target)] == [manifest]
    assert verify(target, manifest.backup) == ()


def test_a_killed_backup_and_a_killed_restore_leave_nothing_half_made(
    filled: Manager, tmp_path: Path
) -> None:
    data, place, new = filled.settings.data, tmp_path / "backups", tmp_path / "new"
    filled.close()
    (data / "uploads").mkdir()
    for i in range(40):  # so that the eight senders are not done when the first file is
        (data / "uploads" / str(i)).write_bytes(bytes([i]) * 4096)
    killed(f"hang_in_backup(Path({str(data)!r}), {str(place)!r})")
    target = open_target(str(place))
    assert entries(target) == []
    assert len(list((data / SNAPSHOTS).iterdir())) == 2, "the dead process has left a snapshot and its lock"
    manager = Manager(Settings(data=data, job_workers=0))
    manifest = made(manager, target)
    assert list((data / SNAPSHOTS).iterdir()) == []
    killed(f"hang_in_restore({str(place)!r}, Path({str(new)!r}))")
    assert not new.exists()
    assert len(list(tmp_path.glob(".new.restoring/*"))) > 0
    restore(target, manifest.backup, new)
    assert not (tmp_path / ".new.restoring").exists()
    again = Manager(Settings(data=new, job_workers=0))
    assert again.verify() == ()
    assert again.models() == manager.models()
    again.close()
    manager.close()


def killed(call: str) -> None:
    """Run a call of tests.hmi.labs.backup_hangs in a process, and kill that once it hangs."""
    program = f"from pathlib import Path\nfrom tests.hmi.labs.backup_hangs import *\n{call}"
    process = subprocess.Popen([sys.executable, "-c", program], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout:
        assert process.stdout.readline() == "hangs\n"
        process.kill()
        process.wait()


def test_damage_is_found_and_never_restored(filled: Manager, target: Target, tmp_path: Path) -> None:
    manifest = made(filled, target)
    files = {file.path: file for file in listed(target, manifest.backup)[1]}
    (root,) = [path for path in files if path.startswith("adapters/")]
    target.put(files[root].object, b"\0" * files[root].bytes)
    target.remove([files["FORMAT"].object])
    assert sorted(verify(target, manifest.backup)) == [
        "FORMAT: the content is missing",
        f"{root}: the content is damaged",
    ]
    with pytest.raises(Damaged, match="nothing was restored"):
        restore(target, manifest.backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    create(filled.settings.data, filled.registry, filled.plots, target, reread=True)
    target.put(manifest_of(manifest.backup), b"{}")
    assert "is damaged" in entries(target)[0].damage


def test_an_object_that_was_cut_off_is_sent_again(filled: Manager, target: Target) -> None:
    manifest = made(filled, target)
    file = listed(target, manifest.backup)[1][0]
    target.put(file.object, read_bytes(target, file.object)[:-1])
    made(filled, target)
    assert verify(target, newest(target)) == ()


@pytest.mark.parametrize("path", ["../evil", "/etc/evil", "a/../../evil", ""])
def test_a_path_that_leaves_the_folder_is_refused(
    filled: Manager, target: Target, tmp_path: Path, path: str
) -> None:
    import hashlib

    manifest = made(filled, target)
    files = [
        f.model_copy(update={"path": path}) if f.path == "FORMAT" else f
        for f in listed(target, manifest.backup)[1]
    ]
    raw = dump_files(files)
    forged = manifest.model_copy(update={"files_sha256": hashlib.sha256(raw).hexdigest()})
    target.put(files_of(manifest.backup), raw)
    target.put(manifest_of(manifest.backup), forged.model_dump_json().encode())
    with pytest.raises(Damaged):
        restore(target, manifest.backup, tmp_path / "new")
    assert not (tmp_path / "new").exists()
    with pytest.raises(NotFound):
        restore(target, f"../{manifest.backup}", tmp_path / "new")


def test_only_an_empty_folder_is_restored_into(filled: Manager, target: Target, tmp_path: Path) -> None:
    made(filled, target)
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine").write_text("mine")
    with pytest.raises(Conflict, match="not an empty folder"):
        restore(target, newest(target), tmp_path / "full")
    assert (tmp_path / "full" / "mine").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    restore(target, newest(target), tmp_path / "empty")
    assert (tmp_path / "empty" / "FORMAT").exists()


def test_jobs_come_back_queued_or_ended(filled: Manager, target: Target, tmp_path: Path) -> None:
    registry = filled.registry
    registry.put_job(job("j2", state="running", attempts=1, started=now()))
    registry.put_job(job("j3", kind="backup", state="running", tenant=None, spec={"folder": ""}))
    made(filled, target)
    again = restored(target, tmp_path / "new")
    assert {j.job: (j.state, j.attempts) for j in again.jobs() if j.job in ("j2", "j3")} == {
        "j2": ("queued", 0),
        "j3": ("failed", 0),
    }
    assert "make another backup" in (again.job("j3").error or {})["message"]
    again.close()


def test_pruning_keeps_what_the_kept_backups_need(filled: Manager, target: Target, tmp_path: Path) -> None:
    first = made(filled, target)
    filled.delete_tenant("acme")
    filled.adapters.gc(set(), -1)
    second = made(filled, target)
    gone = prune(target, keep=1)
    assert gone.backups == (first.backup,)
    assert gone.objects >= 2, "the old registry, the artefact"
    assert verify(target, second.backup) == ()
    assert len(target.sizes("backups")) == 2
    assert prune(target, keep=1).objects == 0
    again = restored(target, tmp_path / "new")
    assert again.verify() == ()
    again.close()
    with pytest.raises(InvalidInput):
        prune(target, keep=0)


def test_pruning_and_backups_keep_out_of_each_others_way(
    filled: Manager, target: Target, monkeypatch: pytest.MonkeyPatch
) -> None:
    manifest = made(filled, target)
    with claims.claimed(target, "create"):
        with pytest.raises(Conflict, match="a backup is being made"):
            prune(target, keep=1)
        made(filled, target)  # two backups do not disturb each other
    with claims.claimed(target, "prune"), pytest.raises(Conflict, match="being pruned"):
        made(filled, target)
    target.put("running/create-dead.json", json.dumps({"at": 0.0}).encode())
    assert manifest.backup in prune(target, keep=1).backups


def test_a_snapshot_is_consistent_while_others_publish_delete_and_collect(manager: Manager) -> None:
    add_root(manager)
    for name in ("acme", "globex"):
        manager.create_tenant(name)
    stop = threading.Event()
    failed: list[BaseException] = []

    def churn(tenant: str) -> None:
        try:
            for i in range(10_000):
                if stop.is_set():
                    return
                plot = publish_plot(manager, f"tiny/{tenant}", f"b{i}")
                add_model(manager, f"{tenant}.m", plot, f"j{i}", float(i))
                if i % 3 == 2:
                    manager.delete_model(f"{tenant}.m")
                manager.collect_garbage()
        except BaseException as error:
            failed.append(error)

    # Artefacts go at once, not an hour after their deletion.
    real_gc = manager.adapters.gc
    manager.adapters.gc = lambda keep, _age, **_: real_gc(keep, 0.2)  # type: ignore[method-assign, assignment, misc]
    threads = [threading.Thread(target=churn, args=(name,)) for name in ("acme", "globex")]
    for thread in threads:
        thread.start()
    try:
        seen = set()
        for _ in range(12):
            with snapshot(manager.settings.data, manager.registry, manager.plots) as taken:
                assert taken.missing == ()
                copy = Manager(Settings(data=taken.folder, job_workers=0))
                seen.add(copy.registry.generation())
                assert copy.verify() == ()
                assert copy.plots.verify().damages == ()
                copy.close()
    finally:
        stop.set()
        for thread in threads:
            thread.join()
    assert failed == []


def test_what_the_folder_has_lost_is_told(filled: Manager, target: Target) -> None:
    (artefact,) = (filled.settings.data / "adapters").glob("*.safetensors")
    artefact.unlink()
    assert made(filled, target).remarks == ("version 1 of model acme.m lacks its artefact",)


def test_a_backup_without_a_lost_segment_has_the_others(
    filled: Manager, target: Target, tmp_path: Path
) -> None:
    publish_plot(filled, "tiny/b", "other")
    lost, *others = sorted((filled.settings.data / "plots" / "segments").iterdir())
    assert others, "there must be a file that is linked again at the second try"
    lost.unlink()
    assert made(filled, target).remarks == (f"file {lost.name} of the PLOT store's segments is missing",)
    again = restored(target, tmp_path / "new")
    assert {path.name for path in (tmp_path / "new" / "plots" / "segments").iterdir()} == {
        p.name for p in others
    }
    again.close()


def test_a_file_system_without_links_gets_copies(
    filled: Manager, target: Target, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    made(filled, target)
    again = restored(target, tmp_path / "new")
    assert again.verify() == ()
    again.close()


def test_places_are_checked(tmp_path: Path) -> None:
    for place in ("", "nonsense://bucket"):
        with pytest.raises(InvalidInput):
            open_target(place)
    found = open_target(f"file://{tmp_path}/x")
    found.put("a/b", b"c")
    assert (tmp_path / "x" / "a" / "b").read_bytes() == b"c"
    assert (tmp_path / "x").stat().st_mode & 0o077 == 0, "nobody else may read backups"
    assert (tmp_path / "x" / "a" / "b").stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("folder", [".", "backups", "jobs/../deep/er"])
def test_a_place_in_the_data_folder_is_refused(filled: Manager, tmp_path: Path, folder: str) -> None:
    link = tmp_path / "link"
    link.symlink_to(filled.settings.data)
    for data in (filled.settings.data, link):
        with pytest.raises(InvalidInput, match=r"lies in the data folder .*: give a place outside"):
            made(filled, open_target(str(data / folder)))
    assert not (filled.settings.data / "backups").exists()


def test_no_error_shows_an_address_with_its_query() -> None:
    pytest.importorskip("fsspec", reason="fsspec is not installed (pip install 'hmi-server[backup]')")

    class Refusing(BaseHTTPRequestHandler):
        def do_PUT(self) -> None:
            self.send_error(403, "Forbidden")

        def do_POST(self) -> None:
            self.do_PUT()

        def log_message(self, *_: object) -> None:
            pass

    with HTTPServer(("127.0.0.1", 0), Refusing) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        target = open_target(f"http://127.0.0.1:{server.server_port}/backups?signature=secret")
        with pytest.raises(Unavailable, match=r"403.*Forbidden") as caught:
            target.put("newest.json", b"{}")
        server.shutdown()
    assert "secret" not in caught.value.message


@pytest.fixture(autouse=True)
def _no_memory_left() -> Iterator[None]:
    yield
    if "fsspec" in sys.modules:
        import fsspec

        fsspec.filesystem("memory").store.clear()
