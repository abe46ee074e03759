"""The miss sketch against a plain Counter: its bounds, merges, speed and arrays."""

from __future__ import annotations

import random
import threading
from collections import Counter

import numpy as np
import pytest
from hmi_kernels.lookup.layout import Window

from plot_store import Hits
from plot_store.counting.misses import BUFFER_TOKENS, MissSketch
from plot_store.ground.errors import Damaged, Invalid

Ngram = tuple[int, ...]
Batch = tuple[np.ndarray, np.ndarray, Hits]


def batch(rng: random.Random, n: int, texts: int = 8, ids: int = 9, stored: float = 0.5) -> Batch:
    """Random texts, some empty, with zeros in them, and random hits."""
    lengths = [rng.choice((0, 1, 2, 3, 9)) for _ in range(texts)]
    offsets = np.cumsum([0, *lengths]).astype(np.int64)
    tokens = np.array([int(ids * rng.random() ** 3) for _ in range(sum(lengths))], np.int32)
    order = np.array([n if rng.random() < stored else rng.randrange(n) for _ in tokens], np.int8)
    return tokens, offsets, Hits(order, np.zeros(tokens.size, np.int16))


def slow_misses(batches: list[Batch], n: int, window: Window = "centred") -> Counter[Ngram]:
    found: Counter[Ngram] = Counter()
    before = n - 1 if window == "causal" else (n - 1) // 2
    for tokens, offsets, hits in batches:
        for begin, end in zip(offsets[:-1].tolist(), offsets[1:].tolist(), strict=True):
            padded = [0] * before + tokens[begin:end].tolist() + [0] * n
            for i in range(end - begin):
                missed = tuple(padded[i : i + n])
                counted = all(missed) if window == "causal" else tokens[begin + i]
                if hits.order[begin + i] < n and counted:
                    found[missed] += 1
    return found


def kept(sketch: MissSketch, k: int | None = None, min_count: int = 1) -> dict[Ngram, int]:
    ngrams, counts, _ = sketch.top(k, min_count)
    return {tuple(map(int, g)): int(c) for g, c in zip(ngrams, counts, strict=True)}


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_with_room_enough_every_miss_is_counted(n: int, window: Window) -> None:
    rng = random.Random(n)
    batches = [batch(rng, n) for _ in range(60)]
    sketch = MissSketch(n, 100_000, window=window)
    for one in batches:
        sketch.add(*one)
    wanted = slow_misses(batches, n, window)
    assert kept(sketch) == dict(wanted)
    assert (sketch.seen, sketch.top()[2]) == (wanted.total(), 0)


@pytest.mark.parametrize("n", [3, 5])
@pytest.mark.parametrize("capacity", [1, 7, 40])
def test_the_bounds_hold_when_it_is_full(n: int, capacity: int) -> None:
    rng = random.Random(capacity)
    batches = [batch(rng, n, stored=0.1) for _ in range(200)]
    sketch = MissSketch(n, capacity)
    for one in batches:
        sketch.add(*one)
        assert sketch.seen >= 0  # counts what is pending, so that the sketch overflows repeatedly
    bounded(sketch, slow_misses(batches, n))


def bounded(sketch: MissSketch, wanted: Counter[Ngram]) -> None:
    found, error = kept(sketch), sketch.top()[2]
    assert len(found) <= sketch.capacity
    assert sketch.seen == wanted.total()
    assert error * (sketch.capacity + 1) <= wanted.total()
    for ngram, count in wanted.items():
        assert found.get(ngram, 0) <= count <= found.get(ngram, 0) + error
    assert set(found) <= set(wanted)


def test_a_merge_keeps_the_bounds() -> None:
    rng = random.Random(5)
    parts = [[batch(rng, 3, stored=0) for _ in range(50)] for _ in range(3)]
    whole = MissSketch(3, 30)
    for part in parts:
        sketch = MissSketch(3, 30)
        for one in part:
            sketch.add(*one)
        whole.merge(sketch)
    bounded(whole, slow_misses([one for part in parts for one in part], 3))
    with pytest.raises(Invalid, match="keep them apart"):
        whole.merge(MissSketch(2))
    with pytest.raises(Invalid, match="causal 3-grams cannot be merged into one of centred"):
        whole.merge(MissSketch(3, window="causal"))


