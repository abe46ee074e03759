"""The fused look-up equals the reference bit for bit, for any window, chain, storage type and batch."""

from __future__ import annotations

import itertools

import kernellab as lab
import numpy as np
import pytest
from hmi_kernels.lookup import layout, ops, reference
from hypothesis import given, settings
from hypothesis import strategies as st

dtypes = st.lists(st.sampled_from([0, 1, 2]), min_size=1, max_size=4)
dims = st.sampled_from([1, 5, 32, 65])
windows = st.sampled_from(["centred", "causal"])
lengths = st.lists(st.integers(0, 40), min_size=0, max_size=12)


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return a.shape == b.shape and bool(
        ((a.view(np.uint32) == b.view(np.uint32)) | ((a == 0) & (b == 0))).all()
    )


def agree(
    chain: lab.Chain, table: ops.LevelTable, texts: list[list[int]], vocab: int, steps: lab.Steps = None
) -> None:
    """Assert that the kernel's answer, in both output types, is the reference's, also on rows
    that were verified before."""
    expected, orders, depths = reference.lookup(chain, texts, table.dim, table.n, steps, table.window)
    for _ in range(2):
        out, order, depth = lab.lookup(table, texts, vocab)
        assert same_bits(out, expected)
        assert order.tolist() == orders
        assert depth.tolist() == depths
    halves, order, depth = lab.lookup(table, texts, vocab, np.uint16)
    assert np.array_equal(halves & 0x7FFF, reference.bfloat16(expected) & 0x7FFF)
    assert np.array_equal(halves[expected != 0], reference.bfloat16(expected)[expected != 0])
    assert order.tolist() == orders
    assert depth.tolist() == depths


@settings(max_examples=120, deadline=None)
@given(seed=st.integers(0, 1 << 30), dtypes=dtypes, dim=dims, vocab=st.integers(2, 9), lengths=lengths)
def test_trigrams_equal_the_reference(
    seed: int, dtypes: list[int], dim: int, vocab: int, lengths: list[int]
) -> None:
    rng = np.random.default_rng(seed)
    chain, table = lab.random_chain(rng, dtypes, dim, vocab)
    agree(chain, table, [rng.integers(0, vocab, n).tolist() for n in lengths], vocab)


@settings(max_examples=240, deadline=None)
@given(
    seed=st.integers(0, 1 << 30),
    n=st.integers(1, 5),
    window=windows,
    dtypes=dtypes,
    dim=dims,
    vocab=st.integers(2, 5),
    lengths=lengths,
    plan=st.sampled_from(["default", "version", "random"]),
)
def test_every_window_and_plan_equals_the_reference(
    seed: int,
    n: int,
    window: layout.Window,
    dtypes: list[int],
    dim: int,
    vocab: int,
    lengths: list[int],
    plan: str,
) -> None:
    rng = np.random.default_rng(seed)
    steps: list[tuple[int, int | None]] | None = None
    if plan == "version":
        steps = [(order, depth) for depth in range(len(dtypes)) for order in range(n, 1, -1)] + [(1, None)]
    elif plan == "random":
        anywhere = [None, *range(len(dtypes) + 1)]
        steps = [
            (int(rng.integers(1, n + 1)), anywhere[rng.integers(len(anywhere))])
            for _ in range(rng.integers(6))
        ]
    chain, table = lab.random_chain(rng, dtypes, dim, vocab, n, steps, window)
    agree(chain, table, [rng.integers(0, vocab, k).tolist() for k in lengths], vocab, steps)


def test_the_general_body_equals_the_fast_one() -> None:
    """The default plan, written twice, means the same; only the general body accepts it."""
    rng = np.random.default_rng(5)
    twice = reference.default_steps(3) * 2
    chain, general = lab.random_chain(rng, [0, 1, 2], 33, 12, steps=twice)
    fast = ops.level_table(general.runs, 3, 33)
    assert fast.plain
    assert not general.plain
    texts = [rng.integers(0, 12, n).tolist() for n in (5, 300, 0, 1, 2, 77)]
    agree(chain, general, texts, 12, twice)
    for a, b in zip(lab.lookup(fast, texts, 12), lab.lookup(general, texts, 12), strict=True):
        assert np.array_equal(a, b)


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
@pytest.mark.parametrize("dtype", [0, 1, 2])
def test_long_batches_cross_blocks_alike(dtype: int, n: int, window: layout.Window) -> None:
    rng = np.random.default_rng(dtype)
    _, table = lab.random_chain(rng, [dtype, dtype], 16, 8, n, window=window)
    texts = [rng.integers(0, 8, n).tolist() for n in (700, 1, 255, 256, 257, 3, 0, 2)]
    together = lab.lookup(table, texts, 8)
    alone = [lab.lookup(table, [text], 8) for text in texts]
    for i, part in enumerate(together):
        assert np.array_equal(part, np.concatenate([a[i] for a in alone]))


