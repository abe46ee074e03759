"""Recorded misses: where they are stored, who writes them, and that they are deleted on request."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from hmi.errors import Damaged
from hmi.stores.plot import miss_recorder
from hmi.stores.plot.miss_files import MissFiles
from hmi.stores.plot.miss_recorder import MissRecorder
from plot_store import Hits, MissSketch, Schema, VersionInfo
from tests.waiting import wait_until

NEWS, LAW = "tiny/news", "tiny/law"


def version(ref: str, number: int = 1) -> VersionInfo:
    return VersionInfo(f"v{number:032x}", ref, None, None, "", Schema(dim=4, vocab=50), ())


def look(recorder: MissRecorder, to: VersionInfo, text: list[int], times: int = 1) -> None:
    tokens = np.array(text * times, np.int32)
    offsets = np.arange(0, len(tokens) + 1, len(text), dtype=np.int64)
    hits = Hits(np.full(len(tokens), 2, np.int8), np.zeros(len(tokens), np.int16))
    recorder.record(to, tokens, offsets, hits)


def kept(files: MissFiles, domain: str) -> dict[tuple[int, ...], int]:
    sketch = files.all(domain)
    if sketch is None:
        return {}
    ngrams, counts, _ = sketch.top()
    return {tuple(map(int, g)): int(c) for g, c in zip(ngrams, counts, strict=True)}


@pytest.fixture
def files(tmp_path: Path) -> MissFiles:
    return MissFiles(tmp_path / "misses")


def test_nothing_is_kept_unless_it_is_switched_on(files: MissFiles) -> None:
    recorder = MissRecorder(files)
    files.switch_on(LAW)
    assert recorder.start()
    assert recorder.on
    look(recorder, version(NEWS), [5, 6])
    recorder.stop()
    assert kept(files, NEWS) == {}
    assert sorted(p.name for p in files.folder.rglob("*") if p.is_file()) == [".lock", "epoch"]


def test_a_restart_goes_on(files: MissFiles) -> None:
    files.switch_on(NEWS)
    for times in (1, 2):
        recorder = MissRecorder(files)
        recorder.start()
        look(recorder, version(NEWS), [5, 6], times)
        look(recorder, version(NEWS, 2), [7])
        recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 6): 3, (5, 6, 0): 3, (0, 7, 0): 2}, (
        "the versions' sketches are added up"
    )
    assert len(list(files.folder.glob("tiny.news/*.safetensors"))) == 2


def test_switching_off_deletes_what_was_kept(files: MissFiles) -> None:
    files.switch_on(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    look(recorder, version(NEWS), [5, 6])
    recorder.flush()
    assert kept(files, NEWS)
    other = MissFiles(files.folder)  # another process
    other.switch_off(NEWS)
    look(recorder, version(NEWS), [5, 6])
    recorder.flush()
    assert not recorder.on
    assert [p.name for p in files.folder.iterdir()] == [".lock"]
    other.switch_on(NEWS)
    look(recorder, version(NEWS), [8])
    recorder.refresh()
    look(recorder, version(NEWS), [9])
    recorder.stop()
    assert kept(files, NEWS) == {(0, 9, 0): 1}


def test_off_and_on_between_two_rounds_is_noticed(files: MissFiles) -> None:
    files.switch_on(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    look(recorder, version(NEWS), [5, 6])
    files.switch_off(NEWS)
    files.switch_on(NEWS)
    recorder.stop()
    assert kept(files, NEWS) == {}, "what a late recorder writes is of an older epoch"
    files.prune(lambda _: True)
    assert [p.name for p in (files.folder / "tiny.news").iterdir()] == ["epoch"]


def test_forgetting_starts_anew_and_only_once(files: MissFiles) -> None:
    files.switch_on(NEWS)
    epoch = files.epoch(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    look(recorder, version(NEWS), [5, 6])
    recorder.flush()
    files.forget(NEWS, only_epoch=epoch)
    recorder.refresh()
    look(recorder, version(NEWS), [7])
    recorder.flush()
    files.forget(NEWS, only_epoch=epoch)
    assert kept(files, NEWS) == {(0, 7, 0): 1}
    files.forget(LAW)
    assert files.epoch(LAW) is None, "forgetting switches nothing on"
    recorder.stop()


def test_only_one_process_records_misses(files: MissFiles) -> None:
    files.switch_on(NEWS)
    first, second = MissRecorder(files), MissRecorder(files)
    assert first.start()
    assert not second.start()
    look(second, version(NEWS), [1])
    second.stop()
    look(first, version(NEWS), [2])
    first.stop()
    assert kept(files, NEWS) == {(0, 2, 0): 1}
    assert second.start()
    second.stop()


def test_misses_are_written_every_few_seconds(files: MissFiles) -> None:
    files.switch_on(NEWS)
    recorder = MissRecorder(files, flush_s=0.01)
    recorder.start()
    look(recorder, version(NEWS), [5, 6])
    wait_until(lambda: kept(files, NEWS))
    recorder.stop()
    assert "hmi-misses" not in {thread.name for thread in threading.enumerate()}


def test_memory_holds_a_few_sketches_and_none_is_lost(
    files: MissFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(miss_recorder, "MAX_SKETCHES", 2)
    files.switch_on(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    for _ in range(2):
        for number in range(5):
            look(recorder, version(NEWS, number), [5])
        for _ in range(500):
            if len(recorder._parts) <= 2:
                break
            threading.Event().wait(0.01)
        assert len(recorder._parts) <= 2, "the thread writes before its time"
    recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 0): 10}


def test_a_damaged_sketch_ends_nothing(files: MissFiles) -> None:
    files.switch_on(NEWS)
    epoch = files.epoch(NEWS)
    assert epoch is not None
    files.write(NEWS, version(NEWS).id, epoch, MissSketch(3))
    (path,) = files.folder.glob("tiny.news/*.safetensors")
    path.write_bytes(b"\xff" * 50)
    with pytest.raises(Damaged, match="off and on"):
        files.all(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    look(recorder, version(NEWS), [5])
    recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 0): 1}


def test_what_no_longer_exists_is_pruned(files: MissFiles) -> None:
    recorder = MissRecorder(files)
    for domain in (NEWS, LAW):
        files.switch_on(domain)
    recorder.start()
    for domain, number in ((NEWS, 1), (NEWS, 2), (LAW, 3)):
        look(recorder, version(domain, number), [5])
    recorder.stop()
    alive = {NEWS, version(NEWS, 2).id}
    files.prune(alive.__contains__)
    assert set(files.epochs()) == {NEWS}
    assert kept(files, NEWS) == {(0, 5, 0): 1}
    assert not (files.folder / "tiny.law").exists()


def test_no_miss_is_lost_or_doubled_while_it_is_written(
    files: MissFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(miss_recorder, "MAX_SKETCHES", 2)
    files.switch_on(NEWS)
    recorder = MissRecorder(files, flush_s=0.001)
    recorder.start()
    threads = [
        threading.Thread(target=lambda: [look(recorder, version(NEWS, i % 5), [5]) for i in range(200)])
        for _ in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 0): 800}


def test_a_lookup_does_not_wait_for_the_disk(files: MissFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.switch_on(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    look(recorder, version(NEWS), [5])
    begun, go_on = threading.Event(), threading.Event()
    write = files.write

    def slow(domain: str, of: str, epoch: str, sketch: MissSketch) -> None:
        begun.set()
        assert go_on.wait(10)
        write(domain, of, epoch, sketch)

    monkeypatch.setattr(files, "write", slow)
    flushing = threading.Thread(target=recorder.flush)
    flushing.start()
    assert begun.wait(10)
    for number in (1, 2):
        look(recorder, version(NEWS, number), [5])  # returns while the file is being written
    go_on.set()
    flushing.join()
    recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 0): 3}


def test_what_cannot_be_written_is_written_later(files: MissFiles, monkeypatch: pytest.MonkeyPatch) -> None:
    files.switch_on(NEWS)
    recorder = MissRecorder(files)
    recorder.start()
    look(recorder, version(NEWS), [5])

    def full(domain: str, of: str, epoch: str, sketch: MissSketch) -> None:
        look(recorder, version(NEWS), [5])
        raise OSError("full")

    with monkeypatch.context() as patch:
        patch.setattr(files, "write", full)
        with pytest.raises(OSError, match="full"):
            recorder.flush()
    recorder.stop()
    assert kept(files, NEWS) == {(0, 5, 0): 2}


def test_a_disk_that_refuses_at_the_start_leaves_no_lock(
    files: MissFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused() -> dict[str, str]:
        raise PermissionError("refused")

    recorder = MissRecorder(files)
    with monkeypatch.context() as patch:
        patch.setattr(files, "epochs", refused)
        assert not recorder.start()
    recorder.stop()
    assert recorder.start()
    recorder.stop()


def test_a_sketch_deleted_while_all_are_read_counts_as_none(
    files: MissFiles, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert files.all(NEWS) is None
    files.switch_on(NEWS)
    epoch = files.epoch(NEWS)
    assert epoch is not None
    files.write(NEWS, version(NEWS).id, epoch, MissSketch(3))
    gone = [
        path.with_name(f"v0.{epoch}.safetensors") for path in files.folder.glob("tiny.news/*.safetensors")
    ]
    monkeypatch.setattr(Path, "glob", lambda _self, _pattern: iter(gone))
    assert files.all(NEWS) is None
