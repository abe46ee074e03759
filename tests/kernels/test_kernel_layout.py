"""How a row lies in memory, and that the package stays importable beside others of its name."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest

import kernels
from kernels import layout, ops, reference


def test_package_file_is_empty() -> None:
    assert Path(kernels.__file__).read_bytes() == b""  # transformers tries `from kernels import ...`


def test_keys_of_all_orders_are_distinct_and_come_back() -> None:
    ids = [0, 1, 2, (1 << 19), (1 << 20) - 1]
    seen: set[int] = set()
    for order in layout.ORDERS:
        ngrams = np.array(list(itertools.product(ids, repeat=order)), np.uint32)
        keys = layout.pack_keys(ngrams)
        assert np.array_equal(layout.unpack_keys(keys, order), ngrams)
        assert layout.EMPTY_SLOT not in keys
        assert 0 not in keys
        seen.update(keys.tolist())
    assert len(seen) == 5**3 + 5**2 + 5


@pytest.mark.parametrize("dtype", layout.DTYPES.values())
@pytest.mark.parametrize("order", layout.ORDERS)
@pytest.mark.parametrize("dim", [1, 7, 384])
def test_encode_decode_is_the_reference(dtype: int, order: int, dim: int) -> None:
    rng = np.random.default_rng(dim)
    vectors = (rng.standard_normal((9, layout.ROLES[order], dim)) * 10.0 ** rng.integers(-6, 4)).astype(np.float32)
    vectors[0] = 0
    vectors[1, 0, 0] = 6e-8  # a subnormal half
    ngrams = rng.integers(0, layout.ID_LIMIT, (9, order)).astype(np.uint32)
    rows = ops.encode(ngrams, vectors, dtype)
    assert rows.shape == (9, layout.stride(order, dim, dtype))
    assert np.array_equal(layout.row_keys(rows), layout.pack_keys(ngrams))
    assert np.array_equal(layout.decode(rows, order, dim, dtype), reference.stored(vectors, dtype))


def test_key_bytes_are_little_endian() -> None:
    rows = ops.encode(np.array([[1, 2, 3]], np.uint32), np.ones((1, 3, 4), np.float32), 0)
    assert int.from_bytes(rows[0, :8].tobytes(), "little") == (3 << 62) | (1 << 42) | (2 << 21) | 3


def test_precision_of_each_type() -> None:
    vectors = np.random.default_rng(0).standard_normal((50, 3, 64)).astype(np.float32)
    peak = np.abs(vectors).max(axis=-1, keepdims=True)
    assert (np.abs(reference.stored(vectors, 0) - vectors) <= peak / 254 * 1.001).all()
    assert (np.abs(reference.stored(vectors, 1) - vectors) <= np.abs(vectors) * 2.0**-11 + 1e-7).all()
    assert np.array_equal(reference.stored(vectors, 2), vectors)


@pytest.mark.parametrize("dtype", layout.DTYPES.values())
@pytest.mark.parametrize("bad", [np.inf, -np.inf, np.nan])
def test_a_number_that_is_none_is_refused(dtype: int, bad: float) -> None:
    vectors = np.zeros((2, 3, 5), np.float32)
    vectors[1, 2, 4] = bad
    with pytest.raises(ValueError, match="infinite"):
        ops.encode(np.ones((2, 3), np.uint32), vectors, dtype)


def test_too_large_for_a_half_is_refused() -> None:
    with pytest.raises(ValueError, match="too large"):
        ops.encode(np.ones((1, 3), np.uint32), np.full((1, 3, 4), 1e6, np.float32), layout.DTYPES["fp16"])
