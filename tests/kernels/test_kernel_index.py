"""The index: the newest row wins, equal fingerprints do no harm, and no damage leads outside the rows."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import kernellab as lab
import numpy as np
import pytest
from hmi_kernels.lookup import layout, ops, table
from hmi_kernels.lookup.layout import Bytes

MASK = (1 << 64) - 1
FP32 = layout.DTYPES["fp32"]


def rows_of(ngrams: np.ndarray, fill: float, n: int = 3) -> Bytes:
    vectors = np.full((len(ngrams), layout.roles(n, ngrams.shape[1]), 2), fill, np.float32)
    return ops.encode(ngrams.astype(np.uint32), vectors, FP32, n)


def table_of(run: ops.IndexRun, n: int = 3) -> ops.LevelTable:
    return ops.level_table([run], n, 2)


def unmix(hashed: int) -> int:
    """The inverse of the index's hash."""
    inverse = pow(lab.MULTIPLIER, -1, 1 << 64)
    k = hashed
    for _ in range(2):
        k ^= k >> 32
        k = k * inverse & MASK
    return k ^ (k >> 32)


def same_fingerprint(count: int) -> np.ndarray:
    """Trigrams with equal fingerprints, uint32 [count, 3]: those inverted hashes that are keys."""
    found: list[list[int]] = []
    high = 0
    while len(found) < count:
        key = unmix((high << 32) | 0xABCD1234)
        high += 1
        gram = layout.unpack_keys(np.array([[key]], np.uint64), 3)
        if layout.pack_keys(gram)[0, 0] == key:
            found.append(gram[0].tolist())
    return np.array(found, np.uint32)


@pytest.mark.parametrize(("n", "order"), [(1, 1), (3, 3), (3, 2), (4, 4), (5, 5), (5, 4)])
def test_every_key_is_found_and_no_other(n: int, order: int) -> None:
    rng = np.random.default_rng(1)
    span = 30_000 if order == 1 else 300
    ngrams = np.unique(rng.integers(0, span, (20_000, order)), axis=0)
    rng.shuffle(ngrams)
    inside, outside = ngrams[:9000], ngrams[9000:]
    run = lab.index_run([rows_of(part, 1.0, n) for part in np.array_split(inside, 7)], order, FP32)
    table = table_of(run, n)
    assert int((run.slots != layout.EMPTY_SLOT).sum()) == 9000
    addresses, levels = ops.find(table, order, inside.astype(np.uint32))
    assert (addresses != 0).all()
    assert (levels == 0).all()
    assert (ops.find(table, order, outside.astype(np.uint32))[0] == 0).all()


def test_words_of_long_keys_both_count() -> None:
    """5-grams that differ in one id only, in either word of the key."""
    grams = np.array([[1, 2, 3, 4, 5], [1, 9, 3, 4, 5], [1, 2, 3, 4, 9], [3, 4, 5, 1, 2]])
    table = table_of(lab.index_run([rows_of(grams[:1], 1.0, 5)], 5, FP32), 5)
    assert (ops.find(table, 5, grams.astype(np.uint32))[0] != 0).tolist() == [True, False, False, False]


@pytest.mark.parametrize("order", [3, 5])
def test_of_equal_keys_the_newest_wins(order: int) -> None:
    same = np.array([[1, 2, 3, 7, 7][:order], [4, 5, 6, 7, 7][:order], [1, 2, 3, 7, 7][:order]])
    first, second = rows_of(same, 1.0, order), rows_of(same[1:2], 2.0, order)
    slots, shift, distinct = ops.build_index([layout.row_keys(part, order) for part in (first, second)])
    run = ops.IndexRun(order, 0, FP32, slots, shift, False, (lab.view(first), lab.view(second)))
    addresses, _ = ops.find(table_of(run, order), order, same[:2].astype(np.uint32))
    assert distinct == 2
    assert addresses.tolist() == [first.ctypes.data + 2 * first.shape[1], second.ctypes.data]


def test_a_direct_index_means_what_a_hash_index_means() -> None:
    rng = np.random.default_rng(3)
    parts = [rows_of(rng.integers(0, 50, (40, 1)), float(i)) for i in range(3)]
    keys = [layout.row_keys(part, 1) for part in parts]
    views = tuple(map(lab.view, parts))
    hashed, direct = ops.build_index(keys), ops.build_direct(keys, 60)
    assert hashed[1:] == direct[1:]
    assert direct[0].size == 60
    everything = np.arange(1 << 10, dtype=np.uint32)[:, None]  # ids beyond the vocabulary, too
    addresses = [
        ops.find(table_of(ops.IndexRun(1, 0, FP32, slots, shift, flag, views)), 1, everything)[0]
        for (slots, shift, _), flag in ((hashed, False), (direct, True))
    ]
    assert np.array_equal(*addresses)
    assert int((addresses[0] != 0).sum()) == direct[2]


