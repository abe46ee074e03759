"""The index: newest wins, equal fingerprints, and that no damage of it can lead outside the rows."""

from __future__ import annotations

import numpy as np
import pytest

from kernels import layout, ops
from kernels.layout import Bytes, Keys

MASK = (1 << 64) - 1
MULTIPLIER = 0xD6E8FEB86659FD93


def make_run(parts: list[Bytes], order: int = 3) -> tuple[ops.IndexRun, int]:
    slots, shift, distinct = ops.build_index([layout.row_keys(part) for part in parts])
    return ops.IndexRun(order, 0, 2, slots, shift, tuple(parts)), distinct


def rows_of(ngrams: np.ndarray, fill: float) -> Bytes:
    vectors = np.full((len(ngrams), layout.ROLES[ngrams.shape[1]], 2), fill, np.float32)
    return ops.encode(ngrams.astype(np.uint32), vectors, 2)


def unmix(hashed: int) -> int:
    """The inverse of the index's hash."""
    inverse = pow(MULTIPLIER, -1, 1 << 64)
    k = hashed
    for _ in range(2):
        k ^= k >> 32
        k = k * inverse & MASK
    return k ^ (k >> 32)


def raw_rows(keys: list[int]) -> Bytes:
    rows = rows_of(np.zeros((len(keys), 3), np.uint32), 1.0)
    rows[:, :8] = np.array(keys, "<u8").view(np.uint8).reshape(-1, 8)
    return rows


def test_every_key_is_found_and_no_other() -> None:
    rng = np.random.default_rng(1)
    ngrams = np.unique(rng.integers(0, 300, (20_000, 3)), axis=0)
    rng.shuffle(ngrams)
    inside, outside = ngrams[:9000], ngrams[9000:]
    run, distinct = make_run([rows_of(part, 1.0) for part in np.array_split(inside, 7)])
    table = ops.level_table([run], 2)
    assert distinct == 9000
    assert (ops.find(table, 3, layout.pack_keys(inside.astype(np.uint32)))[0] != 0).all()
    assert (ops.find(table, 3, layout.pack_keys(outside.astype(np.uint32)))[0] == 0).all()


def test_of_equal_keys_the_newest_wins() -> None:
    same = np.array([[1, 2, 3], [4, 5, 6], [1, 2, 3]])
    first, second = rows_of(same, 1.0), rows_of(same[1:2], 2.0)
    run, distinct = make_run([first, second])
    addresses, _ = ops.find(ops.level_table([run], 2), 3, layout.pack_keys(same[:2].astype(np.uint32)))
    assert distinct == 2
    assert addresses.tolist() == [first.ctypes.data + 2 * first.shape[1], second.ctypes.data]


def test_keys_of_one_fingerprint_are_told_apart() -> None:
    keys = [unmix((high << 32) | 0xABCD1234) for high in range(0, 1 << 20, 1 << 14)]
    run, distinct = make_run([raw_rows(keys)])
    assert distinct == len(keys)
    absent = unmix((77 << 32) | 0xABCD1234)
    table = ops.level_table([run], 2)
    addresses, _ = ops.find(table, 3, np.array([*keys, absent], np.uint64))
    expected = [run.segments[0].ctypes.data + i * run.segments[0].shape[1] for i in range(len(keys))]
    assert addresses.tolist() == [*expected, 0]


@pytest.mark.parametrize("seed", range(20))
def test_a_damaged_index_never_leads_to_a_wrong_row(seed: int) -> None:
    rng = np.random.default_rng(seed)
    ngrams = np.unique(rng.integers(0, 50, (500, 3)), axis=0).astype(np.uint32)
    run, _ = make_run([rows_of(part, 1.0) for part in np.array_split(ngrams, 3)])
    slots: Keys = run.slots.copy()
    if seed % 2:
        hit = rng.integers(0, slots.size, slots.size // 2)
        slots[hit] ^= np.uint64(1) << rng.integers(0, 64, hit.size).astype(np.uint64)
    else:  # no slot is free: a probe must still end
        slots[:] = rng.integers(0, 1 << 63, slots.size).astype(np.uint64) * np.uint64(2)
    damaged = ops.IndexRun(3, 0, 2, slots, run.shift, run.segments)
    keys = layout.pack_keys(ngrams)
    addresses, _ = ops.find(ops.level_table([damaged], 2), 3, keys)
    for address, key in zip(addresses.tolist(), keys.tolist(), strict=True):
        if address:
            rows = next(r for r in run.segments if 0 <= address - r.ctypes.data < r.nbytes)
            offset = address - rows.ctypes.data
            assert offset % rows.shape[1] == 0
            assert int(layout.row_keys(rows[offset // rows.shape[1]][None])[0]) == key


def test_more_rows_than_a_row_id_can_number() -> None:
    one = layout.row_keys(rows_of(np.array([[1, 1, 1]]), 1.0))
    with pytest.raises(ValueError, match="more rows"):
        ops.build_index([np.repeat(one, 1 << 17)] + [one] * (1 << 15))
