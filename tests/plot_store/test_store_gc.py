"""Garbage collection keeps what must stay and removes what nobody can reach."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Collected, Invalid, NotFound, PlotStoreError, Store, StoreFull
from plot_store.care import gc
from plot_store.catalogue import changes
from plot_store.catalogue.catalogue import FORMAT, Catalogue, CatalogueTxn
from plot_store.environment.environment import Environment


def files(store: Store) -> set[str]:
    return {p.name for p in (store.path / "segments").iterdir()}


def test_nothing_reachable_goes(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    lab.put(store, "r/a", lab.content(2))
    for seed in range(3, 13):
        lab.put(store, "r", lab.content(seed))
    before = files(store)
    dry = store.gc(dry_run=True, keep_versions=2)
    assert files(store) == before
    assert len(store.history("r")) == 11
    report = store.gc(keep_versions=2)
    assert (report.versions, set(report.segments), report.bytes) == (
        dry.versions,
        set(dry.segments),
        dry.bytes,
    )
    assert len(report.versions) == 8  # of 11 versions, two are kept and one is the parent of r/a
    assert len(store.history("r")) == 2
    known = [lab.entries(lab.content(2)), lab.entries(lab.content(1))]
    with store.reader("r/a") as reader:
        lab.same_as(reader, known, lab.texts(1))
    with pytest.raises(Collected, match="removed by gc"):
        store.version(report.versions[0])
    assert store.gc(keep_versions=2).bytes == 0
    lab.check(store)
    with pytest.raises(Invalid, match="at least 1"):
        store.gc(keep_versions=0)


def test_rolled_back_versions_and_the_current_one_stay(store: Store) -> None:
    versions = [lab.put(store, "r", lab.content(seed)) for seed in range(6)]
    store.rollback("r", versions[0].id)
    store.gc(keep_versions=2)
    assert [v.id for v in store.history("r")] == [versions[5].id, versions[4].id, versions[0].id]
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(lab.content(0))], lab.texts(1))
    lab.check(store)


def test_a_pinned_reader_keeps_its_version_in_the_store(store: Store) -> None:
    old = lab.put(store, "r", lab.content(1))
    reader = store.reader("r")
    lab.put(store, "r", lab.content(2))
    assert store.gc(keep_versions=1).versions == ()
    with store.reader(old.id) as second:
        lab.same_as(second, [lab.entries(lab.content(1))], lab.texts(1))
    reader.close()
    assert store.gc(keep_versions=1).versions == (old.id,)
    assert not any(s.name in files(store) for s in old.segments)
    lab.check(store)


def test_a_reader_that_was_only_dropped_unpins_too(store: Store) -> None:
    old = lab.put(store, "r", lab.content(1))
    reader = store.reader("r")
    assert reader.version == old
    del reader
    lab.put(store, "r", lab.content(2))
    assert store.gc(keep_versions=1).versions == (old.id,)


READER = """
import sys, plotlab as lab
from plot_store import Store
reader = Store.open(sys.argv[1]).reader("r")
print("open", flush=True)
sys.stdin.readline()
lab.same_as(reader, [lab.entries(lab.content(1))], lab.texts(1))
print("same", flush=True)
"""


def test_readers_of_other_processes_survive_the_unlinking(store: Store) -> None:
    old = lab.put(store, "r", lab.content(1))
    with subprocess.Popen(
        [sys.executable, "-c", READER, str(store.path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env=lab.child_env(),
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "open\n"
        lab.put(store, "r", lab.content(2))
        assert store.gc(keep_versions=1).versions == (old.id,)
        assert process.communicate("\n", timeout=60)[0] == "same\n"
        assert process.returncode == 0


def test_builds_hold_their_segments_and_their_ground_until_abandoned(store: Store) -> None:
    ground = lab.put(store, "r", lab.content(1))
    made = lab.content(3, (1500, 0, 0))
    with store.writer("r/a", schema=lab.schema(), build="b", segment_bytes=1 << 15) as writer:
        writer.add(3, *made[3])
    durable = writer.resume_point(3)  # closing has waited for the segments that were being written
    lab.put(store, "r", lab.content(2))
    assert durable > 0
    report = store.gc(keep_versions=1, orphan_age_s=-60)
    assert (report.versions, report.segments, report.builds) == ((), (), ())
    with store.writer("r/a", schema=lab.schema(), build="b", segment_bytes=1 << 15) as writer:
        assert writer.resume_point(3) == durable
    report = store.gc(keep_versions=1, build_age_s=-60)
    assert (report.builds, report.versions) == (("b",), (ground.id,))
    with store.writer("r/a", schema=lab.schema(), build="b") as writer:
        assert writer.resume_point(3) == 0
    lab.check(store)


DIES = """
import os, sys, numpy as np, plotlab as lab
from plot_store import Store
from plot_store.writing import writer
writer.publication.publish = lambda *_: os._exit(9)
real = writer.SegmentWriter.submit
writer.SegmentWriter.submit = lambda self, *given: (real(self, *given), self.drain())
lab.put  # the append's first segment is durable when it dies
import plot_store.writing.append
plot_store.writing.append.SEGMENT_BYTES = 1 << 15
with Store.open(sys.argv[1]) as store:
    store.append("r", lab.content(3, (1500, 0, 0)), build=sys.argv[2] or None)
