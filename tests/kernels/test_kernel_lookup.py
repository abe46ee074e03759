"""The fused look-up equals the reference to the bit, whatever the chain, the types and the batch."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kernels import layout, ops, reference


def random_chain(
    rng: np.random.Generator, dtypes: list[int], dim: int, vocab: int
) -> tuple[list[dict[tuple[int, ...], np.ndarray]], ops.LevelTable]:
    """Versions nearest first, as dictionaries for the reference and as a table for the kernel."""
    chain, runs = [], []
    for depth, dtype in enumerate(dtypes):
        entries: dict[tuple[int, ...], np.ndarray] = {}
        for order in (1, 2, 3):
            for _ in range(int(rng.integers(0, 3))):  # index runs of one version, oldest first
                ngrams = rng.integers(0, vocab, (int(rng.integers(1, 60)), order)).astype(np.uint32)
                vectors = rng.standard_normal((len(ngrams), layout.ROLES[order], dim)).astype(np.float32)
                rows = ops.encode(ngrams, vectors, dtype)
                parts = tuple(np.ascontiguousarray(p) for p in np.array_split(rows, int(rng.integers(1, 4))) if len(p))
                slots, shift, _ = ops.build_index([layout.row_keys(p) for p in parts])
                runs.append((depth, ops.IndexRun(order, depth, dtype, slots, shift, parts)))
                stored = reference.stored(vectors, dtype)
                entries.update({tuple(map(int, g)): v for g, v in zip(ngrams, stored, strict=True)})
        chain.append(entries)
    newest_first = [run for d in range(len(dtypes)) for depth, run in reversed(runs) if depth == d]
    return chain, ops.level_table(newest_first, dim)


def batch(texts: list[list[int]]) -> tuple[np.ndarray, np.ndarray]:
    tokens = np.array([t for text in texts for t in text], np.int32)
    return tokens, np.cumsum([0, *map(len, texts)]).astype(np.int64)


def run(table: ops.LevelTable, texts: list[list[int]], vocab: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    tokens, offsets = batch(texts)
    out = np.full((tokens.size, table.dim), np.nan, np.float32)
    order, depth = np.full(tokens.size, 9, np.int8), np.full(tokens.size, 9, np.int16)
    ops.lookup(table, tokens, offsets, vocab, out, order, depth)
    return out, order, depth


@settings(max_examples=120, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    dtypes=st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=4),
    dim=st.sampled_from([1, 5, 32, 65]),
    vocab=st.integers(2, 9),
    lengths=st.lists(st.integers(0, 40), min_size=0, max_size=12),
)
def test_equals_the_reference(seed: int, dtypes: list[int], dim: int, vocab: int, lengths: list[int]) -> None:
    rng = np.random.default_rng(seed)
    chain, table = random_chain(rng, dtypes, dim, vocab)
    texts = [rng.integers(0, vocab, n).tolist() for n in lengths]
    out, order, depth = run(table, texts, vocab)
    expected, orders, depths = reference.lookup(chain, texts, dim)
    assert np.array_equal(out, expected)
    assert order.tolist() == orders
    assert depth.tolist() == depths


@pytest.mark.parametrize("dtype", [0, 1, 2])
def test_long_batches_cross_blocks_alike(dtype: int) -> None:
    rng = np.random.default_rng(dtype)
    _, table = random_chain(rng, [dtype, dtype], 16, 8)
    texts = [rng.integers(0, 8, n).tolist() for n in (700, 1, 255, 256, 257, 3, 0, 2)]
    together, order, depth = run(table, texts, 8)
    alone = [run(table, [text], 8) for text in texts]
    assert np.array_equal(together, np.concatenate([a[0] for a in alone]))
    assert np.array_equal(order, np.concatenate([a[1] for a in alone]))
    assert np.array_equal(depth, np.concatenate([a[2] for a in alone]))


def test_back_off_prefers_any_trigram_to_any_bigram_and_the_nearest_of_each() -> None:
    def version(**fill: float) -> dict[tuple[int, ...], np.ndarray]:
        names = {"tri": (1, 2, 3), "left": (1, 2), "right": (2, 3), "one": (2,)}
        shape = {3: (3, 1), 2: (4, 1), 1: (3, 1)}
        return {names[k]: np.full(shape[len(names[k])], v, np.float32) for k, v in fill.items()}

    near, far = version(left=10, one=1000), version(tri=7, left=20, right=30, one=2000)
    assert reference.entry([near, far], 1, 2, 3, 1)[1:] == (3, 1)
    del far[(1, 2, 3)]
    rows, order, depth = reference.entry([near, far], 1, 2, 3, 1)
    assert (rows[:, 0].tolist(), order, depth) == ([10, 20, 30], 2, 0)  # centre: the mean of 10 and 30
    del near[(1, 2)], far[(1, 2)]
    rows, order, depth = reference.entry([near, far], 1, 2, 3, 1)
    assert (rows[:, 0].tolist(), order, depth) == ([0, 30, 30], 2, 1)  # nobody knows token 1 alone
    del far[(2, 3)]
    rows, order, depth = reference.entry([near, far], 1, 2, 3, 1)
    assert (rows[:, 0].tolist(), order, depth) == ([0, 1000, 0], 1, -1)


@pytest.mark.parametrize(
    ("tokens", "offsets", "message"),
    [
        ([1, 2], [0, 1], "offsets"),
        ([1, 2], [1, 2], "offsets"),
        ([1, 2], [0, 2, 1, 2], "offsets"),
        ([1, 2], [], "offsets"),
        ([1, 8], [0, 2], "token"),
        ([1, -1], [0, 2], "token"),
    ],
)
def test_a_wrong_batch_is_refused(tokens: list[int], offsets: list[int], message: str) -> None:
    _, table = random_chain(np.random.default_rng(0), [0], 4, 8)
    out = np.zeros((len(tokens), 4), np.float32)
    order, depth = np.zeros(len(tokens), np.int8), np.zeros(len(tokens), np.int16)
    with pytest.raises(ValueError, match=message):
        ops.lookup(table, np.array(tokens, np.int32), np.array(offsets, np.int64), 8, out, order, depth)
