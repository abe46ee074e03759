"""Counting on disk against a plain Counter, and the selection of n-grams against a plain sort."""

from __future__ import annotations

import random
import threading
import tracemalloc
from collections import Counter
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hmi_kernels.lookup.layout import Window

from plot_store.counting import runs
from plot_store.counting.counted import Among, CountedNgrams
from plot_store.counting.counter import MIN_MEMORY_BYTES, NgramCounter, merge_counts
from plot_store.counting.key_counts import KeyCounts, combined, count_keys
from plot_store.counting.windows import pack, unpack
from plot_store.ground.errors import Closed, Damaged, Invalid, StoreFull

Text = list[int]
Ngram = tuple[int, ...]


def slow_counts(texts: list[Text], order: int, n: int, window: Window = "centred") -> Counter[Ngram]:
    """The counts as the counter's docstring defines them, one token at a time."""
    counts: Counter[Ngram] = Counter()
    before = (n - 1) // 2
    for text in texts:
        padded = [0] * before + text + [0] * n
        for i in range(len(text)):
            centred = order == n and window == "centred"
            if centred and text[i]:
                counts[tuple(padded[i : i + n])] += 1
            elif not centred and i + order <= len(text) and all(text[i : i + order]):
                counts[tuple(text[i : i + order])] += 1
    return counts


def slow_choice(counts: Counter[Ngram], alpha: float, min_count: int = 1) -> list[Ngram]:
    """The fewest n-grams that reach alpha percent, ties by key, in the order of the selection."""
    covered, chosen = 0, []
    for ngram, count in sorted(counts.items(), key=lambda item: (-item[1], item[0])):
        if alpha == 0 or (chosen and covered >= alpha / 100 * counts.total() - 1e-6):
            break
        covered += count
        chosen.append((-count.bit_length(), ngram, count))
    return [ngram for _, ngram, count in sorted(chosen) if count >= min_count]


def random_texts(seed: int, texts: int = 300, ids: int = 12, longest: int = 15) -> list[Text]:
    rng = random.Random(seed)
    return [[int(ids * rng.random() ** 2) for _ in range(rng.randint(0, longest))] for _ in range(texts)]


def feed(counter: NgramCounter, texts: list[Text], at_once: int) -> None:
    for at in range(0, len(texts), at_once):
        some = texts[at : at + at_once]
        tokens = np.array([i for text in some for i in text], np.int32)
        counter.add(tokens, np.cumsum([0, *map(len, some)]).astype(np.int64))


def count(
    folder: Path,
    texts: list[Text],
    n: int = 3,
    at_once: int = 7,
    memory: int = MIN_MEMORY_BYTES,
    window: Window = "centred",
) -> CountedNgrams:
    with NgramCounter(n, range(1, n + 1), folder, memory, window=window) as counter:
        feed(counter, texts, at_once)
        return counter.finish()


def given(counted: CountedNgrams, order: int, alpha: float, min_count: int = 1) -> list[Ngram]:
    chunks = counted.covering(order, alpha, min_count)
    return [tuple(map(int, ngram)) for chunk in chunks for ngram in chunk]


@pytest.fixture
def small_buffers(monkeypatch: pytest.MonkeyPatch) -> None:
    """Buffers so small that a small corpus gives many runs, several levels of merging and many blocks."""
    monkeypatch.setattr("plot_store.counting.counter._room", lambda _budget, _words: 97)
    monkeypatch.setattr("plot_store.counting.counter.FAN_IN", 3)
    monkeypatch.setattr("plot_store.counting.counter.BLOCK_ENTRIES", 16)


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("at_once", [1, 10, 1000])
@pytest.mark.usefixtures("small_buffers")
def test_counts_equal_a_counter(tmp_path: Path, n: int, at_once: int, window: Window) -> None:
    texts = [*random_texts(n), [0, 0], [], [5, 0, 6], [2**20 - 1] * 6]
    counted = count(tmp_path, texts, n, at_once, window=window)
    for order in range(1, n + 1):
        wanted = slow_counts(texts, order, n, window)
        assert (counted.total(order), counted.distinct(order)) == (wanted.total(), len(wanted))
        assert given(counted, order, 100) == slow_choice(wanted, 100)


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.usefixtures("small_buffers")
def test_a_choice_is_the_fewest_ngrams_that_reach_alpha(tmp_path: Path, n: int) -> None:
    texts = random_texts(7, 400)
    counted = count(tmp_path, texts, n)
    for order in (2, n):
        wanted = slow_counts(texts, order, n)
        for alpha in (0, 1e-9, 1, 10, 33.3, 50, 75, 90, 99, 99.99, 100):
            for least in (1, 2, 5):
                chosen = given(counted, order, alpha, least)
                assert chosen == slow_choice(wanted, alpha, least)
                assert counted.chosen(order, alpha, least) == len(chosen)