def test_back_off_prefers_any_trigram_to_any_bigram_and_the_nearest_of_each() -> None:
    def version(**fill: float) -> dict[tuple[int, ...], np.ndarray]:
        names = {"tri": (1, 2, 3), "left": (1, 2), "right": (2, 3), "one": (2,)}
        shape = {3: (3, 1), 2: (4, 1), 1: (3, 1)}
        return {names[k]: np.full(shape[len(names[k])], v, np.float32) for k, v in fill.items()}

    near, far = version(left=10, one=1000), version(tri=7, left=20, right=30, one=2000)
    assert reference.window([near, far], (1, 2, 3), 1)[1:] == (3, 1)
    by_version: list[tuple[int, int | None]] = [(3, 0), (2, 0), (3, 1), (2, 1), (1, None)]
    rows, order, depth = reference.window([near, far], (1, 2, 3), 1, by_version)
    # The bigram comes from the nearest version, the rest from far ones.
    assert (rows[:, 0].tolist(), order, depth) == ([10, 10, 7], 3, 0)
    del far[(1, 2, 3)]
    rows, order, depth = reference.window([near, far], (1, 2, 3), 1)
    assert (rows[:, 0].tolist(), order, depth) == ([10, 20, 30], 2, 0)  # centre: the mean of 10 and 30
    del near[(1, 2)], far[(1, 2)]
    rows, order, depth = reference.window([near, far], (1, 2, 3), 1)
    assert (rows[:, 0].tolist(), order, depth) == ([0, 30, 30], 2, 1)  # no version has token 1 alone
    del far[(2, 3)]
    rows, order, depth = reference.window([near, far], (1, 2, 3), 1)
    assert (rows[:, 0].tolist(), order, depth) == ([0, 1000, 0], 1, -1)


def test_a_row_of_every_placement_lies_where_its_role_says() -> None:
    """n = 4, order 2: each vector holds its role's number, and a window alone shows where each went."""
    rows = np.arange(6, dtype=np.float32)[:, None]  # placements 0, 1, 2, each with ids 0 and 1
    vectors, order, _ = reference.window([{(7, 8): rows}], (0, 7, 8, 0), 1)
    assert (vectors[:, 0].tolist(), order) == ([0, 2, 3, 0], 2)
    vectors, _, _ = reference.window([{(7, 7): rows}], (7, 7, 7, 7), 1)
    assert vectors[:, 0].tolist() == [0, (1 + 2) / 2, (3 + 4) / 2, 5]


@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_a_causal_row_is_that_of_the_last_tokens_and_of_none_after(n: int) -> None:
    """With every n-gram stored, a token's order is the number of tokens up to it, at most n. No later token
    changes its row, and none that is n or more before it."""
    rng, runs = np.random.default_rng(n), []
    for order in range(1, n + 1):
        ngrams = np.array(list(itertools.product(range(1, 4), repeat=order)), np.uint32)
        vectors = rng.standard_normal((len(ngrams), 1, 70)).astype(np.float32)
        runs.append(lab.index_run([ops.encode(ngrams, vectors, 0, n, "causal")], order, 0))
    table = ops.level_table(runs, n, 70, window="causal")
    text = rng.integers(1, 4, 12).tolist()
    before, order, _ = lab.lookup(table, [text, text[:2], text], 4)
    alone = [min(n, i + 1) for i in range(12)]
    assert order.tolist() == [*alone, *alone[:2], *alone]
    for j in range(12):
        changed = [*text[:j], text[j] % 3 + 1, *text[j + 1 :]]
        after = lab.lookup(table, [changed, text[:2], text], 4)[0]
        moved = np.flatnonzero((after != before).any(axis=1)).tolist()
        assert moved == list(range(j, min(j + n, 12)))  # nothing in the other texts
        assert np.array_equal(lab.lookup(table, [text[: j + 1]], 4)[0], before[: j + 1])


def test_no_causal_ngram_leads_across_an_id_0() -> None:
    grams = [np.array(g, np.uint32) for g in ([[0], [1]], [[0, 1], [1, 0], [1, 1]], [[1, 0, 1], [1, 1, 0]])]
    rows = [ops.encode(g, np.ones((len(g), 1, 8), np.float32), 2, 3, "causal") for g in grams]
    table = ops.level_table([lab.index_run([r], k + 1, 2) for k, r in enumerate(rows)], 3, 8, window="causal")
    assert lab.lookup(table, [[1, 1, 0, 1, 0]], 2)[1].tolist() == [1, 2, 3, 1, 2]


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
    _, table = lab.random_chain(np.random.default_rng(0), [0], 4, 8)
    out = np.zeros((len(tokens), 4), np.float32)
    order, depth = np.zeros(len(tokens), np.int8), np.zeros(len(tokens), np.int16)
    with pytest.raises(ValueError, match=message):
        ops.lookup(table, np.array(tokens, np.int32), np.array(offsets, np.int64), 8, out, order, depth)
