"""A look-up on several threads gives what one thread gives."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import kernellab as lab
import numpy as np
import pytest
from hmi_kernels.lookup import ops, parallel
from hmi_kernels.lookup.layout import Window


def spread(
    table: ops.LevelTable, texts: list[list[int]], vocab: int, parts: int
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, offsets = lab.ragged(texts)
    out = np.full((tokens.size, table.dim), 77, np.float32)
    order, depth = np.full(tokens.size, 9, np.int8), np.full(tokens.size, 9, np.int16)
    with ThreadPoolExecutor(4) as pool:
        parallel.lookup(pool, parts, table, tokens, offsets, vocab, out, order, depth)
    return out, order, depth


@pytest.mark.parametrize(("n", "window"), [(3, "centred"), (4, "centred"), (3, "causal")])
@pytest.mark.parametrize("parts", [1, 2, 7, 100])
def test_threads_give_the_same_bits(n: int, window: Window, parts: int) -> None:
    rng = np.random.default_rng(parts)
    _, table = lab.random_chain(rng, [0, 1, 2], 65, 9, n, window=window)
    texts = [rng.integers(0, 9, k).tolist() for k in (0, 700, 1, 0, 0, 300, 5, 5, 5, 90, 0)]
    for several, one in zip(spread(table, texts, 9, parts), lab.lookup(table, texts, 9), strict=True):
        assert np.array_equal(several, one)


def test_no_text_at_all() -> None:
    _, table = lab.random_chain(np.random.default_rng(0), [0], 8, 9)
    assert spread(table, [], 9, 4)[0].shape == (0, 8)


def test_threads_raise_the_same_errors() -> None:
    _, table = lab.random_chain(np.random.default_rng(0), [0], 8, 9)
    with pytest.raises(ValueError, match="token"):
        spread(table, [[1, 2], [3, 9], [4]], 9, 3)
    tokens, out = np.zeros(4, np.int32), np.zeros((4, 8), np.float32)
    order, depth = np.zeros(4, np.int8), np.zeros(4, np.int16)
    with ThreadPoolExecutor(2) as pool, pytest.raises(ValueError, match="offsets"):
        parallel.lookup(pool, 2, table, tokens, np.array([0, 3, 1, 4]), 9, out, order, depth)


def test_parts_are_of_about_equal_tokens() -> None:
    offsets = np.arange(0, 10_001, 10)
    assert parallel.text_cuts(offsets, 10_000, 4) == [0, 250, 500, 750, 1000]
