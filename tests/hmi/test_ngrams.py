"""Counting and coverage against a plain dictionary."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest

from hmi.jobs.ngrams import count_ngrams, pack, unpack


def slow_counts(texts: list[list[int]], order: int) -> Counter[tuple[int, ...]]:
    counts: Counter[tuple[int, ...]] = Counter()
    for text in texts:
        padded = [0, *text, 0]
        for i in range(len(text)):
            if order == 3:
                counts[tuple(padded[i : i + 3])] += 1
            elif i + 1 < len(text):
                counts[tuple(text[i : i + 2])] += 1
    return counts


def random_corpus(seed: int) -> list[list[int]]:
    rng = random.Random(seed)
    return [[rng.randint(1, 12) for _ in range(rng.randint(1, 15))] for _ in range(200)]


@pytest.mark.parametrize("chunk", [1, 37, 1 << 20])
def test_counts_equal_a_dictionary(chunk: int) -> None:
    texts = random_corpus(0)
    for got in count_ngrams(texts, chunk):
        want = slow_counts(texts, got.order)
        ngrams = unpack(got.keys, got.order)
        assert {tuple(map(int, g)): int(c) for g, c in zip(ngrams, got.counts, strict=True)} == dict(want)


def test_pack_is_undone_by_unpack() -> None:
    ngrams = np.array([[0, 2, 30521], [(1 << 20) - 1] * 3, [5, 6, 0]], np.uint32)
    assert np.array_equal(unpack(pack(ngrams), 3), ngrams)


@pytest.mark.parametrize("alpha", [1, 30, 50, 99, 100])
def test_coverage_is_the_fewest_ngrams_that_reach_alpha(alpha: float) -> None:
    _, trigrams = count_ngrams(random_corpus(1))
    chosen = trigrams.covering(alpha)
    by_key = dict(zip(trigrams.keys.tolist(), trigrams.counts.tolist(), strict=True))
    covered = [by_key[k] for k in chosen.tolist()]
    target = alpha / 100 * trigrams.total
    assert sum(covered) >= target - 1e-6
    assert sum(covered) - min(covered) < target
    left_out = set(by_key) - set(chosen.tolist())
    assert not left_out or max(by_key[k] for k in left_out) <= min(covered)


def test_alpha_zero_stores_nothing_and_alpha_hundred_everything() -> None:
    _, trigrams = count_ngrams(random_corpus(2))
    assert len(trigrams.covering(0)) == 0
    assert len(trigrams.covering(100)) == len(trigrams.keys)
    sizes = [len(trigrams.covering(a)) for a in range(0, 101, 10)]
    assert sizes == sorted(sizes)


def test_min_count_leaves_out_rare_ngrams() -> None:
    _, trigrams = count_ngrams([[1, 2, 3], [1, 2, 3], [4, 5]])
    kept = {tuple(map(int, g)) for g in unpack(trigrams.covering(100, min_count=2), 3)}
    assert kept == {(0, 1, 2), (1, 2, 3), (2, 3, 0)}
