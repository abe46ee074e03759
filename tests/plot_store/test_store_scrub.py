"""Probe and scrub find damage in a child process; what kills the child does not kill its parent."""

from __future__ import annotations

import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import plotlab as lab
import pytest

from plot_store import Damaged, NotFound, Store, StoreIO
from plot_store.care.scrub import ScrubProgress, probe, scrub
from plot_store.catalogue.probe import check_record
from plot_store.database.lmdb_file import check_length
from plot_store.database.lmdb_pages import INTEGER_KEYS, BadFile, Walk, newest


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """A closed store with three refs, several versions and a free list."""
    path = tmp_path / "plots"
    with Store.open(path, create=True) as store:
        for seed in range(4):
            lab.put(store, "r", lab.content(seed))
            lab.put(store, "r/a", lab.content(seed + 10), parent="r", meta={"note": "x" * 6000})
        store.gc(keep_versions=1)
    return path


def data(path: Path) -> Path:
    return path / "catalogue" / "data.mdb"


def records(raw: bytes) -> list[tuple[bytes, bytes]]:
    """The records of a file as the probe's walk reads them, or BadFile."""
    meta = newest(raw)
    if meta is None:
        raise BadFile("of another LMDB version")
    return [(check_record(key, value), value) for key, value in Walk(raw, meta).records()]


def test_a_sound_store(made: Path, tmp_path: Path) -> None:
    probe(made)
    probe(tmp_path / "nothing")
    (tmp_path / "half" / "catalogue").mkdir(parents=True)
    probe(tmp_path / "half")
    assert scrub(made).ok
    with pytest.raises(NotFound):
        scrub(tmp_path / "nothing")
    with pytest.raises(NotFound):
        scrub(made, ref="r/none")


def test_the_walk_agrees_with_lmdb(made: Path) -> None:
    import lmdb

    for _ in range(3):
        with lmdb.open(str(data(made).parent)) as env, env.begin() as txn, txn.cursor() as cursor:
            expected = list(cursor)
        assert records(data(made).read_bytes()) == expected
        with Store.open(made) as store:
            lab.put(store, "r/b", lab.content(9), meta={"note": "y" * random.Random(1).randrange(9000)})


def test_no_flipped_bit_gives_other_records(made: Path) -> None:
    """A flipped bit is refused, or lies where nothing reads it: no record is missing, added or changed.

    But for the number of the last commit: with a flip there the file may look as before that commit.
    """
    raw = data(made).read_bytes()
    expected, rng = records(raw), random.Random(5)
    refused = 0
    for round_ in range(1500):
        damaged = bytearray(raw)
        at = rng.randrange(160) + 4096 * rng.randrange(2) if round_ % 2 else rng.randrange(len(raw))
        damaged[at] ^= 1 << rng.randrange(8)
        number_of_commit = at < 8192 and 144 <= at % 4096 < 152
        try:
            assert number_of_commit or records(bytes(damaged)) == expected
        except BadFile:
            refused += 1
    assert refused > 100


