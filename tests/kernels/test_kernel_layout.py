"""The layout of rows: bytes, storage types, and vectors that are refused."""

from __future__ import annotations

import itertools

import kernellab as lab
import numpy as np
import pytest
from hmi_kernels.lookup import layout, ops, reference

SHAPES = [(n, order) for n in range(1, layout.MAX_N + 1) for order in range(1, n + 1)]


def test_keys_of_all_orders_come_back_and_those_of_one_word_are_distinct() -> None:
    ids = [0, 1, 2, (1 << 19), (1 << 20) - 1]
    seen: set[int] = set()
    for order in range(1, layout.MAX_N + 1):
        ngrams = np.array(list(itertools.product(ids, repeat=order)), np.uint32)
        keys = layout.pack_keys(ngrams)
        assert keys.shape == (5**order, layout.words(order))
        assert np.array_equal(layout.unpack_keys(keys, order), ngrams)
        assert len(np.unique(keys, axis=0)) == 5**order
        if layout.words(order) == 1:
            seen.update(keys[:, 0].tolist())
    assert len(seen) == 5**3 + 5**2 + 5
    assert not seen & {0, layout.EMPTY_SLOT}


def test_rows_of_trigram_stores_lie_as_they_always_did() -> None:
    """The sizes of format 1, on which old files depend."""
    assert [layout.header_bytes(3, order) for order in (1, 2, 3)] == [32, 32, 32]
    assert [layout.roles(3, order) for order in (1, 2, 3)] == [3, 4, 3]
    assert layout.stride(3, 3, 384, layout.DTYPES["int8"]) == 1184
    rows = ops.encode(np.array([[1, 2, 3]], np.uint32), np.ones((1, 3, 4), np.float32), 0, 3)
    assert int.from_bytes(rows[0, :8].tobytes(), "little") == (3 << 62) | (1 << 42) | (2 << 21) | 3
    assert rows[0, 8:20].view("<f4").tolist() == [np.float32(1 / 127)] * 3


def test_two_word_keys_hold_the_last_three_ids_first() -> None:
    rows = ops.encode(np.array([[1, 2, 3, 4, 5]], np.uint32), np.ones((1, 5, 4), np.float32), 0, 5)
    assert int.from_bytes(rows[0, :8].tobytes(), "little") == (3 << 42) | (4 << 21) | 5
    assert int.from_bytes(rows[0, 8:16].tobytes(), "little") == (1 << 21) | 2


def test_a_causal_entry_has_one_vector() -> None:
    assert {layout.roles(n, order, "causal") for n, order in SHAPES} == {1}
    assert {layout.stride(n, order, 384, 0, "causal") for n, order in SHAPES} == {32 + 384}


@pytest.mark.parametrize("window", ["centred", "causal"])
@pytest.mark.parametrize("dtype", layout.DTYPES.values())
@pytest.mark.parametrize(("n", "order"), SHAPES)
@pytest.mark.parametrize("dim", [1, 7, 384])
def test_encode_decode_is_the_reference(
    dtype: int, n: int, order: int, dim: int, window: layout.Window
) -> None:
    rng = np.random.default_rng(dim)
    shape = (9, layout.roles(n, order, window), dim)
    vectors = (rng.standard_normal(shape) * 10.0 ** rng.integers(-6, 4)).astype(np.float32)
    vectors[0] = 0
    vectors[1, 0, 0] = 6e-8  # a subnormal half
    ngrams = rng.integers(0, layout.ID_LIMIT, (9, order)).astype(np.uint32)
    rows = ops.encode(ngrams, vectors, dtype, n, window)
    assert rows.shape == (9, layout.stride(n, order, dim, dtype, window))
    assert layout.header_bytes(n, order, window) % 16 == rows.shape[1] % 16 == 0
    assert np.array_equal(layout.row_keys(rows, order), layout.pack_keys(ngrams))
    assert np.array_equal(layout.decode(rows, n, order, dim, dtype, window), reference.stored(vectors, dtype))
    check_at = layout.header_bytes(n, order, window) - 8
    assert np.array_equal(
        rows[:, check_at : check_at + 8].copy().view("<u8")[:, 0], layout.row_checks(rows, n, order, window)
    )
    assert ops.check_rows(rows, n, order, window).all()


def test_vectors_that_are_a_view_encode_alike() -> None:
    """Every other vector of a larger array, and a reversed one."""
    rng = np.random.default_rng(0)
    large = rng.standard_normal((20, 3, 32)).astype(np.float32)
    ngrams = rng.integers(0, 100, (10, 3)).astype(np.uint32)
    for dtype in layout.DTYPES.values():
        assert np.array_equal(
            ops.encode(ngrams, large[::2, :, ::-2], dtype, 3),
            ops.encode(ngrams, large[::2, :, ::-2].copy(), dtype, 3),
        )