def test_keys_of_one_fingerprint_are_told_apart() -> None:
    grams = same_fingerprint(40)
    run = lab.index_run([rows_of(grams[:-1], 1.0)], 3, FP32)
    base, stride = run.segments[0].rows.ctypes.data, run.segments[0].rows.shape[1]
    addresses, _ = ops.find(table_of(run), 3, grams)
    assert addresses.tolist() == [*(base + i * stride for i in range(39)), 0]


def test_a_fingerprint_that_lies_sends_the_look_up_on_to_the_next_version() -> None:
    """The near version has only another n-gram with this fingerprint: the far version
    serves, also in a look-up."""
    near, far = same_fingerprint(2)
    runs = [
        lab.index_run([rows_of(gram[None], fill)], 3, FP32, depth=depth)
        for depth, (gram, fill) in enumerate([(near, 1.0), (far, 2.0)])
    ]
    table = ops.level_table(runs, 3, 2)
    text = far.tolist()
    out, order, depth = lab.lookup(table, [text], layout.ID_LIMIT)
    assert order.tolist() == [0, 3, 0]
    assert depth.tolist() == [-1, 1, -1]
    assert (out == 2.0).all()
    out, order, _ = lab.lookup(ops.level_table(runs[:1], 3, 2), [text], layout.ID_LIMIT)
    assert (order == 0).all()
    assert (out == 0).all()