def test_damage_is_refused(made: Path) -> None:
    raw = data(made).read_bytes()
    value = dict(records(raw))[b"ref/r"]
    flipped = raw.replace(value, value[:-1] + b"!")
    for damaged in (b"", raw[: len(raw) // 2], raw[:5000], bytes(len(raw)), flipped, os.urandom(len(raw))):
        data(made).write_bytes(damaged)
        with pytest.raises(Damaged, match="restore"):
            probe(made)
    data(made).unlink()
    with pytest.raises(Damaged, match="missing or empty beside segments"):
        probe(made)
    data(made).write_bytes(raw)
    probe(made)


def test_a_free_list_with_a_page_in_use_is_refused(made: Path) -> None:
    """LMDB would open the file and read all records; a later write would destroy one of them."""
    raw = bytearray(data(made).read_bytes())
    meta = newest(bytes(raw))
    assert meta is not None
    lists = list(Walk(bytes(raw), meta)._walk(meta.free, INTEGER_KEYS))
    assert lists
    value = lists[-1][1]
    at = bytes(raw).index(value)
    lowest = at + len(value) - 8
    raw[lowest : lowest + 8] = meta.main.root.to_bytes(8, "little")
    with pytest.raises(BadFile):
        records(bytes(raw))


def test_pages_that_were_given_back_may_lie_behind_the_end(tmp_path: Path) -> None:
    """LMDB never writes a page that one transaction took and gave back: such a file is short, and sound."""
    import lmdb

    with lmdb.open(str(tmp_path), map_size=1 << 26) as env:
        for put in (True, False):
            for key in (b"0", b"1"):
                with env.begin(write=True) as txn:
                    txn.put(key, bytes(4000)) if put else txn.delete(key)
        with env.begin(write=True) as txn:
            txn.put(b"x", bytes(20_000))
            txn.put(b"y", bytes(3000))
            txn.delete(b"x")
    file = tmp_path / "data.mdb"
    raw = file.read_bytes()
    meta = newest(raw)
    assert meta is not None
    assert (meta.last + 1) * meta.page_size > len(raw)
    check_length(file)
    assert [key for key, _ in Walk(raw, meta).records()] == [b"y"]
    used = (max(meta.main.root, meta.free.root) + 1) * meta.page_size
    file.write_bytes(raw[:used])
    check_length(file)
    file.write_bytes(raw[: used - meta.page_size])
    with pytest.raises(BadFile):
        check_length(file)


def test_beside_a_live_writer(made: Path) -> None:
    """There is no torn copy and no broken lock: the writer goes on publishing, and every
    probe finds the store sound."""
    stop = threading.Event()
    with Store.open(made) as store:

        def publish() -> None:
            seed = 0
            while not stop.is_set():
                seed += 1
                lab.put(store, "r/w", lab.content(seed, (20, 5, 3)))

        writer = threading.Thread(target=publish)
        writer.start()
        try:
            for _ in range(8):
                probe(made)
        finally:
            stop.set()
            writer.join()
        lab.check(store)
    assert scrub(made).ok


def test_scrub_finds_what_verify_finds(made: Path) -> None:
    with Store.open(made) as store:
        rows = [s for version in store.refs().values() for s in version.segments if s.kind == "rows"]
        damaged = max(rows, key=lambda info: info.bytes)
        lab.piece(store, damaged.name).flip(5000, 2)
    found = scrub(made)
    with Store.open(made) as store:
        assert found == store.verify() == store.scrub()
        assert damaged.name in {d.segment for d in found.damages}
        assert scrub(made, ref="r") == store.verify("r")


def test_progress_and_rate(made: Path) -> None:
    seen: list[ScrubProgress] = []
    size = scrub(made, progress=seen.append).bytes
    assert seen
    assert 0.9 * size < seen[-1].done <= seen[-1].total
    assert [s.done for s in seen] == sorted(s.done for s in seen)
    began = time.monotonic()
    assert scrub(made, bytes_per_second=size / 2).ok
    assert time.monotonic() - began > 1.5  # a lower bound: a busy machine takes longer


def test_a_child_that_dies_is_a_damage(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A real SIGBUS: the child maps a file that is cut while it is read."""
    code = (
        "import json, mmap, os, sys, tempfile\n"
        "print(json.dumps({'segment': 'abc.rows', 'done': 5, 'total': 9}), flush=True)\n"
        "f = tempfile.TemporaryFile(); f.truncate(8192)\n"
        "m = mmap.mmap(f.fileno(), 8192); f.truncate(0); m[5000]"
    )
    real = subprocess.Popen

    def instead(command: list[str], **options: object) -> subprocess.Popen[str]:
        return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload,no-any-return]

    probe(made)
    monkeypatch.setattr("plot_store.care.scrub.probe", lambda path: None)
    monkeypatch.setattr("plot_store.care.scrub.subprocess.Popen", instead)
    report = scrub(made)
    assert [d.segment for d in report.damages] == ["abc.rows"]
    assert "SIGBUS" in report.damages[0].what


def test_a_child_that_hangs_is_killed(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real = subprocess.Popen

    def instead(command: list[str], **options: object) -> subprocess.Popen[str]:
        return real([sys.executable, "-c", "import time; time.sleep(900)"], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr("plot_store.care.scrub.probe", lambda path: None)
    monkeypatch.setattr("plot_store.care.scrub.subprocess.Popen", instead)
    began = time.monotonic()
    with pytest.raises(StoreIO, match="stopped answering"):
        scrub(made, silence_s=0.5)
    assert time.monotonic() - began < 300


def test_a_child_that_is_killed_from_outside_tells_nothing_of_the_store(
    made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As the operating system kills when memory runs out."""
    real = subprocess.Popen

    def instead(command: list[str], **options: object) -> subprocess.Popen[str]:
        code = "import os; os.kill(os.getpid(), 9)"
        return real([sys.executable, "-c", code], **options)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr("plot_store.care.scrub.subprocess.Popen", instead)
    for call in (scrub, probe):
        with pytest.raises(StoreIO, match="was ended by SIGKILL"):
            call(made)
