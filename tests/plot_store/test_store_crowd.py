"""N-grams chosen to crowd together in an index, by somebody who writes the corpus: they cost what others
cost."""

from __future__ import annotations

import numpy as np
import plotlab as lab
import pytest
from hmi_kernels.lookup import layout, ops

from plot_store import Store
from plot_store.ground.errors import Invalid
from plot_store.writing import indexing

MULTIPLIER = 0xD6E8FEB86659FD93
COVERS = [("ab" * 16, 3000)]


def crowd(count: int, salt: int, place: int = 0x12345678) -> np.ndarray:
    """Trigrams with one home under a salt, uint32 [count, 3]: the index's hash turned back."""
    half, inverse = np.uint64(32), np.uint64(pow(MULTIPLIER, -1, 1 << 64))
    k = np.arange(40 * count, dtype=np.uint64) | np.uint64(place << 32)
    k = k * np.uint64(pow(salt, -1, 1 << 64)) ^ np.uint64(salt >> 1)
    for _ in range(2):
        k = (k ^ k >> half) * inverse
    keys = (k ^ k >> half)[:, None]
    grams = layout.unpack_keys(keys, 3)
    real = grams[layout.pack_keys(grams)[:, 0] == keys[:, 0]]
    assert len(real) >= count
    return real[:count]


def salt_of(grams: np.ndarray, rightly: int) -> int:
    """The salt under which `_hash_index` indexes these n-grams; every one of them is found."""
    keys = layout.pack_keys(grams)
    built = indexing._hash_index([keys], COVERS)
    assert built.distinct == len(grams)
    assert int((built.slots != layout.EMPTY_SLOT).sum()) == len(grams)
    assert built.salt & 1 == rightly
    return built.salt


def test_chosen_n_grams_are_indexed_like_any_others(store: Store) -> None:
    """80,000 with one home before it was salted: every probe read them all."""
    grams = crowd(80_000, layout.PLAIN_SALT)
    rows = np.ones((len(grams), 3, 4), np.float32)
    with pytest.raises(ops.Crowded):
        ops.build_index([layout.pack_keys(grams)])
    version = lab.put(store, "r", {3: (grams, rows)}, vocab=layout.ID_LIMIT, segment_bytes=1 << 20)
    index = next(s for s in version.segments if s.kind == "index")
    with store.reader("r") as reader:
        segment = next(s for s in reader._mapped.segments if s.info == index)  # type: ignore[union-attr]
        free = np.flatnonzero(segment.slots == layout.EMPTY_SLOT)
        assert np.diff(free).max() < 512  # no probe goes further than to the next free slot
        lab.same_as(reader, [lab.entries({3: (grams[:20], rows[:20])})], grams[:20].tolist())
        away = crowd(90_000, layout.PLAIN_SALT)[80_000:]
        assert not reader.contains(3, away).any()


def test_a_salt_that_crowds_them_is_not_the_one_taken() -> None:
    """Even one who knew the first salt, which nobody can."""
    usual = salt_of(crowd(3000, layout.PLAIN_SALT), 1)
    assert salt_of(crowd(3000, usual), 1) != usual
    assert salt_of(crowd(layout.REACH, usual), 1) == usual  # as many are allowed


def test_where_every_salt_crowds_them_the_build_ends(monkeypatch: pytest.MonkeyPatch, store: Store) -> None:
    def never(keys: object, salt: int) -> object:
        raise ops.Crowded

    monkeypatch.setattr(ops, "build_index", never)
    with pytest.raises(Invalid, match=r"crowd together .* under every salt"):
        lab.put(store, "r", lab.content(1))
    lab.check(store)
