"""Reading ahead: while a reader is cold, and only then, it requests the rows of a
batch from the disk together."""

from __future__ import annotations

import ctypes
import gc
import os
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import plotlab as lab
import pytest

from plot_store import Closed, Invalid, Reader, Store
from plot_store.reading import read_ahead
from plot_store.reading.read_ahead import page_ranges
from plot_store.segments import mapping

PAGE = os.sysconf("SC_PAGE_SIZE")
DIM = 384


@pytest.fixture
def disk() -> Iterator[Path]:
    """A folder on a disk; the other tests use memory."""
    with tempfile.TemporaryDirectory() as folder:
        yield Path(folder)


def evict(store: Store) -> None:
    """Drop the segments from the system's cache; skip the test where the file system keeps them."""
    gc.collect()  # mapped files stay cached
    for file in (store.path / "segments").iterdir():
        fd = os.open(file, os.O_RDONLY)
        try:
            os.fsync(fd)
            os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(fd)


def resident(address: int, size: int) -> np.ndarray:
    """For each page of mapped memory, whether it is in the system's cache."""
    start = address // PAGE * PAGE
    pages = -(-(address + size - start) // PAGE)
    found = np.zeros(pages, np.uint8)
    call = ctypes.CDLL(None, use_errno=True).mincore
    call.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    assert call(start, pages * PAGE, found.ctypes.data) == 0
    return (found & 1).astype(bool)


def rows_of(reader: Reader) -> np.ndarray:
    """The single segment of a reader's trigrams."""
    assert reader._mapped is not None
    (view,) = [view for run in reader._mapped.table.runs for view in run.segments if run.order == 3]
    return view.rows


@pytest.fixture
def evicted(disk: Path) -> Iterator[Store]:
    """A store of 3,000 trigrams (3.5 MB) whose rows are only on the disk."""
    with Store.open(disk / "s", create=True) as store:
        every = np.stack(
            np.unravel_index(np.random.default_rng(0).permutation(20**3)[:3000], (20, 20, 20)), 1
        )
        rows = np.random.default_rng(1).standard_normal((3000, 3, DIM)).astype(np.float32)
        lab.put(store, "r", {3: (every.astype(np.uint32), rows)}, vocab=20, segment_bytes=1 << 24)
        evict(store)
        with store.reader("r") as reader:
            held = rows_of(reader)
            if resident(held.ctypes.data, held.nbytes).mean() > 0.2:
                pytest.skip("this file system keeps files in memory: nothing is ever cold here")
        del reader, held
        evict(store)
        yield store


def three(store: Store, count: int) -> list[list[int]]:
    """Texts that each use the row of one stored trigram, far apart in the file."""
    with store.reader("r") as reader:
        return reader.ngrams(3)[:: 3000 // count][:count].tolist()


def test_prefetch_brings_the_rows_of_a_batch_and_no_more(evicted: Store) -> None:
    batch = three(evicted, 40)
    evict(evicted)
    with evicted.reader("r") as reader:
        rows = rows_of(reader)
        before = resident(rows.ctypes.data, rows.nbytes).mean()
        asked = reader.prefetch(*lab.ragged(batch))
        assert 40 <= asked <= 120
        deadline = time.monotonic() + 120
        wanted = np.flatnonzero(reader_rows(reader, batch))
        while True:
            there = [resident(rows[i].ctypes.data, rows.shape[1]).all() for i in wanted]
            if all(there):
                break
            assert time.monotonic() < deadline, f"{sum(there)} of {len(there)} rows came"
            time.sleep(0.01)
        assert resident(rows.ctypes.data, rows.nbytes).mean() < before + 0.6


def reader_rows(reader: Reader, batch: list[list[int]]) -> np.ndarray:
    """Which rows hold a trigram of the batch: bool [rows], by the order of adding, without reading a row."""
    every = np.stack(np.unravel_index(np.random.default_rng(0).permutation(20**3)[:3000], (20, 20, 20)), 1)
    return (every[:, None] == np.array(batch)[None]).all(2).any(1)


@pytest.mark.parametrize("together", [True, False], ids=["process_madvise", "madvise"])
def test_a_reader_is_cold_until_it_reads_nothing(
    evicted: Store, monkeypatch: pytest.MonkeyPatch, together: bool
) -> None:
    if not together:
        monkeypatch.setattr(mapping, "_process_madvise", lambda ranges: 0)
    batch = three(evicted, 400)
    evict(evicted)
    with evicted.reader("r") as reader:
        path = reader._mapped.read_ahead  # type: ignore[union-attr]
        assert path.cold
        first = lab.look(reader, batch)
        assert path.cold  # this call read from the disk
        for _ in range(read_ahead._QUIET_LOOKUPS):
            assert path.cold
            assert np.array_equal(lab.look(reader, batch)[0], first[0])
        assert not path.cold
        evict_mapped(reader, evicted)
        lab.look(reader, batch)  # 400 waits for the disk: slow, as the log must say
        assert path.cold
        assert np.array_equal(lab.look(reader, batch)[0], first[0])


def evict_mapped(reader: Reader, store: Store) -> None:
    """Drop a live reader's files from memory: first from its page table, or the cache keeps them."""
    for segment in reader._mapped.segments:  # type: ignore[union-attr]
        mapping._LIBC.madvise(segment.raw.ctypes.data, segment.raw.size, 4)  # MADV_DONTNEED
    evict(store)


def test_a_slow_lookup_that_reads_nothing_does_not_make_a_reader_cold(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    lab.put(store, "r", lab.content(1))
    with store.reader("r") as reader:
        path = reader._mapped.read_ahead  # type: ignore[union-attr]
        turns = 0
        while path.cold:
            lab.look(reader, lab.texts(1, (600,)))
            turns += 1
            assert turns < 100
        assert turns >= read_ahead._QUIET_LOOKUPS
        reads = read_ahead.disk_reads()
        monkeypatch.setattr(read_ahead, "_SLOW_S", -1.0)
        monkeypatch.setattr(read_ahead, "disk_reads", lambda: reads)
        lab.look(reader, lab.texts(1))  # despite what this thread has read in between
        path.cold = False
        lab.look(reader, lab.texts(1))
        assert not path.cold
        monkeypatch.setattr(read_ahead, "disk_reads", lambda: reads + 1)
        lab.look(reader, lab.texts(1))
        assert path.cold


def test_prefetch_counts_refuses_and_changes_nothing(store: Store) -> None:
    made = lab.content(1)
    lab.put(store, "r", made)
    lab.put(store, "e", {})
    text = made[3][0][0].tolist()
    with store.reader("e") as reader:
        assert reader.prefetch(*lab.ragged([text])) == 0
        assert not reader._mapped.read_ahead.cold  # type: ignore[union-attr]
    with store.reader("r") as reader:
        assert reader.prefetch(*lab.ragged([[]])) == 0
        assert reader.prefetch(*lab.ragged([text])) > 0
        lab.same_as(reader, [lab.entries(made)], [text])
        with pytest.raises(Invalid, match="offsets must rise"):
            reader.prefetch(np.array(text, np.int32), np.array([0, 2], np.int64))
        with pytest.raises(Invalid, match="tokens must be"):
            reader.prefetch(np.array(text), np.array([0, 3], np.int64))  # type: ignore[arg-type]
    with pytest.raises(Closed):
        reader.prefetch(*lab.ragged([text]))


def test_page_ranges_are_the_pages_and_as_few_as_they_make() -> None:
    rng = np.random.default_rng(0)
    for turn in range(200):
        starts = rng.integers(0, 60 * PAGE, int(rng.integers(1, 40)))
        ends = starts + rng.integers(1, 3 * PAGE, len(starts))
        pages = {
            page for a, b in zip(starts, ends, strict=True) for page in range(a // PAGE, (b - 1) // PAGE + 1)
        }
        got = page_ranges(starts, ends)
        covered = [page for at, size in got.tolist() for page in range(at // PAGE, (at + size) // PAGE)]
        assert covered == sorted(pages), turn
        assert len(got) == sum(page - 1 not in pages for page in pages)


def test_parts_are_all_texts_in_order_and_alone_equals_batched(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(read_ahead, "_PART_TOKENS", 50)
    made = lab.content(1)
    lab.put(store, "r", made)
    for seed, lengths in enumerate(([300], [0, 0, 60, 0, 49, 1, 1, 120, 0], [7] * 40, [], [51, 0])):
        batch = lab.texts(seed, lengths)
        parts = read_ahead.text_parts(*lab.ragged(batch)[1:], sum(lengths))
        assert [i for a, b in parts for i in range(a, b)] == (list(range(len(batch))) if parts else [])
        assert all(sum(lengths[a:b]) < 50 + max(lengths) for a, b in parts)
        assert bool(parts) == (seed in (1, 2, 4))
        with store.reader("r") as reader:
            reader._mapped.read_ahead.cold = True  # type: ignore[union-attr]
            lab.same_as(reader, [lab.entries(made)], batch)
    assert read_ahead.text_parts(np.array([0, 60, 20], np.int64), 60) == []


def test_a_cold_batch_refuses_what_a_warm_one_refuses(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(read_ahead, "_PART_TOKENS", 4)
    lab.put(store, "r", lab.content(1))
    tokens = np.ones(12, np.int32)
    wrong = ([0, 12, 5], [1, 6, 12], [0, 6, 11], [0, 7, 6, 12], [0, 13], [0], [])
    with store.reader("r") as reader:
        for cold_now in (True, False):
            for offsets in wrong:
                reader._mapped.read_ahead.cold = cold_now  # type: ignore[union-attr]
                with pytest.raises(Invalid, match="offsets must rise"):
                    reader.lookup(tokens, np.array(offsets, np.int64))
            reader._mapped.read_ahead.cold = cold_now  # type: ignore[union-attr]
            with pytest.raises(Invalid, match="token id"):
                reader.lookup(
                    np.where(np.arange(12) == 9, lab.VOCAB, tokens).astype(np.int32), np.arange(0, 13, 6)
                )
