"""N-grams that a corpus's author chose to crowd together in an index cost no more than others."""

from __future__ import annotations

import numpy as np
import plotlab as lab
import pytest
from hmi_kernels.lookup import layout, ops
from kernellab import crowd

from plot_store import Store
from plot_store.ground.errors import Invalid
from plot_store.writing import indexing

COVERS = [("ab" * 16, 3000)]


def salt_of(grams: np.ndarray, rightly: int) -> int:
    """The salt that `_hash_index` chose for these n-grams, all of which it indexed."""
    keys = layout.pack_keys(grams)
    built = indexing._hash_index([keys], COVERS)
    assert built.distinct == len(grams)
    assert int((built.slots != layout.EMPTY_SLOT).sum()) == len(grams)
    assert built.salt & 1 == rightly
    return built.salt


def test_chosen_n_grams_are_indexed_like_any_others(store: Store) -> None:
    """Without a salt, 80,000 n-grams have one home, and every probe reads them all."""
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


def test_a_salt_that_crowds_them_is_not_chosen() -> None:
    """This holds even for an author who knows the first salt, which nobody can."""
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
