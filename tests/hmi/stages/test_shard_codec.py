"""The codec of shards against slow obvious references: dictionaries, outliers, packing, decoding in place."""

from __future__ import annotations

import numpy as np
import pytest
from hmi_kernels.shards import ops
from hypothesis import given, settings
from hypothesis import strategies as st

from hmi.stages.elastic_shards.codec import (
    THRESHOLD,
    Dictionary,
    Floats,
    Gaussian,
    LayerBuffer,
    LayerCodec,
    LayerCut,
    ShardedLayer,
)
from hmi.stages.elastic_shards.versions import BITS, FULL, VERSIONS

SIZES = [(32, 4, 64), (24, 2, 10), (30, 3, 7)]
"""dim, heads and ffn: all rows are a multiple of eight numbers long, some are, few are."""


def weights(dim: int, ffn: int, seed: int = 0, scale: float = 0.05) -> ShardedLayer:
    rng = np.random.default_rng(seed)
    sizes = ((3 * dim, dim), (dim, dim), (ffn, dim), (dim, ffn))
    return ShardedLayer(*((rng.standard_t(5, size) * scale).astype(np.float32) for size in sizes))


def shuffled(dim: int, heads: int, ffn: int) -> LayerCut:
    rng = np.random.default_rng(5)
    return LayerCut.ordered(dim, rng.permutation(heads).tolist(), rng.permutation(ffn))


def flat(w: ShardedLayer) -> Floats:
    return np.concatenate([w.qkv.ravel(), w.o.ravel(), w.fi.ravel(), w.fo.ravel()])


@given(bits=st.sampled_from(BITS), codes=st.lists(st.integers(0, 255), max_size=70))
def test_packing_is_a_round_trip_of_the_stated_size(bits: int, codes: list[int]) -> None:
    given_codes = np.array(codes, np.uint8) & (2**bits - 1)
    packed = ops.pack(given_codes, bits)
    assert len(packed) == ops.packed_bytes(len(codes), bits)
    slow = sum(int(code) << (bits * i) for i, code in enumerate(given_codes))
    assert int.from_bytes(packed.tobytes(), "little") == slow
    assert np.array_equal(ops.unpack(packed, len(codes), bits), given_codes)


@settings(max_examples=40, deadline=None)
@given(
    bits=st.sampled_from(BITS),
    seed=st.integers(0, 2**32 - 1),
    scale=st.sampled_from([1e-3, 0.04, 1.0, 30.0]),
    ties=st.booleans(),
)
def test_bins_are_equal_and_outliers_exact(bits: int, seed: int, scale: float, ties: bool) -> None:
    drawn = np.random.default_rng(seed).standard_t(4, (3, 400)) * scale
    shards = list((np.round(drawn / scale) * scale if ties else drawn).astype(np.float32))
    codec, whole = LayerCodec(shards), np.concatenate(shards)
    table, blobs = codec.encoded(bits)
    mean, std = whole.astype(np.float64).mean(), whole.astype(np.float64).std()
    likelihood = -0.5 * np.log(2 * np.pi * std**2) - (whole - mean) ** 2 / (2 * std**2)
    outside = likelihood < THRESHOLD
    assert codec.outliers == pytest.approx(outside.mean(), abs=1e-12)

    codes = np.concatenate([ops.unpack(blob, 400, bits) for blob in blobs])
    bins = np.bincount(codes[~outside], minlength=2**bits)
    if (~outside).any():
        assert bins.max() - bins.min() <= 1
    for code in np.unique(codes[~outside]):
        mine = whole[~outside & (codes == code)].astype(np.float64)
        assert table[code] == np.float32(mine.mean()) or abs(table[code] - mine.mean()) < 1e-6 * scale
        below = whole[~outside & (codes < code)]
        assert not len(below) or below.max() <= mine.min(), "bins hold ranges of sorted weights"

    got = np.empty((3, 400), np.float32)
    for row, blob in zip(got, blobs, strict=True):
        ops.Destination([ops.Block(row[None])]).write(blob, bits, Dictionary(table).pairs)
    assert np.array_equal(got.ravel()[outside], whole[outside])
    assert np.array_equal(got.ravel()[~outside], table[codes[~outside]])


def test_the_distance_of_outliers_depends_on_the_scale() -> None:
    assert Gaussian(0, 0.04).reach == pytest.approx(3.55, abs=0.005)
    assert Gaussian(0, 1.0).reach == pytest.approx(2.48, abs=0.005)
    assert Gaussian(0, 30.0).reach == 0
    assert not Gaussian(2.0, 0.0).outliers(np.full(4, 2, np.float32)).any()


@pytest.mark.parametrize("cut_by", [LayerCut.plain, shuffled], ids=["plain", "ordered"])
@pytest.mark.parametrize("size", SIZES, ids=str)
@pytest.mark.parametrize("bits", VERSIONS)
def test_decoded_shards_are_the_layer(size: tuple[int, int, int], bits: int, cut_by: object) -> None:
    dim, heads, ffn = size
    assert callable(cut_by)
    cut, w = cut_by(dim, heads, ffn), weights(dim, ffn)
    codec = LayerCodec([cut.weights_of(w, shard) for shard in range(heads)])
    table, blobs = codec.encoded(bits)
    pairs = Dictionary(table).pairs if bits != FULL else None
    whole = LayerBuffer(cut)
    for shard in range(heads):
        whole.decode(shard, bits, blobs[shard], pairs)
    before, after = flat(w), flat(whole.weights)
    if bits == FULL:
        assert np.array_equal(before, after)
        return
    outside = codec.gaussian.outliers(before)
    assert np.array_equal(before[outside], after[outside])
    assert outside.any()
    assert len(np.unique(after[~outside])) <= 2**bits
    assert np.array_equal(after[~outside], _slow(before, outside, bits))


def _slow(before: Floats, outside: np.ndarray, bits: int) -> Floats:
    """The mean of each weight's bin, from the weight's rank."""
    inside = before[~outside]
    rank = np.empty(len(inside), np.int64)
    rank[np.argsort(inside, kind="stable")] = np.arange(len(inside))
    bins = rank * 2**bits // len(inside)
    means = [inside[bins == b].mean(dtype=np.float64) for b in range(2**bits)]
    return np.array(means, np.float32)[bins]