def test_ties_at_the_edge_go_by_key(tmp_path: Path) -> None:
    counted = count(tmp_path, [[9, 8], [7, 6], [5, 4], [3, 2]], n=2)
    assert given(counted, 1, 50) == [(2,), (3,), (4,), (5,)]
    assert given(counted, 1, 51) == [(2,), (3,), (4,), (5,), (6,)]


def test_the_order_is_always_the_same(tmp_path: Path, small_buffers: None) -> None:
    texts = random_texts(3)
    first = given(count(tmp_path / "a", texts, at_once=3), 3, 80)
    shuffled = random.Random(1).sample(texts, len(texts))
    assert given(count(tmp_path / "b", shuffled, at_once=50), 3, 80) == first


def test_an_empty_corpus_has_no_ngrams(tmp_path: Path) -> None:
    counted = count(tmp_path, [[]])
    assert (counted.total(3), counted.chosen(3, 100), given(counted, 3, 100)) == (0, 0, [])


@pytest.mark.parametrize("window", ["centred", "causal"])
def test_finished_counts_are_found_again(tmp_path: Path, window: Window) -> None:
    assert CountedNgrams.open(tmp_path / "none") is None
    texts = random_texts(5)
    first = count(tmp_path, texts, window=window)
    again = CountedNgrams.open(tmp_path)
    assert again is not None
    assert again.window == first.window == window
    assert (again.n, given(again, 3, 70)) == (3, given(first, 3, 70))
    (tmp_path / "counted.json").write_bytes(
        (tmp_path / "counted.json").read_bytes().replace(b'"n": 3', b'"n": 2')
    )
    assert CountedNgrams.open(tmp_path) is None, "changed by a hand or a disk"


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", [1, 3, 4])
@pytest.mark.parametrize("seed", range(4))
@pytest.mark.usefixtures("small_buffers")
def test_counts_of_parts_are_merged_into_the_bytes_of_one_count(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, n: int, seed: int, window: Window
) -> None:
    rng = random.Random(seed)
    texts = [*random_texts(seed, rng.randrange(2, 200)), [0, 0], [], [5, 0, 6]]
    whole = count(tmp_path / "whole", texts, n, rng.randrange(1, 50), window=window)
    cuts = sorted(rng.choices(range(len(texts) + 1), k=rng.randrange(6)))
    ranges = pairwise([0, *cuts, len(texts)])
    parts = [
        count(tmp_path / f"{i}", texts[a:b], n, rng.randrange(1, 50), window=window)
        for i, (a, b) in enumerate(ranges)
    ]
    monkeypatch.setattr("plot_store.counting.counter.MOST_OPEN", rng.choice((2, 3, 256)))
    told: list[tuple[int, int]] = []
    merged = merge_counts(parts, tmp_path / "merged", MIN_MEMORY_BYTES, lambda *at: told.append(at))
    assert content(merged.folder) == content(whole.folder)
    assert (merged.orders, merged.window) == (whole.orders, window)
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1]
    assert all(CountedNgrams.open(part.folder) for part in parts), "the parts stay"


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_only_parts_of_one_corpus_are_merged(tmp_path: Path) -> None:
    texts = random_texts(1, 20)
    first, other = count(tmp_path / "a", texts), count(tmp_path / "b", texts, n=2)
    for parts, into in ([], "c"), ([first, other], "c"), ([first], "a"):
        with pytest.raises(Invalid):
            merge_counts(parts, tmp_path / into)
    assert CountedNgrams.open(tmp_path / "a") is not None


def test_a_killed_count_leaves_nothing_to_the_next(tmp_path: Path, small_buffers: None) -> None:
    with NgramCounter(3, (2, 3), tmp_path, MIN_MEMORY_BYTES) as killed:
        feed(killed, random_texts(1), 50)
    assert CountedNgrams.open(tmp_path) is None
    assert list(tmp_path.glob("*.run"))
    texts = random_texts(2)
    counted = count(tmp_path, texts)
    assert given(counted, 3, 100) == slow_choice(slow_counts(texts, 3, 3), 100)
    names = {path.name for path in tmp_path.iterdir()}
    assert all("-of-2-to-" in name or name == "counted.json" for name in names), "runs are gone once merged"