def test_every_kind_of_number_becomes_the_nearest_half() -> None:
    """Normal and subnormal halves, ties between two, and numbers that round to zero or up
    to the smallest normal one."""
    rng = np.random.default_rng(0)
    finite = np.arange(0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    between = (finite[:-1].astype(np.float64) + finite[1:]) / 2  # ties are exact in single precision
    near = [np.nextafter(np.float32(between), np.float32(way)) for way in (-1, 1e9)]
    rest = rng.integers(0, 0x477FF000, 40_000).astype(np.uint32).view(np.float32)
    numbers = np.concatenate([finite, np.float32(between), *near, rest])
    numbers = np.concatenate([numbers, -numbers])
    vectors = np.resize(numbers, (1, 3, -(-numbers.size // 3)))
    rows = ops.encode(np.ones((1, 3), np.uint32), vectors, layout.DTYPES["fp16"], 3)
    stored = rows[0, 32 : 32 + vectors.size * 2].view(np.uint16)
    assert np.array_equal(stored, vectors.astype(np.float16).view(np.uint16).ravel())
    for dtype in (0, 2):
        assert len(ops.encode(np.ones((1, 3), np.uint32), vectors, dtype, 3)) == 1


def test_rows_can_be_written_where_the_caller_wants_them() -> None:
    """Every byte is written, padding too."""
    rng = np.random.default_rng(0)
    for n, order in SHAPES:
        for dtype in layout.DTYPES.values():
            vectors = rng.standard_normal((5, layout.roles(n, order), 7)).astype(np.float32)
            ngrams = rng.integers(0, 100, (5, order)).astype(np.uint32)
            place = np.full((9, layout.stride(n, order, 7, dtype)), 0xAB, np.uint8)
            assert np.shares_memory(ops.encode(ngrams, vectors, dtype, n, out=place[2:7]), place)
            assert np.array_equal(place[2:7], ops.encode(ngrams, vectors, dtype, n))
            assert (place[[0, 1, 7, 8]] == 0xAB).all()


def test_precision_of_each_type() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 3, 64)).astype(np.float32)
    peak = np.abs(vectors).max(axis=-1, keepdims=True)
    assert (np.abs(reference.stored(vectors, 0) - vectors) <= peak / 254 * 1.001).all()
    assert (np.abs(reference.stored(vectors, 1) - vectors) <= np.abs(vectors) * 2.0**-11 + 1e-7).all()
    assert np.array_equal(reference.stored(vectors, 2), vectors)


def test_bfloat16_is_the_nearest_and_a_tie_goes_to_even() -> None:
    bits = np.array([0x3F800000, 0x3F808000, 0x3F818000, 0x3F808001, 0xC0407FFF, 0x00000000], np.uint32)
    nearest = reference.bfloat16(bits.view(np.float32))
    assert nearest.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81, 0xC040, 0]


@pytest.mark.parametrize("dtype", layout.DTYPES.values())
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_an_invalid_number_is_refused(dtype: int, bad: float) -> None:
    vectors = np.zeros((2, 3, 5), np.float32)
    vectors[1, 2, 4] = bad
    with pytest.raises(ValueError, match="infinite"):
        ops.encode(np.ones((2, 3), np.uint32), vectors, dtype, 3)


@pytest.mark.parametrize("dtype", [0, 2])
def test_what_a_look_up_could_not_add_up_is_refused(dtype: int) -> None:
    """int8 of 3.4e38 would come back as infinity; a sum of three of 2e38 is infinite in any type."""
    one = np.ones((1, 3), np.uint32)
    for large in (np.finfo(np.float32).max, -3e38, 2.0**124, -(2.0**124)):
        vectors = np.zeros((1, 3, 4), np.float32)
        vectors[0, 2, 1] = large
        with pytest.raises(ValueError, match="too large"):
            ops.encode(one, vectors, dtype, 3)
    nearly = np.nextafter(np.float32(2.0**124), np.float32(0))
    for n in range(1, layout.MAX_N + 1):  # the largest sum there is
        inside = [[int(0 <= i + p - layout.before(n) < 9) for p in range(n)] for i in range(9)]
        whole = np.unique(np.array(inside, np.uint32), axis=0)
        rows = ops.encode(whole, np.full((len(whole), n, 8), nearly), dtype, n)
        table = ops.level_table([lab.index_run([rows], n, dtype)], n, 8)
        out, order, _ = lab.lookup(table, [[1] * 9], 5)
        assert (order == n).all()
        assert np.isfinite(out).all()
        halves = lab.lookup(table, [[1] * 9], 5, np.uint16)[0]
        assert np.isfinite((halves.astype(np.uint32) << 16).view(np.float32)).all()


def test_vectors_too_small_for_a_scale_are_zeros() -> None:
    """A scale below the smallest normal number has too few bits: vectors would be off by up to a third."""
    rng = np.random.default_rng(0)
    for exponent in range(-149, -100):
        vectors = (rng.uniform(-1, 1, (50, 3, 8)) * 2.0**exponent).astype(np.float32)
        back = layout.decode(ops.encode(np.ones((50, 3), np.uint32), vectors, 0, 3), 3, 3, 8, 0)
        assert np.array_equal(back, reference.stored(vectors, 0))
        peak = np.abs(vectors).max(axis=-1, keepdims=True)
        stored = np.abs(back).max(axis=-1, keepdims=True) > 0
        assert (stored == (peak / np.float32(127) >= 2.0**-126)).all()
        assert (
            np.abs(back - vectors)[np.broadcast_to(stored, back.shape)]
            <= np.broadcast_to(peak / 254 * 1.001, back.shape)[np.broadcast_to(stored, back.shape)]
        ).all()


def test_too_large_for_a_half_is_refused() -> None:
    half, one = layout.DTYPES["fp16"], np.ones((1, 3), np.uint32)
    for large in (1e6, 65520.0, -65520.0):  # the last two would round to infinity
        with pytest.raises(ValueError, match="too large"):
            ops.encode(one, np.full((1, 3, 4), large, np.float32), half, 3)
    nearly = np.nextafter(np.float32(65520), np.float32(0))
    assert (layout.decode(ops.encode(one, np.full((1, 3, 4), nearly), half, 3), 3, 3, 4, half) == 65504).all()
