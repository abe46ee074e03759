"""Processes killed in the middle leave nothing half-visible, and a resumed build has the same content.

The child is killed (SIGKILL) just before its n-th file operation or commit, for every n until it gets
through.
"""

from __future__ import annotations

import os
import signal
import sys
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import plotlab as lab

from plot_store import NotFound, Store
from plot_store.catalogue.catalogue import Catalogue

OLD = lab.content(1, (60, 10, 4))
NEW = lab.content(2, (700, 60, 8))


def build(path: Path) -> None:
    with Store.open(path) as store:
        with store.writer("r", schema=lab.schema(), build="new", segment_bytes=1 << 14) as writer:
            for order, (ngrams, rows) in NEW.items():
                at = writer.resume_point(order)
                writer.add(order, ngrams[at:], rows[at:])
            writer.publish()


def kill_before(n: int) -> None:
    """Kill this process before its n-th write, sync, rename, unlink or commit."""
    left = [n]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            left[0] -= 1
            if left[0] == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*arguments, **options)

        return call

    for name in ("write", "fsync", "replace", "unlink"):
        setattr(os, name, counted(getattr(os, name)))
    commit = Catalogue.write

    def write(self: Catalogue, body: Callable[..., Any]) -> Any:
        def inner(txn: Any) -> Any:
            done = body(txn)
            counted(lambda: None)()  # between the last put and the commit
            return done

        return commit(self, inner)

    Catalogue.write = write  # type: ignore[method-assign,assignment]


def dies_at(n: int, work: Callable[[Path], None], path: Path) -> bool:
    """Run `work` in a forked child that dies before operation n; return whether it died."""
    pid = os.fork()
    if pid == 0:
        try:
            kill_before(n)
            work(path)
        except BaseException:
            traceback.print_exc(file=sys.__stderr__)
            os._exit(3)
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    assert os.waitstatus_to_exitcode(status) in (0, -signal.SIGKILL)
    return os.WIFSIGNALED(status)


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
        died = dies_at(n, build, path)
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
    while dies_at(31, build, path):  # enough operations for one publication, too few for the whole build
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
        died = dies_at(n, collect, path)
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
        died = dies_at(n, work, path)
        with Store.open(path) as store:
            assert set(store.refs()) in (set(), {"r", "r/a"})
            assert store.import_archive(tmp_path / "x.plot") == tip
            store.gc(orphan_age_s=-60, build_age_s=-60)
            lab.check(store)
            names = [s.name for v in store.chain("r/a") for s in v.segments]
            assert {p.name for p in (path / "segments").iterdir()} == lab.files(store, names)
    assert n > 20