def test_top_is_sorted_and_cut() -> None:
    tokens = np.array([5] * 9 + [4] * 3 + [6] * 3 + [7], np.int32)
    sketch = MissSketch(1)
    sketch.add(tokens, np.arange(17, dtype=np.int64), Hits(np.zeros(16, np.int8), np.zeros(16, np.int16)))
    ngrams, counts, _ = sketch.top()
    assert (ngrams[:, 0].tolist(), counts.tolist()) == ([5, 4, 6, 7], [9, 3, 3, 1])
    assert kept(sketch, k=2) == {(5,): 9, (4,): 3}
    assert kept(sketch, min_count=3) == {(5,): 9, (4,): 3, (6,): 3}
    assert kept(sketch, min_count=10) == {}


def test_batches_larger_than_what_may_wait() -> None:
    rng = np.random.default_rng(0)
    sketch, wanted = MissSketch(2, 1 << 12), Counter[Ngram]()
    for size in (BUFFER_TOKENS - 5, 10, BUFFER_TOKENS + 7, 3, 2 * BUFFER_TOKENS):
        tokens = rng.integers(0, 20, size).astype(np.int32)
        offsets = np.array([0, size // 3, size // 3, size], np.int64)
        one = (tokens, offsets, Hits(np.zeros(size, np.int8), np.zeros(size, np.int16)))
        sketch.add(*one)
        starts = {int(o) for o in offsets}
        after = [0 if i + 1 in starts else int(t) for i, t in enumerate([*tokens[1:].tolist(), 0])]
        wanted.update((a, b) for a, b in zip(tokens.tolist(), after, strict=True) if a)
    assert kept(sketch) == dict(wanted)


@pytest.mark.parametrize("window", ["centred", "causal"])
def test_a_sketch_comes_back_from_its_arrays(window: Window) -> None:
    rng = random.Random(2)
    batches = [batch(rng, 4) for _ in range(80)]
    sketch = MissSketch(4, 25, window=window)
    for one in batches[:40]:
        sketch.add(*one)
    again = MissSketch.from_arrays(sketch.to_arrays())
    assert again.window == window
    assert (kept(again), again.seen, again.top()[2]) == (kept(sketch), sketch.seen, sketch.top()[2])
    for one in batches[40:]:
        again.add(*one)
    bounded(again, slow_misses(batches, 4, window))


def test_foreign_arrays_are_refused() -> None:
    good = MissSketch(3).to_arrays()
    for wrong in (
        {},
        {**good, "figures": np.zeros(2, np.int64)},
        {**good, "figures": np.array([9, 1, 0, 0])},
        {**good, "figures": np.array([3, 1, 0, 0, 2])},
        {**good, "counts": np.zeros(3, np.int64)},
        {**good, "ngrams": np.zeros((0, 2), np.uint32)},
        {**good, "ngrams": np.zeros((0, 3), np.float32)},
    ):
        with pytest.raises(Damaged, match="delete them"):
            MissSketch.from_arrays(wrong)
    for n, capacity in ((0, 1), (6, 1), (3, 0)):
        with pytest.raises(Invalid):
            MissSketch(n, capacity)


def test_threads_lose_nothing() -> None:
    rng = random.Random(9)
    shares = [[batch(rng, 3) for _ in range(300)] for _ in range(4)]
    sketch = MissSketch(3, 1 << 14)

    def work(share: list[Batch]) -> None:
        for i, one in enumerate(share):
            sketch.add(*one)
            if i % 50 == 0:
                sketch.top(3)

    threads = [threading.Thread(target=work, args=(share,)) for share in shares]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert kept(sketch) == dict(slow_misses([one for share in shares for one in share], 3))