"""


def age(store: Store, kind: str, seconds: float) -> list[str]:
    """Make the records of this kind `seconds` older; return their keys."""

    def body(txn: CatalogueTxn) -> list[str]:
        for key in txn.keys(f"{kind}/"):
            raw = txn.get(f"{kind}/{key}")
            name = {"build": "touched", "collected": "at"}[kind]
            txn.put(f"{kind}/{key}", {**raw, name: raw[name] - seconds})
        return txn.keys(f"{kind}/")

    return store._env().catalogue.write(body)


def test_what_a_killed_append_left_goes_after_hours_not_days(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    before = files(store)
    for build in ("", "mine"):
        assert lab.child(DIES, store.path, build).returncode == 9
    builds = age(store, "build", 3000)
    assert len(builds) == 2
    assert store.gc().builds == ()
    age(store, "build", 1000)
    report = store.gc()
    assert report.builds == tuple(b for b in builds if b.startswith("append-"))
    assert len(report.segments) == 0  # another build has the same content, and its writer may return
    assert store.abandon("mine")
    assert files(store) == before | {p for p in files(store) if p.endswith(".tmp")}
    store.gc(orphan_age_s=-60)
    assert files(store) == before
    lab.check(store)


def test_the_record_of_a_collected_version_ends_too(store: Store) -> None:
    old = lab.put(store, "r", lab.content(1))
    lab.put(store, "r", lab.content(2))
    assert store.gc(keep_versions=1).versions == (old.id,)
    assert age(store, "collected", 3000) == [old.id]
    store.gc()
    store.gc(dry_run=True, orphan_age_s=0)
    with pytest.raises(Collected):
        store.version(old.id)
    age(store, "collected", 1000)
    store.gc()
    with pytest.raises(NotFound, match="there is no version"):
        store.version(old.id)
    assert age(store, "collected", 0) == []
    assert store.verify().ok


def test_catalogues_that_were_never_finished_go(store: Store) -> None:
    """A process killed while it creates a store leaves a draft."""
    drafts = [store.path / f"catalogue.{digit * 32}.tmp" for digit in "ab"]
    strangers = [store.path / "catalogue.mine.tmp", store.path / "notes.tmp"]
    for folder in (*drafts, *strangers):
        folder.mkdir()
        (folder / "data.mdb").write_bytes(bytes(5000))
    os.utime(drafts[0], (1, 1))
    dry = store.gc(dry_run=True)
    report = store.gc()
    assert dry.orphans == report.orphans == (drafts[0].name,)
    assert dry.bytes == report.bytes >= 5000
    assert [folder.exists() for folder in (*drafts, *strangers)] == [False, True, True, True]
    assert store.gc(orphan_age_s=-60).orphans == (drafts[1].name,)
    assert not drafts[1].exists()


def test_orphans_go_past_their_age_and_strangers_never(store: Store) -> None:
    lab.put(store, "r", lab.content(1))
    folder = store.path / "segments"
    for name in ("0" * 32 + ".rows", "1" * 32 + ".index", "x.tmp", "notes.txt"):
        (folder / name).write_bytes(b"x")
    assert store.gc().orphans == ()
    assert len(store.gc(dry_run=True, orphan_age_s=-60).orphans) == 3
    assert len(store.gc(orphan_age_s=-60).orphans) == 3
    assert (folder / "notes.txt").exists()
    lab.check(store)


def test_collecting_beside_publishing_and_reading(store: Store) -> None:
    """Every read equals one published version; the collector never removes what a reader is about to open."""
    contents = [lab.content(seed, (60, 20, 6)) for seed in range(4)]
    known = [lab.entries(made) for made in contents]
    lab.put(store, "r", contents[0])
    stop = threading.Event()
    wrong: list[BaseException] = []
    reads = [0]

    def read() -> None:
        try:
            while not stop.is_set():
                with store.reader("r") as reader:
                    lab.same_as(reader, [known[reader.version.meta.get("seed", 0)]], lab.texts(1))
                    reads[0] += 1
        except (AssertionError, PlotStoreError) as error:
            wrong.append(error)

    def clean() -> None:
        try:
            while not stop.is_set():
                store.gc(keep_versions=1, orphan_age_s=60)
        except PlotStoreError as error:
            wrong.append(error)

    threads = [threading.Thread(target=read), threading.Thread(target=read), threading.Thread(target=clean)]
    for thread in threads:
        thread.start()
    for turn in range(40):
        lab.put(store, "r", contents[turn % 4], meta={"seed": turn % 4})
    stop.set()
    for thread in threads:
        thread.join(60)
    assert not wrong, wrong[0]
    assert reads[0] > 10
    store.gc(keep_versions=1)
    lab.check(store)


def test_info_counts(store: Store, tmp_path: Path) -> None:
    version = lab.put(store, "r", lab.content(1))
    info = store.info()
    assert (info.format, info.refs, info.versions, info.segments) == (FORMAT, 1, 1, 1)
    assert info.entries == version.entries == {k: len(v[0]) for k, v in lab.content(1).items()}
    assert info.bytes > version.bytes
    assert info.path == str(tmp_path / "plots")


def test_a_record_of_a_collected_version_that_cannot_be_read_holds_up_nothing(store: Store) -> None:
    old = lab.put(store, "r", lab.content(1))
    lab.put(store, "r", lab.content(2))
    store.gc(keep_versions=1)
    store._env().catalogue.write(lambda txn: txn.put(f"collected/{old.id}", {"when": "no such field"}))
    store.gc()
    assert age(store, "collected", 0) == []
    assert store.verify().ok


def test_a_version_that_comes_back_keeps_its_ancestors(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """An import may bring it between two transactions: after it was removed, before its parent is."""
    old = lab.put(store, "r", lab.content(1))
    removed = lab.put(store, "a", lab.content(2), parent="r")
    store.export("a", tmp_path / "a.plot")
    lab.put(store, "r", lab.content(3))
    lab.put(store, "a", lab.content(4), parent="r")
    came: list[str] = []

    def between() -> None:
        if not came and removed.id not in store._env().catalogue.read(lambda txn: txn.keys("version/")):
            store.delete("a")
            came.append(store.import_archive(tmp_path / "a.plot").id)
            lab.put(store, "a", lab.content(5), parent="r")

    monkeypatch.setattr(changes, "HOLD_S", 0.0)  # a transaction for each step
    monkeypatch.setattr(gc, "give_way", between)
    store.gc(keep_versions=1)
    assert came == [removed.id]
    assert [version.id for version in store.chain(removed.id)] == [removed.id, old.id]
    lab.check(store)


def test_a_collection_that_nobody_disturbs_compares_nothing_with_the_lock(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(4):
        lab.put(store, "r", lab.content(seed))
    looks: list[bool] = []
    real = changes.look

    def look(txn: CatalogueTxn, prefixes: Iterable[str]) -> changes.Seen:
        looks.append(txn._writes)
        return real(txn, prefixes)

    monkeypatch.setattr(changes, "HOLD_S", 0.0)  # a transaction for each step
    monkeypatch.setattr(changes, "look", look)
    monkeypatch.setattr(gc, "give_way", lambda: None)
    assert len(store.gc(keep_versions=3).versions) == 1
    assert looks == [False, False], "the two snapshots"
    looks.clear()
    monkeypatch.setattr(gc, "give_way", lambda: store.pin("r", "between"))
    assert len(store.gc(keep_versions=1).versions) == 2
    assert looks == [False, True, False]
    lab.check(store)


def test_a_file_to_which_an_import_brings_its_segment_back_stays(
    store: Store, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The import begins and ends between the snapshot of the sweep and the removal of the file."""
    version = lab.put(store, "r", lab.content(1))
    store.export("r", tmp_path / "r.plot")
    name = version.segments[0].name
    lab.piece(store, name).flip(5000)
    store.import_archive(tmp_path / "r.plot")
    assert lab.files(store, [name]) == {name}
    lab.put(store, "r", lab.content(1))
    assert lab.files(store, [name]) != {name}, "the segment's own file is of no use now"
    lab.piece(store, name).flip(5000)
    write = Environment.write_freeing

    def later(environment: Environment, body: Callable[[CatalogueTxn], object]) -> object:
        monkeypatch.setattr(Environment, "write_freeing", write)
        store.import_archive(tmp_path / "r.plot")
        return write(environment, body)

    monkeypatch.setattr(Environment, "write_freeing", later)
    store.gc()
    assert lab.files(store, [name]) == {name}
    lab.check(store)


