"""Files that nodes share: artefacts, samples and roots, in data folders of their own and one bucket."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch

from hmi.config import Settings
from hmi.errors import Damaged, Unavailable
from hmi.jobs.root import shard_root
from hmi.jobs.runtime.folders import JobFolder
from hmi.manager import Manager
from hmi.model.checked import file_sha256
from hmi.model.sources.root import load_root, verify_root
from hmi.stores.bucket import Bucket
from hmi.stores.layout import Layout
from hmi.stores.root_files import RootFiles
from hmi.stores.shared_folder import LIST, SharedFolder
from hmi.stores.tensors.adapter_store import AdapterStore, DamagedArtefact
from hmi.stores.tensors.samples import Samples
from tests.bucket import credentials
from tests.hmi.labs.build_lab import attempt, tiny_manager
from tests.hmi.labs.manager_lab import add_model
from tests.hmi.labs.runner_lab import BODIES
from tests.plot_store.remotelab import Place

TENSORS = {"module.a": torch.arange(12.0).reshape(3, 4).half(), "head.out.bias": torch.ones(3)}
FAULTS = ("before", "after", "twice")


@dataclass
class Shared:
    """A bucket whose calls can fail, as one node sees it."""

    url: str

    def node(self, at: int = 0, how: str = "") -> Bucket:
        bucket = Bucket(self.url)
        bucket._files = Place(bucket._files, at, how)
        return bucket


@pytest.fixture(params=["folder", "s3"])
def shared(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Shared:
    if request.param == "folder":
        return Shared(str(tmp_path / "bucket"))
    for name, value in credentials(request.getfixturevalue("bucket")).items():
        monkeypatch.setenv(name, value)
    return Shared(f"s3://plots/{tmp_path.name}")


@pytest.fixture
def place(tmp_path: Path) -> Shared:
    """A bucket in a folder."""
    return Shared(str(tmp_path / "bucket"))


def adapters(folder: Path, bucket: Bucket | None) -> AdapterStore:
    folder.mkdir(exist_ok=True)
    return AdapterStore(folder / "adapters", bucket=bucket)


def calls_of(bucket: Bucket) -> list[str]:
    assert isinstance(bucket._files, Place)
    return bucket._files.calls


def in_bucket(place: Shared) -> dict[str, bytes]:
    base = Path(place.url) / "files"
    return {p.relative_to(base).as_posix(): p.read_bytes() for p in base.rglob("*") if p.is_file()}


def below(folder: Path) -> list[str]:
    return sorted(p.name for p in folder.rglob("*") if not p.name.endswith(".lock"))


def test_what_one_node_stores_another_reads(shared: Shared, tmp_path: Path) -> None:
    a, b = adapters(tmp_path / "a", shared.node()), adapters(tmp_path / "b", bucket := shared.node())
    name, size = a.put(TENSORS, {"task": "pair"})
    assert b.has(name)
    assert (b.names(), b.known()) == (set(), {name})
    assert b.about(name) == {"task": "pair"}
    got, calls = b.get(name), len(calls_of(bucket))
    assert all(torch.equal(got[k], v) and got[k].dtype == v.dtype for k, v in TENSORS.items())
    assert b.path(name).read_bytes() == a.path(name).read_bytes()
    b.check(name, "a model", "none")
    assert (len(calls_of(bucket)), b.bytes()) == (calls, size), "a file that is here needs no bucket"
    samples = Samples(tmp_path / "a" / "samples", shared.node())
    sample = samples.put(["one text", "another"])
    others = Samples(tmp_path / "b" / "samples", shared.node())
    assert others.get(sample) == ["one text", "another"]
    others.remove([sample, "0" * 64])
    assert not shared.node().has(f"samples/{sample}.jsonl.zst")
    assert Samples(tmp_path / "c", shared.node()).get(sample) == []


@pytest.mark.parametrize("how", FAULTS)
def test_a_file_is_in_the_bucket_before_its_name_is_known(place: Shared, tmp_path: Path, how: str) -> None:
    """Whichever call fails, either the caller gets an error, or every node can read the file. Storing it
    again after the error completes what was begun."""
    at = 0
    while True:
        at += 1
        node, tensors = place.node(at, how), {"t": torch.full((3,), float(at))}
        store = adapters(tmp_path / "a", node)
        try:
            name, _ = store.put(tensors)
        except Unavailable:
            name, _ = adapters(tmp_path / "a", place.node()).put(tensors)
        other = adapters(tmp_path / f"b{at}", place.node())
        assert torch.equal(other.get(name)["t"], tensors["t"])
        if len(calls_of(node)) < at:
            break
    assert at > 1


@pytest.mark.parametrize("how", FAULTS)
def test_a_fetch_that_fails_leaves_nothing(place: Shared, tmp_path: Path, how: str) -> None:
    name, _ = adapters(tmp_path / "a", place.node()).put(TENSORS)
    at = 0
    while True:
        at += 1
        store = adapters(tmp_path / f"b{at}", node := place.node(at, how))
        try:
            found = store.get(name)
        except Unavailable:
            assert below(tmp_path / f"b{at}") == ["adapters"]
            assert store.get(name).keys() == TENSORS.keys(), "it is there, and can be asked for again"
        else:
            assert torch.equal(found["module.a"], TENSORS["module.a"])
        if len(calls_of(node)) < at:
            break
    assert at > 2


def test_damage_is_found_when_a_file_arrives(place: Shared, tmp_path: Path) -> None:
    name, _ = adapters(tmp_path / "a", place.node()).put(TENSORS)
    path = Path(place.url) / "files" / "adapters" / f"{name}.safetensors"
    good = path.read_bytes()
    for bad in (good[:-1], bytes([good[0] ^ 1]) + good[1:], good + b"x", b""):
        path.write_bytes(bad)
        store = adapters(tmp_path / "b", place.node())
        for read in (store.get, store.about, store.path):
            with pytest.raises(DamagedArtefact, match="checksum in the bucket"):
                read(name)
        assert below(tmp_path / "b") == ["adapters"]
    path.unlink()
    assert not store.has(name)
    with pytest.raises(DamagedArtefact, match="is missing"):
        store.get(name)


def test_a_bucket_that_does_not_answer_is_not_a_missing_file(place: Shared, tmp_path: Path) -> None:
    name, _ = adapters(tmp_path / "a", place.node()).put(TENSORS)
    asked: tuple[Callable[[AdapterStore], Any], ...] = (
        lambda s: s.get(name),
        lambda s: s.about(name),
        lambda s: s.has(name),
        lambda s: s.known(),
        lambda s: s.check(name, "a model", "none"),
    )
    for ask in asked:
        with pytest.raises(Unavailable, match="try again"):
            ask(adapters(tmp_path / "b", place.node(1, "before")))


def test_threads_that_want_one_file_all_get_it(place: Shared, tmp_path: Path) -> None:
    big = {"t": torch.arange(5_000_000.0)}  # more than two pieces
    name, _ = adapters(tmp_path / "a", place.node()).put(big)
    store, equal = adapters(tmp_path / "b", place.node()), []

    def read() -> None:
        equal.append(torch.equal(store.get(name)["t"], big["t"]))

    threads = [threading.Thread(target=read) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert equal == [True] * 6
    assert set(below(tmp_path / "b")) == {"adapters", f"{name}.safetensors"}


def test_only_the_node_that_manages_collects_in_the_bucket(place: Shared, tmp_path: Path) -> None:
    store = adapters(tmp_path / "a", place.node())
    kept, old, young, elsewhere = (store.put({"t": torch.tensor([float(i)])})[0] for i in range(4))
    base = Path(place.url) / "files" / "adapters"
    for name in (kept, old, elsewhere):
        for folder in (base, tmp_path / "a" / "adapters"):
            os.utime(folder / f"{name}.safetensors", (time.time() - 7200,) * 2)
    (tmp_path / "a" / "adapters" / f"{elsewhere}.safetensors").unlink()
    replica = adapters(tmp_path / "b", place.node())
    assert replica.get(old)
    assert replica.gc({kept}, 0)[0] == [old]
    assert store.known() == {kept, old, young, elsewhere}, "the bucket has all of them still"
    with pytest.raises(Unavailable):
        adapters(tmp_path / "a", place.node(1, "before")).gc({kept}, 3600, shared=True)
    assert store.gc({kept}, 3600, shared=True)[0] == [old]
    assert store.known() == {kept, young}
    assert store.names() == {kept, young}


@pytest.mark.parametrize("how", ["before", "half", "after"])
def test_a_collection_that_failed_is_made_up_for(place: Shared, tmp_path: Path, how: str) -> None:
    names = [adapters(tmp_path / "a", place.node()).put({"t": torch.tensor([float(i)])})[0] for i in (1, 2)]
    base = Path(place.url) / "files" / "adapters"
    for path in (*base.iterdir(), *(tmp_path / "a" / "adapters").glob("*.safetensors")):
        os.utime(path, (time.time() - 7200,) * 2)
    last, _ = adapters(tmp_path / "a", place.node()).put(TENSORS)
    store = adapters(tmp_path / "a", place.node(2, how))
    with pytest.raises(Unavailable):
        store.gc({last}, 3600, shared=True)
    assert store.names() == {last}
    assert store.known() >= {last, *names} or how != "before"
    assert store.gc({last}, 3600, shared=True) == ([], 0)
    assert store.known() == {last}


def filled(folder: Path, **files: bytes) -> Path:
    shutil.rmtree(folder, ignore_errors=True)
    for name, data in files.items():
        path = folder / name.replace("__", "/")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return folder


def content(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def brought(bucket: Bucket, folder: Path) -> dict[str, bytes]:
    """What another node gets."""
    shared = SharedFolder(bucket, "roots/r/1")
    folder.mkdir()
    shared.fetch(folder, shared.listed())
    return content(folder)


@pytest.mark.parametrize("how", FAULTS)
def test_a_folder_changes_as_a_whole(place: Shared, tmp_path: Path, how: str) -> None:
    """Whichever call fails, another node finds the files before the change or those after it."""
    before, after = {"x": b"old", "y": b"both"}, {"x": b"new", "y": b"both", "s__z": b"more"}
    then = {"x": b"new", "y": b"both", "s/z": b"more"}
    at = 0
    while True:
        at += 1
        shutil.rmtree(place.url, ignore_errors=True)
        SharedFolder(place.node(), "roots/r/1").put(filled(tmp_path / "a", **before))
        node = place.node(at, how)
        try:
            SharedFolder(node, "roots/r/1").put(filled(tmp_path / "a", **after))
        except Unavailable:
            assert brought(place.node(), tmp_path / f"x{at}") in (before, then)
            SharedFolder(place.node(), "roots/r/1").put(tmp_path / "a")
        assert brought(place.node(), tmp_path / f"b{at}") == then
        if len(calls_of(node)) < at:
            break
    assert at > 5


def test_a_folder_lies_in_s3(shared: Shared, tmp_path: Path) -> None:
    folder = SharedFolder(shared.node(), "roots/r/1")
    assert folder.listed() == {}
    folder.put(filled(tmp_path / "a", x=b"1", s__y=b"", **{".hidden": b"2"}))
    assert brought(shared.node(), tmp_path / "b") == {"x": b"1", "s/y": b""}
    folder.put(filled(tmp_path / "a", x=b"3"))
    assert brought(shared.node(), tmp_path / "c") == {"x": b"3", "s/y": b""}, "what a node lacks stays"
    assert len(shared.node().names("roots/r")) == 3, "the list and two files"
    folder.remove()
    folder.remove()
    assert shared.node().names("roots") == []


def test_a_damaged_folder_is_refused(place: Shared, tmp_path: Path) -> None:
    SharedFolder(place.node(), "roots/r/1").put(filled(tmp_path / "a", x=b"1"))
    base = Path(place.url) / "files" / "roots" / "r" / "1"
    (base / hashlib.sha256(b"1").hexdigest()).write_bytes(b"2")
    with pytest.raises(Damaged, match="fails its checksum"):
        brought(place.node(), tmp_path / "b")
    (base / hashlib.sha256(b"1").hexdigest()).unlink()
    with pytest.raises(Damaged, match="names x, which is missing"):
        brought(place.node(), tmp_path / "c")
    for bad in (b"[]", b"{", b'{"../x": "1"}', b'{"/x": "1"}', b'{"a/b/c": "1"}', b'{".x": "1"}'):
        (base / LIST).write_bytes(bad)
        with pytest.raises(Damaged, match=r"files\.json in the bucket"):
            SharedFolder(place.node(), "roots/r/1").listed()


# Roots


@pytest.fixture(scope="module")
def primary(tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Manager]:
    base = tmp_path_factory.mktemp("roots")
    yield from tiny_manager(tiny_source, base / "data", bucket=str(base / "bucket"))


@pytest.fixture
def replica(primary: Manager, tmp_path: Path) -> Iterator[Manager]:
    manager = replica_of(primary, tmp_path / "replica")
    yield manager
    manager.close()


def replica_of(primary: Manager, data: Path, role: Any = "replica") -> Manager:
    return Manager(Settings(data=data, job_workers=0, bucket=primary.settings.bucket, role=role))


def where(manager: Manager) -> tuple[str, str]:
    return "tiny", manager.registry.root("tiny").version


def states(folder: Path, *, lower: bool) -> dict[str, torch.Tensor]:
    root = load_root(folder, with_lower=lower)
    parts = {"upper": root.upper, "bias": root.bias, **({"lower": root.lower} if root.lower else {})}
    return {f"{name}.{k}": v for name, part in parts.items() for k, v in part.state_dict().items()}


def test_a_root_that_one_node_imported_another_loads(primary: Manager, replica: Manager) -> None:
    mine = primary.root_files.folder(*where(primary))
    assert replica.root_files.has(*where(replica))
    assert not any("lost its files" in problem for problem in replica.verify())
    assert not Layout(replica.settings.data).root(*where(replica)).exists()
    for lower in (False, True):
        folder = replica.root_files.folder(*where(replica), lower=lower)
        assert (folder / "lower.safetensors").exists() == lower
        want, got = states(mine, lower=lower), states(folder, lower=lower)
        assert want.keys() == got.keys()
        assert all(torch.equal(want[name], got[name]) for name in want)
    assert content(folder) == content(mine)
    assert verify_root(folder) == []


def test_shards_follow(primary: Manager, tmp_path: Path) -> None:
    primary.registry.lead("http://primary")
    before = replica_of(primary, tmp_path / "before")
    early = before.root_files.folder(*where(before), lower=False)
    assert attempt(primary, primary.root_shards.make("tiny"), shard_root.run)
    after = replica_of(primary, tmp_path / "after")
    made = content(primary.root_files.folder(*where(primary)))
    for manager in (before, after):
        folder = manager.root_files.folder(*where(manager), lower=False)
        assert {n: d for n, d in made.items() if n != "lower.safetensors"} == content(folder)
    assert folder != early
    # The job measured another model: only the file of its results differs.
    (early / "shards" / "fidelity.json").write_bytes(b"{}")
    before.root_files.folder(*where(before), lower=False)
    assert content(early / "shards") == content(folder / "shards")
    for manager in (before, after):
        manager.close()


def test_a_root_is_used_as_it_is_while_the_bucket_does_not_answer(primary: Manager, tmp_path: Path) -> None:
    place = Shared(primary.settings.bucket)
    files = RootFiles(Layout(tmp_path), place.node(1, "before"), follows=lambda: True)
    with pytest.raises(Unavailable):
        files.folder(*where(primary))
    folder = RootFiles(Layout(tmp_path), place.node()).folder(*where(primary), lower=False)
    files = RootFiles(Layout(tmp_path), place.node(1, "before"), follows=lambda: True)
    assert files.folder(*where(primary), lower=False) == folder
    with pytest.raises(Unavailable):
        RootFiles(Layout(tmp_path), place.node(1, "before")).folder(*where(primary))


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_root_that_failed_to_arrive_is_not_there(primary: Manager, tmp_path: Path, how: str) -> None:
    place, at = Shared(primary.settings.bucket), 0
    want = content(primary.root_files.folder(*where(primary)))
    while True:
        at += 1
        layout = Layout(tmp_path / str(at))
        node = place.node(at, how)
        try:
            RootFiles(layout, node).folder(*where(primary))
        except Unavailable:
            assert not layout.root(*where(primary)).exists()
            assert not below(layout.roots / "tiny") if (layout.roots / "tiny").exists() else True
            RootFiles(layout, node).folder(*where(primary))
        assert content(layout.root(*where(primary))) == want
        if len(calls_of(node)) < at:
            break
    assert at > 8


def test_threads_that_want_one_root_fetch_it_once(primary: Manager, tmp_path: Path) -> None:
    node = Shared(primary.settings.bucket).node()
    files, found = RootFiles(Layout(tmp_path), node), []
    threads = [threading.Thread(target=lambda: found.append(files.folder(*where(primary)))) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 6
    assert verify_root(found[0]) == []
    listed = SharedFolder(node, "/".join(("roots", *where(primary)))).listed()
    assert calls_of(node).count("size") == len(listed)
    assert {name: file_sha256(found[0] / name) for name in listed} == listed


def test_a_deleted_root_leaves_the_bucket(primary: Manager, tmp_path: Path, tiny_source: Path) -> None:
    for manager in tiny_manager(tiny_source, tmp_path / "d", bucket=str(tmp_path / "other")):
        assert manager.root_files.has(*where(manager))
        manager.delete_root("tiny")
        assert Shared(str(tmp_path / "other")).node().names("roots") == []


# Jobs' inputs, callers' files, and what holds for all


def manager_of(place: Shared | None, data: Path, **settings: Any) -> Manager:
    given = {"bucket": "" if place is None else place.url, "job_workers": 0, **settings}
    return Manager(Settings(data=data, **given), bodies=BODIES)


def count(manager: Manager, data: bytes | Path) -> str:
    return manager.runner.submit("shard_root", {"do": "count", "steps": 1}, inputs={"data": data}).job


def test_a_job_outlives_the_disk_of_the_node_that_took_it(place: Shared, tmp_path: Path) -> None:
    first = manager_of(place, tmp_path / "a")
    job = count(first, b"some rows")
    first.close()
    shutil.rmtree(tmp_path / "a")
    second = manager_of(place, tmp_path / "b")
    done = second.runner.run_one(job)
    assert done.result is not None, done.error
    assert done.result["input"] == "some rows"
    assert in_bucket(place) == {}, "what an ended job was given is gone"
    assert not (second.settings.data / "jobs" / job / "input").exists()
    second.close()


@pytest.mark.parametrize("how", ["before", "after"])
def test_a_job_that_is_taken_can_run_anywhere(place: Shared, tmp_path: Path, how: str) -> None:
    manager, at = manager_of(place, tmp_path / "a"), 0
    while True:
        at += 1
        manager.runner._bucket = node = place.node(at, how)
        try:
            job = count(manager, b"rows %d" % at)
        except Unavailable:
            assert not manager.registry.live_jobs()
            assert not list((tmp_path / "a" / "jobs").glob("*/input"))
            continue
        folder = JobFolder(tmp_path / "b", job, place.node())
        assert folder.missing(["data", "another"]) == ["another"]
        assert (folder.input / "data").read_bytes() == b"rows %d" % at
        manager.runner.cancel(job)
        if len(calls_of(node)) < at:
            break
    manager.close()
    assert at > 3


def test_a_lost_input_is_said(place: Shared, tmp_path: Path) -> None:
    manager = manager_of(place, tmp_path / "a")
    job = count(manager, b"rows")
    shutil.rmtree(tmp_path / "a" / "jobs" / job)
    name = next(n for n in in_bucket(place) if not n.endswith(LIST))
    (Path(place.url) / "files" / name).write_bytes(b"RO")
    error = manager.runner.run_one(job).error
    assert error is not None
    assert error["kind"] == "damaged"
    assert "fails its checksum" in error["message"]
    manager.close()


def test_a_callers_file_is_read_on_another_node(place: Shared, tmp_path: Path) -> None:
    first = manager_of(place, tmp_path / "a")
    (tmp_path / "a" / "x").write_bytes(b"kept")
    record = first.files.add(None, tmp_path / "a" / "x", "x.jsonl", "fine-tune")
    for at, how in ((1, "before"), (1, "after")):
        (tmp_path / "a" / "x").write_bytes(b"kept")
        object.__setattr__(first._parts, "bucket", place.node(at, how))
        with pytest.raises(Unavailable):
            first.files.add(None, tmp_path / "a" / "x", "x.jsonl", "fine-tune")
        assert [f.file for f in first.files.of(None)] == [record.file]
        assert below(tmp_path / "a" / "files") == [record.file]
    second = manager_of(place, tmp_path / "b")
    path = second.files.checked(record)
    assert path.read_bytes() == b"kept"
    path.write_bytes(b"torn")
    assert second.files.checked(record).read_bytes() == b"kept", "a damaged file is fetched again"
    second.files.delete(record.file)
    assert in_bucket(place) == {}
    with pytest.raises(Damaged, match="send it again"):
        second.files.checked(record)
    for manager in (first, second):
        manager.close()


def lost_plots(manager: Manager) -> list[str]:
    return [problem.partition(":")[0] for problem in manager.verify() if "PLOT" in problem]


def test_a_data_folder_that_had_no_bucket_shares_what_is_needed(
    place: Shared, tmp_path: Path, tiny_source: Path
) -> None:
    for alone in tiny_manager(tiny_source, tmp_path / "a"):
        alone.create_tenant("acme")
        artefact = add_model(alone, "acme.m", alone.plots.version("tiny"))
        unused, _ = alone.adapters.put({"t": torch.ones(1)})
        (tmp_path / "a" / "x").write_bytes(b"kept")
        record = alone.files.add(None, tmp_path / "a" / "x", "x.jsonl", "fine-tune")
        job = count(alone, b"rows")
    path = tmp_path / "a" / "adapters" / f"{artefact}.safetensors"
    good = path.read_bytes()
    path.write_bytes(good[:-1])
    first = manager_of(place, tmp_path / "a")
    first._housekeeping()
    assert first.adapters.known() == {artefact, unused}
    path.write_bytes(good)
    first._housekeeping()
    calls = in_bucket(place)
    second = manager_of(place, tmp_path / "b", role="replica")
    assert second.adapters.known() == {artefact}, "neither a damaged file nor one that nobody needs"
    assert second.adapters.get(artefact)
    assert second.files.checked(record).read_bytes() == b"kept"
    assert JobFolder(tmp_path / "j", job, place.node()).missing(["data"]) == []
    assert verify_root(second.root_files.folder(*where(second))) == []
    second._housekeeping()
    assert in_bucket(place) == calls, "a replica removes nothing"
    assert not second.plots.heads(), "nobody has asked for a PLOT yet"
    assert lost_plots(second) == [], "the bucket has what the replica lacks"
    version = first.plots.version("tiny").id
    (tmp_path / "bucket" / "plots" / "refs" / "tiny.json").unlink()
    assert lost_plots(second) == ["root tiny has no PLOT"]
    (tmp_path / "bucket" / "plots" / "versions" / f"{version}.json.zst").unlink()
    assert lost_plots(second) == [
        "root tiny has no PLOT",
        "version 1 of model acme.m has lost its PLOT version",
    ]
    assert lost_plots(first) == []
    for manager in (first, second):
        manager.close()


def test_what_crashes_leave_in_the_bucket_goes(place: Shared, tmp_path: Path) -> None:
    manager = manager_of(place, tmp_path / "a")
    job = count(manager, b"rows")
    needed = in_bucket(place)
    (tmp_path / "a" / "x").write_bytes(b"kept")
    record = manager.files.add(None, tmp_path / "a" / "x", "x.jsonl", "fine-tune")
    for name in (
        "jobs/jgone/files.json",
        "files/file-gone",
        "roots/tiny/jgone/x",
        f"roots/t/{job}/x",
        "roots/x",
    ):
        place.node()._files.put(name, memoryview(b"1"))
    base = Path(place.url) / "files"
    for path in [p for p in base.rglob("*") if p.is_file()]:
        os.utime(path, (time.time() - 7200,) * 2)
    young = ("jobs/jyoung/x", "files/file-young", "roots/tiny/jyoung/x")
    for name in young:
        place.node()._files.put(name, memoryview(b"1"))
    manager.registry.lead("http://a")
    replica = manager_of(place, tmp_path / "b", role="replica")
    for each in (replica, manager):
        before = in_bucket(place)
        each.collect_garbage()
        if each is replica:
            assert in_bucket(place) == before
        each.close()
    assert in_bucket(place).keys() == {*needed, f"files/{record.file}", f"roots/t/{job}/x", *young}
