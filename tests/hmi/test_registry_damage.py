"""Damage of the registry's file: never a wrong or missing answer, never a dead process; few tenants notice."""

from __future__ import annotations

import random
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import lmdb
import pytest

from hmi.config import Settings
from hmi.core import JobRecord, ModelId, TenantRecord, now
from hmi.errors import Damaged, HmiError, NotFound
from hmi.manager import Manager
from hmi.manager.tenants import new_key
from hmi.stores.ledger import Ledger
from hmi.stores.registry import Registry
from hmi.stores.sealed import mark_of
from tests.hmi.runner_bodies import version_by

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
    """Replace bytes in the file itself, as a disk does."""
    path = folder / "data.mdb"
    raw = path.read_bytes()
    assert raw.count(old) >= 1
    path.write_bytes(raw.replace(old, new))


def models(registry: Registry) -> dict[str, str]:
    """By tenant: found, or the kind of the error."""
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
    with pytest.raises(Damaged):  # it must not begin anew beside what was lost
        registry.publish_model(ModelId("t07", "m"), version_by("j2"))
    assert any("model/t07.m" in problem for problem in registry.problems())
    registry.close()


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
    """In a process of its own, which must end by itself and not by a signal."""
    data = folder / "data.mdb"
    raw = data.read_bytes()
    (folder.parent / "adapters").mkdir()
    (folder.parent / "adapters" / "some.safetensors").write_bytes(b"")
    if at == "gone":
        data.unlink()
    else:
        rest = {"half": raw[: len(raw) // 2], "a page": raw[:PAGE], "nothing": b"", "no meta pages": b"\x55" * len(raw)}
        data.write_bytes(rest[at])
    code = (
        "import sys; from pathlib import Path\n"
        "from hmi.stores.registry import Registry; from hmi.errors import Damaged\n"
        "try: Registry.open(Path(sys.argv[1])).models()\n"
        "except Damaged as error: print(error.message); sys.exit(7)"
    )
    ran = subprocess.run([sys.executable, "-c", code, str(folder)], capture_output=True, text=True, timeout=60)
    assert ran.returncode == 7, ran.stderr
    assert "restore <data>/registry" in ran.stdout


def test_no_damaged_page_gives_a_wrong_answer(folder: Path) -> None:
    """Every page zeroed, and random bytes of every page changed: what is answered is as it was, all else is damage."""
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
            assert all(tenant in (name, "damaged") for name, tenant in found.items()), (page, at % PAGE, found)
            assert registry.problems() or all(name == tenant for name, tenant in found.items())
            served += list(found.values()).count("damaged") < TENANTS
            registry.close()
    assert tried > 100
    assert served > tried // 4, "most damage concerns one record, and the others must still be served"


def test_a_page_that_goes_bad_while_it_is_served(folder: Path, opened: Registry) -> None:
    assert set(models(opened)) == set(names())
    data = folder / "data.mdb"
    raw = data.read_bytes()
    with data.open("r+b") as file:  # in place: the map of this process shows it at once
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
    # A table of this format whose format cannot be read must not be taken for an old one.
    damaged(folder, b"format", b"formas")
    with pytest.raises(Damaged):
        Registry.open(folder)


def test_a_folder_of_the_format_before_gets_this_one(tmp_path: Path) -> None:
    Manager(Settings(data=tmp_path, job_workers=0)).close()
    (tmp_path / "FORMAT").write_text("1\n")
    Manager(Settings(data=tmp_path, job_workers=0)).close()
    assert (tmp_path / "FORMAT").read_text() == "2\n"


def test_damage_of_one_record_is_told_and_stops_neither_start_nor_jobs(folder: Path) -> None:
    """A whole data folder; garbage is not collected while it is unknown what is garbage."""
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
    manager.runner.recover()  # as each new job and each list of jobs does
    assert manager.job("j1").state == "queued", "its process has gone"
    assert [job.job for job in manager.registry.page_of_jobs(names()[1], None, None, None, 9)[0]] == ["j1"]
    manager.close()


def test_marks_go_with_their_records(opened: Registry, folder: Path) -> None:
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
    ledger = registry._ledger
    assert isinstance(ledger, Ledger)
    return ledger._run(lambda raw: [key for key, _ in raw.cursor()], write=False)
