"""Erasure beside what could bring n-grams back: archives, remotes, other builds, other processes."""

from __future__ import annotations

import dataclasses
import itertools
import struct
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import plotlab as lab
import pytest
from eraselab import BASE, GONE, MORE, OTHERS, contains, expect, keys_of, left_of, rows_of, traces, without

from plot_store import Conflict, Damaged, EraseReport, FormatTooNew, Store, VersionInfo
from plot_store.care import archive_format
from plot_store.catalogue import catalogue, version_tree
from plot_store.writing import writer


def test_archives(store: Store, other: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old, new, again = (tmp_path / name for name in ("old.plot", "new.plot", "again.plot"))
    lab.put(store, "r", BASE)
    lab.put(store, "r/a", OTHERS)
    store.export("r/a", old)
    store.export("r/a", again)
    assert again.read_bytes() == old.read_bytes()
    assert struct.unpack_from("<H", old.read_bytes(), 8) == (3,)  # the release before reads it
    wanted = rows_of(store, ["r"], GONE) | keys_of(GONE)
    store.erase(["r"], GONE)
    chain = [lab.entries(OTHERS), lab.entries(without(BASE, GONE))]
    store.export("r/a", new)
    assert struct.unpack_from("<H", new.read_bytes(), 8) == (5,)
    for archive in (old, new):  # both are there
        assert store.import_archive(archive) == store.version("r/a")
        assert traces(store.path, wanted) == 0
    copy = store.import_archive(old, ref="q")
    expect(store, "q", chain)
    assert store.import_archive(new, ref="q") == copy
    assert other.import_archive(new) == store.version("r/a")
    assert [v.id for v in other.chain("r/a")] == [v.id for v in store.chain("r/a")]
    assert Store.archived(new) == other.chain("r/a")
    for archive in (old, new):
        other.import_archive(archive)
        expect(other, "r/a", chain)
        assert traces(other.path, wanted) == 0
    other.delete("r/a")
    other.delete("r")
    other.gc(orphan_age_s=-60)
    with pytest.raises(Conflict, match=r"this store lacks .* which stands for it: bring the version"):
        other.import_archive(old)  # the record stays when its segments have gone
    assert traces(other.path, wanted) == 0
    assert [p.name for p in (other.path / "segments").iterdir()] == []
    other.import_archive(new)
    expect(other, "r/a", chain)
    for each in (store, other):
        lab.check(each)
    monkeypatch.setattr(archive_format, "ERASING_ARCHIVE_FORMAT", 4)  # as the release before
    with pytest.raises(FormatTooNew, match="the export has format 5, this release reads up to 4: upgrade"):
        store.import_archive(new)


def test_an_archive_does_not_erase_from_other_versions(store: Store, other: Store, tmp_path: Path) -> None:
    for each in (store, other):
        lab.put(each, "r", BASE, build="same")
    lab.put(store, "r/a", OTHERS)
    store.erase(["r"], GONE)
    store.export("r/a", tmp_path / "new.plot")
    with pytest.raises(Conflict, match=r"another version of this store has segment \w+\.\w+ with them"):
        other.import_archive(tmp_path / "new.plot")
    expect(other, "r", [lab.entries(BASE)])
    other.erase(["r"], GONE)
    lab.put(other, "gone", OTHERS)
    lab.check(other)


def test_a_list_of_erased_segments_may_lie(store: Store, tmp_path: Path) -> None:
    lab.put(store, "r", BASE)
    with Store.open(tmp_path / "from", create=True) as origin:
        version = lab.put(origin, "r", BASE)
        rows = next(s for s in version.segments if s.kind == "rows" and s.order == 3)
        index = next(s for s in version.segments if s.kind == "index" and s.order == 3)
    small = {"name": "1" * 32 + ".rows", "count": 1}
    for now in (
        dataclasses.replace(rows, name=small["name"]),  # as many rows
        dataclasses.replace(rows, order=2, **small),
        dataclasses.replace(index, count=1),
        dataclasses.replace(rows, count=1),  # itself
    ):
        pairs = tuple((segment, now if segment == rows else segment) for segment in version.segments)
        lie = dataclasses.replace(version, erased=pairs)
        (tmp_path / "bad.plot").write_bytes(archive_format.Packer().head([lie]))
        with pytest.raises(Damaged, match="list of erased segments is malformed"):
            store.import_archive(tmp_path / "bad.plot")


@pytest.mark.parametrize("late", [False, True])
def test_an_import_beside_an_erasure(store: Store, other: Store, tmp_path: Path, late: bool) -> None:
    lab.put(other, "r", BASE)
    lab.put(other, "r/a", OTHERS)
    other.export("r/a", tmp_path / "x.plot")
    store.import_archive(tmp_path / "x.plot")
    wanted = rows_of(store, ["r"], GONE) | keys_of(GONE)
    lab.piece(store, next(s.name for s in store.version("r").segments)).flip(1000)  # so that it is read
    begun: list[str] = []

    def erase_now(done: int, total: int) -> None:
        if not begun and done >= late * total:
            begun.append(store.erase(["r"], GONE).versions[0])

    with pytest.raises(Conflict, match=r"erased|has ended"):
        store.import_archive(tmp_path / "x.plot", progress=erase_now)
    assert traces(store.path, wanted) == 0
    store.import_archive(tmp_path / "x.plot")
    expect(store, "r/a", [lab.entries(OTHERS), lab.entries(without(BASE, GONE))])
    assert traces(store.path, wanted) == 0
    lab.check(store)


def test_a_compaction_beside_an_erasure(store: Store) -> None:
    lab.put(store, "r", BASE)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "MAX_RUNS", 1 << 30)
        for seed in range(10, 14):
            store.append("r", without(lab.content(seed, (30, 5, 2)), GONE))
    wanted = rows_of(store, ["r"], GONE) | keys_of(GONE)
    before = {tuple(g) for g in store.reader("r").ngrams(3).tolist()}
    begun: list[EraseReport] = []

    def erase_now(done: int, total: int) -> None:
        if not begun:
            begun.append(store.erase(["r"], GONE))

    with pytest.raises(Conflict, match="has ended"):
        store.compact("r", max_segments=1, progress=erase_now)
    assert traces(store.path, wanted) == 0
    assert store.compact("r", max_segments=1) is not None
    assert {tuple(g) for g in store.reader("r").ngrams(3).tolist()} == before - set(
        map(tuple, GONE[3].tolist())
    )
    assert traces(store.path, wanted) == 0
    lab.check(store)


