"""How a build reaches the disk: in the background, in order, with few syncs, within its limits."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import plotlab as lab
import pytest

from plot_store import Conflict, Forked, Invalid, Limits, Schema, Store, StoreFull, StoreIO, Writer
from plot_store.catalogue.catalogue import Catalogue
from plot_store.ground import files
from plot_store.writing import segment_writer
from plot_store.writing.segment_writer import SegmentWriter

MADE = lab.content(2, (1500, 60, 8))
OPTIONS: dict[str, Any] = {"schema": lab.schema(), "build": "b", "segment_bytes": 1 << 15}


class Counts:
    """Counts the calls that make data durable."""

    def __init__(self, patch: pytest.MonkeyPatch) -> None:
        self.files = self.folders = self.commits = 0
        for owner, name, counter in (
            (files, "sync_file", "files"),
            (files, "sync_folder", "folders"),
            (Catalogue, "write", "commits"),
        ):
            patch.setattr(owner, name, self._counted(getattr(owner, name), counter))

    def _counted(self, real: Any, counter: str) -> Any:
        def call(*arguments: Any) -> Any:
            setattr(self, counter, getattr(self, counter) + 1)
            return real(*arguments)

        return call

    def taken(self) -> tuple[int, int, int]:
        found = self.files, self.folders, self.commits
        self.files = self.folders = self.commits = 0
        return found


def add(writer: Writer, made: lab.Content = MADE) -> None:
    for order, (ngrams, rows) in made.items():
        writer.add(order, ngrams, rows)


def in_pieces(writer: Writer, ngrams: np.ndarray, rows: np.ndarray) -> None:
    for start in range(0, len(ngrams), 100):
        writer.add(3, ngrams[start : start + 100], rows[start : start + 100])
    writer.publish()


def test_a_sealed_build_is_published_by_one_synced_transaction(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    with store.writer("r", **OPTIONS) as writer:
        add(writer)
        writer._segments.drain()
        counts.taken()
        writer.seal()
        # One file of the remaining rows of three orders and their indexes, the folder, the record.
        assert counts.taken() == (1, 1, 1)
        writer.seal()
        assert counts.taken() == (0, 0, 0)
        writer.publish()
    assert counts.taken() == (0, 0, 1)
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(MADE)], lab.texts(1, (300,)))
    lab.check(store)


def test_publishing_without_sealing_takes_one_transaction_too(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    counts = Counts(monkeypatch)
    with store.writer("r", **OPTIONS) as writer:
        add(writer)
        writer._segments.drain()
        counts.taken()
        writer.publish()
    assert counts.taken() == (1, 1, 1)
    lab.check(store)


PUBLISH = """
import os, sys, plotlab as lab
from plot_store import Store
with Store.open(sys.argv[1], create=True) as store:
    with store.writer("r", schema=lab.schema(), build="b") as writer:
        for order, (ngrams, rows) in lab.content(1).items():
            writer.add(order, ngrams, rows)
        writer.seal()
        os.write(1, b"BEFORE")
        writer.publish()
        os.write(1, b"AFTER")
"""


@pytest.mark.skipif(shutil.which("strace") is None, reason="needs strace")
def test_what_the_system_sees_of_a_publication(tmp_path: Path) -> None:
    """LMDB's commit is one fdatasync of data and one synchronous write of a meta page; nothing else syncs."""
    log = tmp_path / "log"
    calls = "trace=write,fsync,fdatasync,msync,pwrite64,rename,openat"
    traced = ["strace", "-f", "-y", "-o", str(log), "-e", calls]
    done = subprocess.run(
        [*traced, sys.executable, "-c", PUBLISH, str(tmp_path / "s")],
        env=lab.child_env(),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    if "ptrace" in done.stderr.lower() and done.returncode:
        pytest.skip(f"strace may not trace here: {done.stderr.strip()}")
    assert done.returncode == 0, done.stderr
    publication = log.read_text().partition("BEFORE")[2].partition("AFTER")[0]
    syncs = re.findall(r"(fsync|fdatasync|msync)\(\d+<([^>]*)>", publication)
    assert [(call, Path(file).name) for call, file in syncs] == [("fdatasync", "data.mdb")]
    assert "rename" not in publication
    opened = re.findall(r"openat\(.*data\.mdb.*O_DSYNC", log.read_text())
    assert opened  # LMDB writes its meta page through this descriptor


def test_more_may_be_added_to_a_sealed_build(store: Store) -> None:
    ngrams, rows = MADE[3]
    with store.writer("r", **OPTIONS) as writer:
        writer.add(3, ngrams[:700], rows[:700])
        writer.seal()
        assert writer.resume_point(3) == 700
        writer.add(3, ngrams[700:], rows[700:])
        version = writer.publish()
    assert version.entries[3] == len(ngrams)
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries({3: MADE[3]})], lab.texts(1, (300,)))
    lab.check(store)  # the first index has been removed