def test_the_record_of_a_file_that_was_lost_goes(store: Store, tmp_path: Path) -> None:
    """Nothing lies in it any more. A crash between its removal and the commit leaves the same."""
    lab.put(store, "r", lab.content(1))
    store.export("r", tmp_path / "r.plot")
    (lost,) = (store.path / "segments").iterdir()
    lost.unlink()
    store.import_archive(tmp_path / "r.plot")
    (kept,) = (store.path / "segments").iterdir()
    assert kept.name != lost.name
    assert store.gc(dry_run=True) == replace(store.gc(), dry_run=True)
    assert store._env().catalogue.read(lambda txn: txn.keys("file/")) == [kept.name]
    lab.check(store)


def test_a_sweep_that_runs_again_on_a_full_disk_reports_all_that_it_removed(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    for seed in range(3):
        lab.put(store, "r", lab.content(seed))
    expected = store.gc(dry_run=True, keep_versions=1)
    real, failed = Catalogue.write, list[str]()

    def write(catalogue: Catalogue, body: Callable[[CatalogueTxn], object]) -> object:
        def full(txn: CatalogueTxn) -> object:
            found = body(txn)
            if body.__name__ == "remove_some" and not failed:
                failed.append("at its commit")
                raise StoreFull("no space left")
            return found

        return real(catalogue, full)

    monkeypatch.setattr(Catalogue, "write", write)
    found = store.gc(keep_versions=1)
    assert failed
    assert (found.bytes, found.segments) == (expected.bytes, expected.segments)
    lab.check(store)