DIES = """
import os, sys
from plot_store import Store
from plot_store.catalogue.version_tree import BUILD, get_build
steps = []
def progress(done, total):
    steps.append(done)
    read = store._env().catalogue.read
    while len(steps) > 9 and not read(lambda txn: get_build(txn, txn.keys(BUILD)[0])).segments:
        pass
    if len(steps) > 9:
        os._exit(0)
with Store.open(sys.argv[1]) as store:
    store.compact("r", max_segments=1, target_bytes=1 << 14, progress=progress)
"""


def test_copies_of_a_compaction_that_died(store: Store) -> None:
    """They are segments of its build, which nobody ends, under names that no version has."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(writer, "MAX_RUNS", 1 << 30)
        lab.put(store, "r", {})
        for start in range(0, len(BASE[3][0]), 10):
            store.append("r", {3: (BASE[3][0][start : start + 10], BASE[3][1][start : start + 10])})
    gone = {3: BASE[3][0][:25]}
    wanted = rows_of(store, ["r"], gone) | keys_of(gone)
    assert lab.child(DIES, store.path).returncode == 0
    held = {file for file in (store.path / "segments").iterdir() if traces(file, wanted)}
    (build,) = store._env().catalogue.read(lambda txn: txn.keys("build/"))
    copies = store._env().catalogue.read(lambda txn: version_tree.get_build(txn, build))
    assert copies is not None
    assert lab.files(store, copies.names) & {file.name for file in held}
    store.erase(["r"], gone)
    assert store._env().catalogue.read(lambda txn: txn.keys("build/")) == []
    assert traces(store.path, wanted) == 0
    lab.check(store)


def test_an_erasure_beside_an_erasure(store: Store) -> None:
    """The second ends while the first searches, and changes the same segments."""
    lab.put(store, "r", BASE)
    one, two = {3: BASE[3][0][:9]}, {3: BASE[3][0][9:20], 2: GONE[2]}
    wanted = rows_of(store, ["r"], GONE) | keys_of(GONE)
    todo = iter([two])

    def erase_now(done: int, total: int) -> None:
        for other in todo:
            assert store.erase(["r"], other).ngrams == {3: 11, 2: 5}

    assert store.erase(["r"], one, progress=erase_now).ngrams == {3: 9}
    expect(store, "r", [left_of(left_of(lab.entries(BASE), one), two)])
    assert store.erase(["r"], GONE).ngrams == {3: 5, 2: 0, 1: 2}
    assert traces(store.path, wanted) == 0
    lab.check(store)


@pytest.mark.parametrize("merges", [True, False])
def test_an_append_beside_an_erasure(store: Store, merges: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has read what is then erased. It is published on top of what is left."""
    lab.put(store, "r", BASE)
    if merges:
        monkeypatch.setattr(writer, "MAX_RUNS", 1)
    wanted = rows_of(store, ["r"], GONE) | keys_of(GONE)
    real, begun = writer.publication.publish, []

    def publish(*given: Any) -> VersionInfo:
        if not begun:
            begun.append(store.erase(["r"], GONE))
        return real(*given)

    monkeypatch.setattr(writer.publication, "publish", publish)
    store.append("r", OTHERS)
    assert bool(begun[0].left) == merges  # the append's own file, with copies
    expect(store, "r", [{**lab.entries(without(BASE, GONE)), **lab.entries(OTHERS)}])
    assert traces(store.path, wanted) == 0
    lab.check(store)