def test_a_sealed_build_is_resumed_sealed(store: Store) -> None:
    with store.writer("r", **OPTIONS) as writer:
        add(writer)
        writer.seal()
    before = {p.name for p in (store.path / "segments").iterdir()}
    assert store.gc(orphan_age_s=-60).orphans == ()  # the build counts its indexes, too
    with store.writer("r", **OPTIONS) as writer:
        for order, (ngrams, rows) in MADE.items():
            at = writer.resume_point(order)
            assert at == len(ngrams)
            writer.add(order, ngrams[at:], rows[at:])
        version = writer.publish()
    assert lab.files(store, [s.name for s in version.segments]) == before
    lab.check(store)


def test_a_sealed_build_that_lost_an_index_is_sealed_again(store: Store) -> None:
    with store.writer("r", **OPTIONS) as writer:
        add(writer)
        writer.seal()
    for file in (store.path / "segments").glob("*.pack"):
        file.unlink()
    with store.writer("r", **OPTIONS) as writer:
        for order, (ngrams, rows) in MADE.items():
            at = writer.resume_point(order)  # the last rows lay in the same file
            writer.add(order, ngrams[at:], rows[at:])
        writer.publish()
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(MADE)], lab.texts(1, (300,)))
    lab.check(store)


def test_aborting_a_sealed_build_leaves_nothing(store: Store) -> None:
    with store.writer("r", **OPTIONS) as writer:
        add(writer)
        writer.seal()
        writer.abort()
    assert not list((store.path / "segments").iterdir())
    lab.check(store)


def test_adding_goes_on_while_segments_are_written(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two segments may wait to be written; the third waits for the first."""
    gate, begun = threading.Event(), []
    real = SegmentWriter.write

    def slow(*arguments: Any) -> Any:
        begun.append(threading.current_thread().name)
        assert gate.wait(60)
        return real(*arguments)

    monkeypatch.setattr(SegmentWriter, "write", slow)
    ngrams, rows = MADE[3]
    with store.writer("r", **OPTIONS) as writer:
        writer.add(3, ngrams[:700], rows[:700])  # with 256 rows a segment, two are full
        assert len(begun) <= 1
        assert writer.resume_point(3) == 0
        threading.Timer(0.1, gate.set).start()
        writer.add(3, ngrams[700:], rows[700:])
        assert writer.resume_point(3) >= 256
        writer.publish()
    assert begun == ["plot-b_0"] * 3 + ["MainThread"]  # the rest is written by `publish` itself
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries({3: MADE[3]})], lab.texts(1, (300,)))


def test_after_a_failure_in_the_background_nothing_later_is_kept(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The registered rows are always the first that were added, so a resumed build is exact."""
    real, calls = files.sync_file, [0]

    def failing(fd: int) -> None:
        calls[0] += 1
        if calls[0] == 3:
            raise OSError(5, "Input/output error")
        real(fd)

    ngrams, rows = MADE[3]
    with store.writer("r", **OPTIONS) as writer:
        with monkeypatch.context() as patch:
            patch.setattr(files, "sync_file", failing)
            with pytest.raises(StoreIO, match="Input/output"):
                in_pieces(writer, ngrams, rows)
        for call in (writer.publish, writer.seal, lambda: writer.add(3, ngrams, rows)):
            with pytest.raises(StoreIO, match="Input/output"):
                call()
    assert calls[0] == 3
    with store.writer("r", **OPTIONS) as writer:
        at = writer.resume_point(3)
        assert at == 2 * 256
        writer.add(3, ngrams[at:], rows[at:])
        writer.publish()
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries({3: MADE[3]})], lab.texts(1, (300,)))
    lab.check(store)


def test_nothing_of_a_refused_call_is_added(store: Store) -> None:
    """This holds even if its first rows would have filled segments."""
    ngrams, rows = MADE[3]
    far = -(2.0**124)
    refused = [
        ("int8", np.nan),
        ("fp16", 1e6),
        ("fp32", -np.inf),
        ("int8", 3.4e38),
        ("fp32", far),
        ("fp16", -65520),
    ]
    for number, (dtype, worst) in enumerate(refused):
        bad = rows.copy()
        bad[-1, -1, -1] = worst
        options = {**OPTIONS, "schema": lab.schema(dtype), "build": f"b{number}"}
        with store.writer("r", **options) as writer:
            writer.add(3, ngrams[:10], rows[:10])
            with pytest.raises(Invalid, match="infinite"):
                writer.add(3, ngrams, bad)
            writer.add(3, ngrams[10:30], rows[10:30])
            version = writer.publish()
        assert version.entries[3] == 30
    lab.check(store)