def test_memory_is_bounded_whatever_the_corpus(tmp_path: Path) -> None:
    memory, rng = 4 << 20, np.random.default_rng(0)
    before = threading.active_count()
    tracemalloc.start()
    try:
        with NgramCounter(3, (2, 3), tmp_path, memory) as counter:
            for _ in range(
                30
            ):  # 600,000 distinct trigrams and about as many bigrams: 19 MB with their counts
                tokens = rng.integers(1, 1 << 20, 20_000).astype(np.int32)
                counter.add(tokens, np.arange(0, 20_001, 100, dtype=np.int64))
            counted = counter.finish()
        chosen = sum(map(len, counted.covering(3, 100)))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert chosen == counted.distinct(3) > 595_000
    assert peak < memory
    assert threading.active_count() == before


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("at_once", [1, 2, 7, 64])
def test_a_text_is_cut_anywhere_and_nothing_is_lost_or_doubled(
    tmp_path: Path, n: int, at_once: int, window: Window
) -> None:
    texts = [*random_texts(n, 20, longest=60), [], [5], [], [1, 2], [3] * 70]
    with NgramCounter(n, range(1, n + 1), tmp_path, window=window) as counter:
        counter._slice_tokens = at_once
        feed(counter, texts, 1000)
        counted = counter.finish()
    for order in range(1, n + 1):
        wanted = slow_counts(texts, order, n, window)
        assert counted.total(order) == wanted.total()
        assert given(counted, order, 100) == slow_choice(wanted, 100)


