"""No wrong vector is ever returned: rows are checked when they are first used."""

from __future__ import annotations

import os

import kernellab as lab
import numpy as np
import pytest
from hmi_kernels import layout, ops
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


@settings(max_examples=200, deadline=None)
@given(seed=st.integers(0, 1 << 30), shape=st.sampled_from(SHAPES))
def test_any_damage_within_a_word_is_found(seed: int, shape: tuple[int, int]) -> None:
    rng = np.random.default_rng(seed)
    rows = one_row(rng, *shape)
    words = rows.view(np.uint64)
    words[0, rng.integers(words.shape[1])] ^= rng.integers(1, 1 << 63, dtype=np.uint64)
    assert not ops.check_rows(rows, *shape).any()
    assert (layout.row_checks(rows, *shape) != words[:, layout.header_bytes(*shape) // 8 - 1]).all()


def flip_a_bit_and_look_up(n: int, seed: int) -> bool:
    """A text over a damaged chain raises and names the row, or never needed it. Whether it raised."""
    rng = np.random.default_rng(seed)
    _, table = lab.random_chain(rng, [0, 1], 8, 5, n)
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


@pytest.mark.parametrize("n", [3, 5])
def test_a_flipped_bit_is_an_error_or_was_never_read(n: int) -> None:
    assert 0 < sum(flip_a_bit_and_look_up(n, seed) for seed in range(30)) < 30


@pytest.mark.slow
@pytest.mark.parametrize("n", [1, 2, 3, 4, 5])
def test_many_flipped_bits(n: int) -> None:
    raised = sum(flip_a_bit_and_look_up(n, seed) for seed in range(int(os.environ.get("KERNEL_FLIPS", "500"))))
    assert raised > 0


def test_a_row_is_checked_once() -> None:
    """What has been verified is trusted until it is mapped again; a scrub finds later damage."""
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


def test_rows_of_format_1_need_no_check() -> None:
    """They have none: all their bits are set from the start."""
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
