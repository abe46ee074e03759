"""No wrong vector is ever returned: rows are checked when they are first used."""

from __future__ import annotations

import os
from dataclasses import replace

import kernellab as lab
import numpy as np
import pytest
from hmi_kernels.lookup import layout, ops
from hypothesis import given, settings
from hypothesis import strategies as st

SHAPES = [(n, order) for n in range(1, layout.MAX_N + 1) for order in range(1, n + 1)]


def one_row(rng: np.random.Generator, n: int, order: int, dim: int = 9) -> layout.Bytes:
    vectors = rng.standard_normal((1, layout.roles(n, order), dim)).astype(np.float32)
    return ops.encode(rng.integers(0, 9, (1, order)).astype(np.uint32), vectors, 0, n)


@pytest.mark.parametrize(("n", "order"), SHAPES)
def test_every_bit_of_a_row_is_watched(n: int, order: int) -> None:
    rows = one_row(np.random.default_rng(n), n, order)
    bits = rows.shape[1] * 8
    flipped = np.repeat(rows, bits, axis=0)
    flipped[np.arange(bits), np.arange(bits) // 8] ^= np.uint8(1) << (np.arange(bits) % 8).astype(np.uint8)
    assert ops.check_rows(rows, n, order).all()
    assert not ops.check_rows(flipped, n, order).any()


def with_check(rows: layout.Bytes, n: int, order: int, checks: np.ndarray) -> layout.Bytes:
    at = layout.header_bytes(n, order) - 8
    rows[:, at : at + 8] = checks.astype("<u8").view(np.uint8).reshape(-1, 8)
    return rows


def unnoticed(rows: layout.Bytes, n: int, order: int) -> int:
    """The number of these rows that pass their check."""
    return int(ops.check_rows(rows, n, order).sum())


@pytest.mark.parametrize(("n", "order"), [(1, 1), (3, 3), (5, 4)])
@pytest.mark.parametrize("blank", [False, True])
def test_any_two_bits_of_a_row_are_watched(n: int, order: int, blank: bool) -> None:
    """All pairs, in a row of random vectors and in one of zeros."""
    rows = one_row(np.random.default_rng(n), n, order, 3)
    if blank:
        vectors = np.zeros((1, layout.roles(n, order), 3), np.float32)
        rows = ops.encode(np.ones((1, order), np.uint32), vectors, 0, n)
    first, second = np.triu_indices(rows.shape[1] * 8, 1)
    for some in np.array_split(np.arange(first.size), 8):
        hit = np.repeat(rows, some.size, axis=0)
        for bits in (first[some], second[some]):
            hit[np.arange(some.size), bits // 8] ^= np.uint8(1) << (bits % 8).astype(np.uint8)
        assert unnoticed(hit, n, order) == 0


def large_row(seed: int = 0) -> layout.Bytes:
    return one_row(np.random.default_rng(seed), 3, 3, 384)


def test_the_highest_bits_of_any_two_words_are_watched() -> None:
    """The check of format 2 saw none of these."""
    row = large_row()
    first, second = np.triu_indices(row.shape[1] // 8, 1)
    hit = np.repeat(row, first.size, axis=0).view(np.uint64)
    for words in (first, second):
        hit[np.arange(first.size), words] ^= np.uint64(1 << 63)
    assert unnoticed(hit.view(np.uint8), 3, 3) == 0
    old = with_check(row, 3, 3, layout.sum_checks(row, 3, 3)).view(np.uint64).copy()
    old[0, [7, 90]] ^= np.uint64(1 << 63)
    assert ops.check_rows(old.view(np.uint8), 3, 3, old=True).all()


@pytest.mark.parametrize("shape", [(3, 3), (5, 5), (1, 1)], ids=str)
def test_words_that_changed_places_or_went_missing_are_noticed(shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(1)
    row = one_row(rng, *shape, 100)
    other = one_row(rng, *shape, 100)
    words = row.shape[1] // 8
    first, second = np.triu_indices(words, 1)
    different = row.view(np.uint64)[0, first] != row.view(np.uint64)[0, second]
    swapped = np.repeat(row, first.size, axis=0).view(np.uint64)
    swapped[np.arange(first.size), first] = row.view(np.uint64)[0, second]
    swapped[np.arange(first.size), second] = row.view(np.uint64)[0, first]
    assert unnoticed(swapped[different].view(np.uint8), *shape) == 0
    for tail in (np.zeros_like(row), np.full_like(row, 255), other):  # zeroed, erased, torn
        whole = np.repeat(row, words, axis=0)
        for word in range(words):
            whole[word, 8 * word :] = tail[0, 8 * word :]
        assert unnoticed(whole[(whole != row).any(axis=1) & (whole != tail).any(axis=1)], *shape) == 0


@pytest.mark.parametrize("dim", [1, 8, 384, 4096])
@pytest.mark.parametrize(("n", "order"), SHAPES)
def test_a_hole_in_a_file_is_no_row(n: int, order: int, dim: int) -> None:
    for dtype in layout.DTYPES.values():
        for fill in (0, 255):
            hole = np.full((1, layout.stride(n, order, dim, dtype)), fill, np.uint8)
            assert unnoticed(hole, n, order) == 0
            assert not ops.check_rows(hole, n, order, old=True).any()


def test_random_damage_in_several_words_is_noticed() -> None:
    rng = np.random.default_rng(3)
    row = large_row()
    for count in (2, 3, 5, 20, 148):
        hit = np.repeat(row, 4000, axis=0).view(np.uint64)
        for _ in range(count):
            at = rng.integers(0, hit.shape[1], len(hit))
            hit[np.arange(len(hit)), at] ^= rng.integers(1, 1 << 63, len(hit), dtype=np.uint64)
        assert unnoticed(hit[(hit != row.view(np.uint64)).any(axis=1)].view(np.uint8), 3, 3) == 0


def test_the_two_halves_of_a_product() -> None:
    """`folded` against Python's integers, at the edges too."""
    edges = [0, 1, 2, (1 << 32) - 1, 1 << 32, (1 << 63), (1 << 64) - 1, layout.CHECK_FACTOR]
    a, b = (np.array(part, np.uint64) for part in zip(*((x, y) for x in edges for y in edges), strict=True))
    products = [int(x) * int(y) for x, y in zip(a, b, strict=True)]
    assert layout.folded(a, b).tolist() == [p >> 64 ^ p & (1 << 64) - 1 for p in products]


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 30), shape=st.sampled_from(SHAPES))
def test_any_damage_within_a_word_is_found(seed: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    rows = one_row(rng, *shape)
    words = rows.view(np.uint64)
    words[0, rng.integers(words.shape[1])] ^= rng.integers(1, 1 << 63, dtype=np.uint64)
    assert not ops.check_rows(rows, *shape).any()
    assert (layout.row_checks(rows, *shape) != words[:, layout.header_bytes(*shape) // 8 - 1]).all()


def flip_a_bit_and_look_up(n: int, seed: int, window: layout.Window = "centred") -> bool:
    """A text over a damaged chain either raises and names the row, or does not need it.
    Returns whether it raised."""
    rng = np.random.default_rng(seed)
    _, table = lab.random_chain(rng, [0, 1], 8, 5, n, window=window)
    texts = [rng.integers(0, 5, 60).tolist()]
    views = [view for run in table.runs for view in run.segments]
    if not views:
        return False
    segment = int(rng.integers(len(views)))
    hit = views[segment].rows
    row, byte = int(rng.integers(len(hit))), int(rng.integers(hit.shape[1]))
    clean = lab.lookup(table, texts, 5)
    for view in views:
        view.verified[:] = 0
    hit[row, byte] ^= np.uint8(1 << rng.integers(8))
    try:
        out = lab.lookup(table, texts, 5)
    except ops.DamagedRow as error:
        assert (error.segment, error.row) == (segment, row)  # noqa: PT017 - not every flip must raise
        return True
    assert all(np.array_equal(a, b) for a, b in zip(out, clean, strict=True))
    return False


@pytest.mark.parametrize(("n", "window"), [(3, "centred"), (5, "centred"), (3, "causal"), (5, "causal")])
def test_a_flipped_bit_is_an_error_or_was_never_read(n: int, window: layout.Window) -> None:
    assert 0 < sum(flip_a_bit_and_look_up(n, seed, window) for seed in range(30)) < 30


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_many_flipped_bits(n: int) -> None:
    raised = sum(
        flip_a_bit_and_look_up(n, seed) for seed in range(int(os.environ.get("KERNEL_FLIPS", "500")))
    )
    assert raised > 0


def test_a_row_is_checked_once() -> None:
    """A verified row is trusted until it is mapped again; a scrub finds later damage."""
    rng = np.random.default_rng(1)
    vectors = rng.standard_normal((2, 3, 8)).astype(np.float32)
    rows = ops.encode(np.array([[0, 1, 0], [0, 2, 0]], np.uint32), vectors, 0, 3)
    view = lab.view(rows)
    slots, shift, _ = ops.build_index([layout.row_keys(rows, 3)])
    table = ops.level_table([ops.IndexRun(3, 0, 0, slots, shift, False, (view,))], 3, 8)
    lab.lookup(table, [[1]], 9)
    assert view.verified.tolist() == [0b01]
    view.rows[:, -20] ^= 1
    lab.lookup(table, [[1]], 9)
    with pytest.raises(ops.DamagedRow) as caught:
        lab.lookup(table, [[1], [2]], 9)
    assert (caught.value.segment, caught.value.row) == (0, 1)
    with pytest.raises(ops.DamagedRow):
        ops.find(table, 3, np.array([[0, 2, 0]], np.uint32))
    assert (ops.find(table, 3, np.array([[0, 2, 0]], np.uint32), check=False)[0] != 0).all()


def test_rows_of_format_2_are_held_to_their_own_check() -> None:
    rows = one_row(np.random.default_rng(2), 3, 3)
    with_check(rows, 3, 3, layout.sum_checks(rows, 3, 3))
    assert not ops.check_rows(rows, 3, 3).any()
    assert ops.check_rows(rows, 3, 3, old=True).all()
    gram = layout.unpack_keys(layout.row_keys(rows, 3), 3)
    for hit in (rows, rows ^ (np.arange(rows.shape[1]) == 40).astype(np.uint8)):
        table = ops.level_table([ops.IndexRun(3, 0, 0, *index_of([rows]), (lab.view(hit),))], 3, 9)
        if hit is rows:
            assert (ops.find(table, 3, gram)[0] != 0).all()
        else:
            with pytest.raises(ops.DamagedRow):
                ops.find(table, 3, gram)


def index_of(parts: list[layout.Bytes]) -> tuple[layout.Keys, int, bool]:
    slots, shift, _ = ops.build_index([layout.row_keys(part, 3) for part in parts])
    return slots, shift, False


@pytest.mark.parametrize("direct", [False, True])
@pytest.mark.parametrize("checked", [False, True])
def test_a_sound_row_in_another_ones_place_is_damage(direct: bool, checked: bool) -> None:
    """Each row is sound, but in another's place: only the index shows it."""
    order, vocab = 1 if direct else 3, 40
    grams = np.arange(1, 1 + 30 * order).reshape(30, order).astype(np.uint32)
    vectors = np.random.default_rng(0).standard_normal((30, layout.roles(3, order), 8)).astype(np.float32)
    rows = ops.encode(grams, vectors, 0, 3)
    run = lab.index_run([rows], order, 0, vocab=vocab if direct else None)
    ops.check_places(ops.level_table([run], 3, 8))
    moved = rows.copy()
    moved[[4, 9]] = rows[[9, 4]]
    view = lab.view(moved, checked=checked)
    table = ops.level_table([replace(run, segments=(view,))], 3, 8)
    text = grams[4].tolist() if order == 3 else [int(grams[4, 0])]
    for ask in (
        lambda: ops.find(table, order, grams[4:5]),
        lambda: lab.lookup(table, [text], 100),
        lambda: ops.check_places(table),
    ):
        with pytest.raises(ops.DamagedRow) as caught:
            ask()
        assert caught.value.row in (4, 9)
    assert (ops.find(table, order, grams[5:9])[0] != 0).all()
    assert ops.find(table, order, grams[4:5], check=False)[0].tolist() == [0]


def test_rows_of_format_1_need_no_check() -> None:
    """They have no checks: all rows are marked as verified from the start."""
    rows = one_row(np.random.default_rng(2), 3, 3)
    rows[:, layout.header_bytes(3, 3) - 8 : layout.header_bytes(3, 3)] = 0
    gram = layout.unpack_keys(layout.row_keys(rows, 3), 3)
    slots, shift, _ = ops.build_index([layout.row_keys(rows, 3)])
    old, new = lab.view(rows, checked=True), lab.view(rows)
    assert (
        ops.find(ops.level_table([ops.IndexRun(3, 0, 0, slots, shift, False, (old,))], 3, 9), 3, gram)[0] != 0
    ).all()
    with pytest.raises(ops.DamagedRow):
        ops.find(ops.level_table([ops.IndexRun(3, 0, 0, slots, shift, False, (new,))], 3, 9), 3, gram)