def test_publications_beside_an_erasure(store: Store) -> None:
    """They come while it searches. It erases from what they left."""
    lab.put(store, "r", BASE)
    more = iter([OTHERS, {3: (BASE[3][0][:2], BASE[3][1][:2] + 5)}, {2: MORE[2]}])

    def publish(done: int, total: int) -> None:
        for made in itertools.islice(more, 1):
            store.append("r", made)

    report = store.erase(["r"], GONE, progress=publish)
    assert len(report.versions) >= 3
    for version in store.history("r"):
        assert contains(store, version.id, GONE) == {False}
    expect(
        store, "r", [left_of({**lab.entries(BASE), **lab.entries(OTHERS), **lab.entries({2: MORE[2]})}, GONE)]
    )
    assert traces(store.path, keys_of(GONE)) == 0
    lab.check(store)


def test_it_gives_up_beside_endless_publications(store: Store) -> None:
    lab.put(store, "r", {3: BASE[3]})
    numbers = itertools.count()

    def publish(done: int, total: int) -> None:
        if done == total:
            store.append("r", {1: (OTHERS[1][0], OTHERS[1][1] + next(numbers))})

    with pytest.raises(Conflict, match="r moved 16 times, and nothing was erased"):
        store.erase(["r"], {3: GONE[3]}, progress=publish)
    assert contains(store, "r", {3: GONE[3]}) == {True}
    lab.check(store)


RACE = """
import sys, plotlab as lab
from plot_store import Store, Conflict
with Store.open(sys.argv[1]) as store:
    print("ready", flush=True)
    for seed in range(100, 125):
        made = lab.content(seed, (9, 3, 1), vocab=6)
        store.append("r", {order: (ngrams + 6, rows) for order, (ngrams, rows) in made.items()})
        try:
            store.compact("r", max_segments=1)
        except Conflict:
            pass
"""


def test_another_process_appends_and_compacts_meanwhile(store: Store) -> None:
    """It merges what is being erased, again and again. It adds n-grams of other ids."""
    made = {k: (ngrams + 1, rows) for k, (ngrams, rows) in lab.content(1, (120, 20, 5), vocab=5).items()}
    lab.put(store, "r", made)
    known = lab.entries(made)
    with subprocess.Popen(
        [sys.executable, "-c", RACE, str(store.path)], stdout=subprocess.PIPE, text=True, env=lab.child_env()
    ) as racer:
        assert racer.stdout is not None
        assert racer.stdout.readline() == "ready\n"
        turns, gone = 0, []
        while racer.poll() is None and turns < len(made[3][0]):
            some = made[3][0][turns : turns + 1]
            assert store.erase(["r"], {3: some}).ngrams == {3: 1}
            gone.append(some)
            turns += 1
        racer.wait()
    assert racer.returncode == 0
    assert turns > 3
    for seed in range(100, 125):
        late = lab.content(seed, (9, 3, 1), vocab=6)
        known.update(lab.entries({order: (ngrams + 6, rows) for order, (ngrams, rows) in late.items()}))
    erased_all = {3: np.concatenate(gone)}
    assert store.erase(["r"], erased_all).ngrams == {3: 0}
    expect(store, "r", [left_of(known, erased_all)])
    assert traces(store.path, keys_of(erased_all)) == 0
    lab.check(store)