def test_a_conflict_keeps_what_was_added(store: Store) -> None:
    with store.writer("r", **OPTIONS) as writer:
        add(writer)
        ours = lab.put(store, "r", lab.content(1))
        for _ in range(2):
            with pytest.raises(Conflict, match=ours.id):
                writer.publish()
        writer.publish(expect=ours.id)
    with store.reader("r") as reader:
        lab.same_as(reader, [lab.entries(MADE)], lab.texts(1, (300,)))
    lab.check(store)


def test_keys_past_their_budget_are_read_back(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = lab.put(store, "r", MADE)
    monkeypatch.setattr(segment_writer, "KEYS_BYTES", 5000)
    again = lab.put(store, "s", MADE)
    assert [s.name for s in again.segments] == [s.name for s in whole.segments]


def test_buffers_are_used_again_and_leave_no_trace(store: Store) -> None:
    """A short last segment in a reused buffer has the same bytes as in a new one."""
    made = lab.content(3, (1000, 0, 0))
    ngrams, rows = made[3]
    with store.writer("r", **OPTIONS) as writer:
        for start in range(0, len(ngrams), 7):
            writer.add(3, ngrams[start : start + 7], rows[start : start + 7])
        piecewise = writer.publish()
    whole = lab.put(store, "s", made)
    assert [s.name for s in piecewise.segments] == [s.name for s in whole.segments]


def test_a_writer_is_not_for_a_forked_child(store: Store) -> None:
    writer = store.writer("r", **OPTIONS)
    add(writer)
    pid = os.fork()
    if pid == 0:
        code = 1
        try:
            writer.add(3, *MADE[3])
        except Forked:
            code = 0
        os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    writer.publish()
    lab.check(store)


def test_limits_stop_writing_before_the_disk_does(tmp_path: Path) -> None:
    with Store.open(tmp_path / "s", create=True) as store:
        lab.put(store, "r", lab.content(1, (60, 10, 4)))
        most = files.folder_bytes(store.path) + 80_000
    with Store.open(tmp_path / "s", limits=Limits(max_bytes=most)) as store:
        with pytest.raises(StoreFull, match="max_bytes"):
            lab.put(store, "r", MADE, build="big")
        assert files.folder_bytes(store.path) <= most
        with store.reader("r") as reader:
            lab.same_as(reader, [lab.entries(lab.content(1, (60, 10, 4)))], lab.texts(1))
        lab.put(store, "other", {})
        store.delete("other")  # always allowed
        store.abandon("big")
        assert store.gc(orphan_age_s=-60).dry_run is False
        free = shutil.disk_usage(tmp_path).free
    with Store.open(tmp_path / "s", limits=Limits(min_free_bytes=free * 2)) as store:
        for work in (lambda: lab.put(store, "r", lab.content(2)), lambda: store.append("r", lab.content(2))):
            with pytest.raises(StoreFull, match="min_free_bytes"):
                work()
        store.export("r", tmp_path / "x.plot")
        with pytest.raises(StoreFull, match="min_free_bytes"):
            store.import_archive(tmp_path / "x.plot", ref="other")
        with Store.open(tmp_path / "s") as same:  # no limits given: the limits of the process hold
            with pytest.raises(StoreFull):
                same.append("r", lab.content(2))
    with Store.open(tmp_path / "s") as store:  # the limits end with the last use of the store
        store.append("r", lab.content(2))
        store.gc(orphan_age_s=-60)
        lab.check(store)
    for wrong in ({"max_bytes": 0}, {"min_free_bytes": -1}):
        with pytest.raises(Invalid):
            Limits(**wrong)


def test_small_adds_of_all_orders_interleaved(store: Store) -> None:
    """Many small adds of every order, interleaved, as in a build of n-grams."""
    rng = np.random.default_rng(1)
    known: lab.Entries = {}
    schema = Schema(dim=16, vocab=200, dtype="fp16")
    with store.writer("r", schema=schema, build="b", segment_bytes=1 << 14) as writer:
        for turn in range(60):
            made = lab.content(turn, (40, 20, 4), dim=16, vocab=200)
            for order in rng.permutation([3, 2, 1]):
                writer.add(int(order), *made[int(order)])
            known.update(lab.entries(made, "fp16"))
        writer.publish()
    with store.reader("r") as reader:
        lab.same_as(reader, [known], lab.texts(1, (500,), vocab=200))
    lab.check(store)