def test_one_long_text_takes_no_more_memory(tmp_path: Path) -> None:
    memory = 4 << 20
    tokens = np.random.default_rng(0).integers(1, 1 << 10, 1_000_000).astype(np.int32)
    tracemalloc.start()
    try:
        with NgramCounter(3, (3,), tmp_path, memory) as counter:
            counter.add(tokens, np.array([0, tokens.size], np.int64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < memory


@pytest.mark.parametrize("name", ["mine.run", "notes.tmp", "notes.txt"])
def test_a_folder_with_other_files_is_refused_and_they_stay(tmp_path: Path, name: str) -> None:
    count(tmp_path, [[1, 2]])
    (tmp_path / name).write_text("mine")
    with pytest.raises(Invalid, match=name):
        NgramCounter(3, (3,), tmp_path)
    assert (tmp_path / name).read_text() == "mine"
    assert CountedNgrams.open(tmp_path) is not None


def test_progress_is_told_and_may_stop_it(tmp_path: Path, small_buffers: None) -> None:
    told: list[tuple[int, int]] = []
    with NgramCounter(3, (2, 3), tmp_path, MIN_MEMORY_BYTES) as counter:
        feed(counter, random_texts(4), 20)
        counter.finish(lambda done, of: told.append((done, of)))
    assert told == sorted(told)
    assert told[-1][0] == told[-1][1] > 0

    def stop(_done: int, _of: int) -> None:
        raise KeyboardInterrupt

    with NgramCounter(3, (2, 3), tmp_path, MIN_MEMORY_BYTES) as counter:
        feed(counter, random_texts(4), 20)
        with pytest.raises(KeyboardInterrupt):
            counter.finish(stop)
    assert CountedNgrams.open(tmp_path) is None


def test_wrong_use_is_refused(tmp_path: Path) -> None:
    for n, orders in ((0, (1,)), (6, (6,)), (3, ()), (3, (4,)), (3, (0, 3))):
        with pytest.raises(Invalid, match=r"use n of 1\.\.5"):
            NgramCounter(n, orders, tmp_path)
    with pytest.raises(Invalid, match="too little"):
        NgramCounter(3, (3,), tmp_path, 1000)
    counter = NgramCounter(3, (3,), tmp_path)
    good = np.array([1, 2], np.int32)
    for tokens, offsets in (
        (good, [0, 1]),
        (good, [1, 2]),
        (good, [0, 2, 1, 2]),
        (good, []),
        (-good, [0, 2]),
        (good << 20, [0, 2]),
    ):
        with pytest.raises(Invalid):
            counter.add(tokens, np.array(offsets, np.int64))
    counter.add(good, np.array([0, 2], np.int64))
    counted = counter.finish()
    with pytest.raises(Closed, match="another"):
        counter.add(good, np.array([0, 2], np.int64))
    with pytest.raises(Invalid, match="not counted"):
        counted.total(2)
    with pytest.raises(Invalid, match=r"0\.\.100"):
        list(counted.covering(3, 101))


def test_a_full_disk_is_said_though_it_happens_in_the_background(
    tmp_path: Path, small_buffers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(self: runs.RunWriter, data: bytes) -> None:
        raise StoreFull("no space left")

    with NgramCounter(3, (3,), tmp_path, MIN_MEMORY_BYTES) as counter:
        monkeypatch.setattr(runs.RunWriter, "_write", full)
        with pytest.raises(StoreFull):
            feed(counter, random_texts(1), 5)


def test_a_spill_that_failed_once_is_never_forgotten(
    tmp_path: Path, small_buffers: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The counts of its run are lost, so any later result would be too low."""
    real, writes = runs.RunWriter._write, [0]

    def full_once(self: runs.RunWriter, data: bytes) -> None:
        writes[0] += 1
        if writes[0] == 3:
            raise StoreFull("no space left")
        real(self, data)

    with NgramCounter(3, (3,), tmp_path, MIN_MEMORY_BYTES) as counter:
        monkeypatch.setattr(runs.RunWriter, "_write", full_once)
        with pytest.raises(StoreFull):
            feed(counter, random_texts(1), 5)
        for _ in range(2):
            with pytest.raises(StoreFull):
                feed(counter, random_texts(2), 5)
            with pytest.raises(StoreFull):
                counter.finish()
    assert CountedNgrams.open(tmp_path) is None


def test_a_full_disk_at_the_end_closes_the_counter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(self: runs.RunWriter, data: bytes) -> None:
        raise StoreFull("no space left")

    counter = NgramCounter(3, (3,), tmp_path, MIN_MEMORY_BYTES)
    feed(counter, random_texts(1), 5)
    monkeypatch.setattr(runs.RunWriter, "_write", full)
    for _ in range(2):
        with pytest.raises(StoreFull):
            counter.finish()
    monkeypatch.undo()
    with pytest.raises(StoreFull):
        feed(counter, random_texts(2), 5)


def test_every_damaged_byte_of_a_run_is_noticed(tmp_path: Path) -> None:
    keys = pack(np.random.default_rng(0).integers(0, 50, (300, 5)).astype(np.uint32))
    wanted = count_keys(keys)
    writer = runs.RunWriter(tmp_path / "a.run", 2, block=64)
    writer.add(wanted)
    sound = writer.close().read_bytes()
    assert same(combined(list(runs.read_run(tmp_path / "a.run", 2))), wanted)
    for at in range(len(sound)):
        (tmp_path / "b.run").write_bytes(sound[:at] + bytes([sound[at] ^ 0x41]) + sound[at + 1 :])
        with pytest.raises(Damaged, match="count again"):
            list(runs.read_run(tmp_path / "b.run", 2))
        (tmp_path / "b.run").write_bytes(sound[:at])
        with pytest.raises(Damaged, match="count again"):
            list(runs.read_run(tmp_path / "b.run", 2))


@pytest.mark.parametrize("order", [1, 2, 3, 4, 5])
def test_keys_keep_ngrams_and_their_order(order: int) -> None:
    ngrams = np.random.default_rng(order).integers(0, 1 << 20, (500, order)).astype(np.uint32)
    assert np.array_equal(unpack(pack(ngrams), order), ngrams)
    found = unpack(count_keys(pack(ngrams)).keys, order)
    assert [tuple(g) for g in found.tolist()] == sorted({tuple(g) for g in ngrams.tolist()})


def same(a: KeyCounts, b: KeyCounts) -> bool:
    return np.array_equal(a.keys, b.keys) and np.array_equal(a.counts, b.counts)


def odd_ends(ngrams: np.ndarray) -> np.ndarray:
    return np.asarray(ngrams[:, -1] % 2 == 1)


@pytest.mark.parametrize("among", [None, odd_ends])
@pytest.mark.usefixtures("small_buffers")
def test_the_most_frequent_of_some(tmp_path: Path, among: Among | None) -> None:
    texts = random_texts(8, 400)
    counted = count(tmp_path, texts)
    for order in (2, 3):
        wanted = slow_counts(texts, order, 3)
        if among is not None:
            wanted = Counter({ngram: c for ngram, c in wanted.items() if ngram[-1] % 2})
        assert counted.histogram(order, among) == Counter(wanted.values())
        ranked = sorted(wanted.items(), key=lambda item: (-item[1], item[0]))
        for most in (0, 1, 7, len(ranked) // 2, len(ranked), len(ranked) + 9):
            for least in (1, 3):
                chosen = [(-c.bit_length(), ngram) for ngram, c in ranked[:most] if c >= least]
                chunks = counted.most_frequent(order, most, least, among)
                found = [tuple(map(int, ngram)) for chunk in chunks for ngram in chunk]
                assert found == [ngram for _, ngram in sorted(chosen)]
    with pytest.raises(Invalid, match="most"):
        list(counted.most_frequent(3, -1))