def test_two_erasures_at_once(store: Store) -> None:
    lab.put(store, "r", BASE)
    store.append("r", OTHERS)
    parts = [{3: BASE[3][0][start : start + 8]} for start in range(0, 64, 8)]
    threads = [threading.Thread(target=store.erase, args=(["r"], part)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    gone = {3: BASE[3][0][:64]}
    expect(store, "r", [left_of({**lab.entries(BASE), **lab.entries(OTHERS)}, gone)])
    store.erase(["r"], gone)
    assert traces(store.path, keys_of(gone)) == 0
    lab.check(store)


def test_a_snapshot_and_a_diff(store: Store, tmp_path: Path) -> None:
    lab.put(store, "r", BASE)
    whole = lab.put(store, "q", BASE, build="another")
    ours = lab.put(store, "r", {3: (BASE[3][0][::-1], BASE[3][1][::-1])})
    store.erase(["r"], GONE)
    assert contains(store, whole.id, GONE) == {False}  # the same segments
    lab.put(store, "q", {3: (BASE[3][0][:30], BASE[3][1][:30])})
    compared = store.diff("q", ours.id).orders[3]
    assert (compared.removed, compared.same) == (25, 5)
    (tmp_path / "snapshot").mkdir()
    assert store.snapshot(tmp_path / "snapshot").missing == ()
    with Store.open(tmp_path / "snapshot") as copy:
        assert copy.version(ours.id) == store.version(ours.id)
        assert contains(copy, ours.id, GONE) == {False}
        lab.check(copy)


def test_the_release_before_refuses_the_store(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    lab.put(store, "r", BASE)
    assert store.info().format == 5
    store.erase(["r"], GONE)
    assert store.info().format == 6
    path = store.path
    store.close()
    monkeypatch.setattr(catalogue, "ERASING_CATALOGUE_FORMAT", 5)
    with pytest.raises(FormatTooNew, match="the store has format 6, this release reads up to 5: upgrade"):
        Store.open(path)


def test_what_is_pushed_after_an_erasure(store: Store, other: Store, tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    lab.put(store, "r", BASE)
    store.push("r", remote)
    store.erase(["r"], GONE)
    assert store.pull("r", remote).version == store.version("r")  # nothing comes back
    assert contains(store, "r", GONE) == {False}
    store.append("r", OTHERS)
    store.push("r", remote)
    assert other.pull("r", remote).version == store.version("r")
    expect(other, "r", [{**lab.entries(without(BASE, GONE)), **lab.entries(OTHERS)}])


def test_what_a_pull_would_bring_back(store: Store, other: Store, tmp_path: Path) -> None:
    remote = str(tmp_path / "remote")
    lab.put(store, "r", BASE)
    store.push("r", remote)
    first = store.version("r")
    store.erase(["r"], GONE)
    store.delete("r")
    store.gc(orphan_age_s=-60)
    with pytest.raises(Conflict, match="this store lacks"):
        store.pull("r", remote)
    assert "r" not in store.refs()
    assert traces(store.path, keys_of(GONE)) == 0
    assert other.pull("r", remote).version.id == first.id


def test_a_file_with_the_name_of_an_erased_segment(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was written before the erasure, for another ref, and would be named after it."""
    one = {3: (BASE[3][0][:1], BASE[3][1][:1])}
    lab.put(store, "r", one)
    lab.put(store, "q", {})
    real, begun = writer.publication.publish, []

    def publish(*given: Any) -> VersionInfo:
        if not begun:
            begun.append(store.erase(["r"], {3: one[3][0]}))
        return real(*given)

    monkeypatch.setattr(writer.publication, "publish", publish)
    with pytest.raises(Conflict, match=r"segment .*\.rows holds n-grams that were erased from this store"):
        store.append("q", one)
    assert traces(store.path, keys_of({3: one[3][0]})) == 0
    store.append("q", one)  # begun after the erasure, it is another segment
    expect(store, "q", [lab.entries(one)])
    lab.check(store)