@pytest.mark.parametrize(("order", "direct"), [(1, False), (1, True), (3, False), (5, False)])
@pytest.mark.parametrize("seed", range(8))
def test_a_damaged_index_never_leads_to_a_wrong_row(seed: int, order: int, direct: bool) -> None:
    rng = np.random.default_rng(seed)
    ngrams = np.unique(rng.integers(0, 400 if order == 1 else 50, (500, order)), axis=0).astype(np.uint32)
    parts = [rows_of(part, 1.0, order) for part in np.array_split(ngrams, 3)]
    run = lab.index_run(parts, order, FP32, vocab=400 if direct else None)
    slots = run.slots.copy()
    if seed % 2:
        hit = rng.integers(0, slots.size, slots.size // 2)
        slots[hit] ^= np.uint64(1) << rng.integers(0, 64, hit.size).astype(np.uint64)
    else:  # no slot is free: a probe must still end
        slots[:] = rng.integers(0, 1 << 63, slots.size).astype(np.uint64) * np.uint64(2)
    damaged = replace(run, slots=slots)
    table = table_of(damaged, order)
    addresses, _ = ops.find(table, order, ngrams, check=False)
    for address, gram in zip(addresses.tolist(), ngrams, strict=True):
        if address:
            rows = next(v.rows for v in run.segments if 0 <= address - v.rows.ctypes.data < v.rows.nbytes)
            offset = address - rows.ctypes.data
            assert offset % rows.shape[1] == 0
            assert np.array_equal(
                layout.row_keys(rows[offset // rows.shape[1]][None], order), layout.pack_keys(gram[None])
            )
    with suppress(ops.DamagedRow):  # of a row other than the index means
        lab.lookup(table, [ngrams[:, 0].tolist()], layout.ID_LIMIT)  # the fused look-up survives it, too


@pytest.mark.parametrize("window", ["centred", "causal"])
def test_candidates_are_the_rows_of_a_look_up_and_no_row_is_read(window: layout.Window) -> None:
    """With zeros in all rows, the addresses are the same."""
    rng = np.random.default_rng(7)
    _, table = lab.random_chain(rng, [0, 2, 1], 8, 6, window=window)
    texts = [rng.integers(0, 6, k).tolist() for k in (30, 0, 1, 300)]
    tokens, offsets = lab.ragged(texts)
    before = ops.candidates(table, tokens, offsets)
    lab.lookup(table, texts, 6)
    touched = {
        view.rows.ctypes.data + row * view.rows.shape[1]
        for run in table.runs
        for view in run.segments
        for row in np.flatnonzero(np.unpackbits(view.verified.view(np.uint8), bitorder="little"))
    }
    assert set(before.tolist()) == touched
    for order in (1, 2, 3):
        ngrams = rng.integers(0, 6, (50, order)).astype(np.uint32)
        found, _ = ops.find(table, order, ngrams)
        assert ops.places(table, order, ngrams).tolist() == found[found != 0].tolist()
    for run in table.runs:
        for view in run.segments:
            view.rows[:] = 0
    assert np.array_equal(ops.candidates(table, tokens, offsets), before)


@pytest.mark.parametrize("most", [table.FILTER_BYTES, 1 << 12])
@pytest.mark.parametrize("depth", [1, 2, 5, 9, 14, 61, 63, 70])
def test_filters_hide_no_level(depth: int, most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Chains of one level, of several that share a filter, and of more than a filter or a word of bits
    holds; filters with all their groups, and with fewer."""
    monkeypatch.setattr(table, "FILTER_BYTES", most)
    rng = np.random.default_rng(depth)
    runs, everything = [], []
    for level in range(depth):
        grams = rng.integers(0, 40, (30, 3)).astype(np.uint32)
        everything.append(grams)
        runs.append(lab.index_run([rows_of(grams, float(level))], 3, FP32, depth=level))
    found_in = ops.level_table(runs, 3, 2)
    assert all(words.nbytes <= most for words in found_in.filters)
    for text in np.concatenate(everything).tolist():
        nearest = next(level for level, grams in enumerate(everything) if (grams == text).all(axis=1).any())
        _, order, found = lab.lookup(found_in, [text], 64)
        assert (order[1], found[1]) == (3, nearest)


def test_more_rows_than_a_row_id_can_number() -> None:
    one = layout.row_keys(rows_of(np.array([[1, 1, 1]]), 1.0), 3)
    with pytest.raises(ValueError, match="more rows"):
        ops.build_index([np.repeat(one, 1 << 17, axis=0)] + [one] * (1 << 15))
    many = np.broadcast_to(one, (1 << 26, 1))  # takes no memory
    with pytest.raises(ValueError, match="more rows"):
        ops.build_index([many] * 48 + [one])  # all could be numbered, and the slots could not
    with pytest.raises(ValueError, match="more rows"):
        ops.build_direct([many] * 48 + [one], 60)


SALT = 0x9D39247E33776D41


def home(key: int, cap: int, salt: int = SALT) -> int:
    """The home of an n-gram whose key is one word, as docs/plot-format.md defines it."""
    k = key
    for _ in range(2):
        k = (k ^ k >> 32) * lab.MULTIPLIER & MASK
    hashed = k ^ k >> 32
    return ((((hashed ^ salt >> 1) * salt) & MASK) >> 32) * cap >> 32


def test_n_grams_chosen_to_crowd_together_do_not_under_a_salt() -> None:
    """Entering 80,000 n-grams with one home used to take 3.2 thousand million steps."""
    keys = layout.pack_keys(lab.crowd(80_000))
    with pytest.raises(ops.Crowded):
        ops.build_index([keys])
    slots, _, distinct = ops.build_index([keys], SALT)
    assert distinct == 80_000
    taken = np.flatnonzero(slots != layout.EMPTY_SLOT)
    homes = np.array([home(int(keys[int(slots[p]) & 0xFFFFFFFF, 0]), slots.size) for p in taken])
    away = (taken - homes) % slots.size
    assert away.max() < layout.REACH
    assert away.mean() < 8  # it is 1.5 for random keys


def test_a_search_ends_at_the_reach() -> None:
    """An n-gram is found in the last slot of the reach and not in the slot after it."""
    gram = np.array([[1, 2, 3]], np.uint32)
    rows = rows_of(gram, 1.0)
    key = int(layout.pack_keys(gram)[0, 0])
    hashed = key
    for _ in range(2):
        hashed = (hashed ^ hashed >> 32) * lab.MULTIPLIER & MASK
    mark = (hashed ^ hashed >> 32) & 0xFFFFFFFF
    cap = 3000
    for salt in (SALT, layout.PLAIN_SALT):
        for reach in (layout.REACH, 1, 7, cap):
            for away, there in ((reach - 1, True), (reach, reach == cap)):
                slots = np.full(cap, (mark ^ 1) << 32, np.uint64)  # other n-grams in all slots
                slots[(home(key, cap, salt) + away) % cap] = mark << 32
                run = ops.IndexRun(3, 0, FP32, slots, 1, False, (lab.view(rows),), salt, reach)
                assert (ops.find(table_of(run), 3, gram)[0] != 0).tolist() == [there], (reach, away)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_levels_of_different_salts_serve_one_text(order: int) -> None:
    rng = np.random.default_rng(order)
    runs, everything = [], []
    for depth, salt in enumerate([SALT, layout.PLAIN_SALT, MASK]):
        grams = np.unique(rng.integers(1, 30, (200, order)), axis=0).astype(np.uint32)
        rows = rows_of(grams, float(depth), order)
        slots, shift, _ = ops.build_index([layout.row_keys(rows, order)], salt)
        runs.append(ops.IndexRun(order, depth, FP32, slots, shift, False, (lab.view(rows),), salt))
        everything.append(set(map(tuple, grams.tolist())))
    table = ops.level_table(runs, order, 2)
    asked = rng.integers(1, 30, (3000, order)).astype(np.uint32)
    nearest = [
        next((d for d, grams in enumerate(everything) if tuple(g) in grams), -1) for g in asked.tolist()
    ]
    levels = ops.find(table, order, asked)[1]
    assert levels.tolist() == nearest


def test_an_empty_index() -> None:
    slots, shift, distinct = ops.build_index([])
    assert distinct == 0
    table = table_of(ops.IndexRun(3, 0, FP32, slots, shift, False, ()))
    assert ops.find(table, 3, np.ones((2, 3), np.uint32))[1].tolist() == [-1, -1]
