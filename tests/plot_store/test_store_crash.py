"""Processes killed in the middle leave nothing half-visible, and a resumed build has the same content.

The child is killed (SIGKILL) just before its n-th file operation or commit, for every n until it gets
through.
"""

from __future__ import annotations

from pathlib import Path

import plotlab as lab

from plot_store import NotFound, Store

OLD = lab.content(1, (60, 10, 4))
NEW = lab.content(2, (700, 60, 8))


def build(path: Path) -> None:
    with Store.open(path) as store:
        with store.writer("r", schema=lab.schema(), build="new", segment_bytes=1 << 14) as writer:
            for order, (ngrams, rows) in NEW.items():
                at = writer.resume_point(order)
                writer.add(order, ngrams[at:], rows[at:])
            writer.publish()


def fresh(path: Path) -> Path:
    with Store.open(path, create=True) as store:
        lab.put(store, "r", OLD)
    return path


def test_killed_at_every_point_of_a_build(tmp_path: Path) -> None:
    build(fresh(tmp_path / "whole"))
    with Store.open(tmp_path / "whole") as store:
        whole = {s.name for s in store.version("r").segments}
    n, died = 0, True
    while died:
        n += 1
        path = fresh(tmp_path / str(n))
        died = lab.dies_at(n, build, path)
        with Store.open(path) as store:
            version = store.version("r")
            with store.reader("r") as reader:
                lab.same_as(reader, [lab.entries(OLD if len(store.history("r")) == 1 else NEW)], lab.texts(1))
            if version.build != "new":
                build(path)  # the same build, resumed
                version = store.version("r")
            assert {s.name for s in version.segments} == whole
            store.gc(orphan_age_s=-60)
            lab.check(store)
    assert n > 50  # it died at many different points


def test_a_build_that_is_killed_repeatedly_still_ends(tmp_path: Path) -> None:
    build(fresh(tmp_path / "whole"))
    with Store.open(tmp_path / "whole") as store:
        whole = {s.name for s in store.version("r").segments}
    path = fresh(tmp_path / "s")
    deaths = 0
    while lab.dies_at(31, build, path):  # enough operations for one publication, too few for the whole build
        deaths += 1
        assert deaths < 50
    with Store.open(path) as store:
        assert {s.name for s in store.version("r").segments} == whole
        store.gc(orphan_age_s=-60)
        lab.check(store)
    assert deaths > 1


def collect(path: Path) -> None:
    with Store.open(path) as store:
        store.delete("gone")
        store.gc(keep_versions=1, orphan_age_s=-60)


def test_killed_at_every_point_of_a_collection(tmp_path: Path) -> None:
    n, died = 0, True
    while died:
        n += 1
        path = fresh(tmp_path / str(n))
        with Store.open(path) as store:
            lab.put(store, "gone", lab.content(3, (80, 5, 5)))
            lab.put(store, "r", NEW)
        died = lab.dies_at(n, collect, path)
        with Store.open(path) as store:
            for ref in store.refs():
                store.reader(ref).close()  # all its files are there
            assert store.verify().ok
            try:
                collect(path)
            except NotFound:  # the child had deleted the ref
                store.gc(keep_versions=1, orphan_age_s=-60)
            assert list(store.refs()) == ["r"]
            names = [s.name for s in store.version("r").segments]
            assert {p.name for p in (path / "segments").iterdir()} == lab.files(store, names)
    assert n > 5


def test_killed_at_every_point_of_an_import(tmp_path: Path) -> None:
    with Store.open(tmp_path / "from", create=True) as store:
        lab.put(store, "r", OLD)
        tip = lab.put(store, "r/a", NEW)
        store.export("r/a", tmp_path / "x.plot")

    def work(path: Path) -> None:
        with Store.open(path) as target:
            target.import_archive(tmp_path / "x.plot")

    n, died = 0, True
    while died:
        n += 1
        path = tmp_path / str(n)
        Store.open(path, create=True).close()
        died = lab.dies_at(n, work, path)
        with Store.open(path) as store:
            assert set(store.refs()) in (set(), {"r", "r/a"})
            assert store.import_archive(tmp_path / "x.plot") == tip
            store.gc(orphan_age_s=-60, build_age_s=-60)
            lab.check(store)
            names = [s.name for v in store.chain("r/a") for s in v.segments]
            assert {p.name for p in (path / "segments").iterdir()} == lab.files(store, names)
    assert n > 20
