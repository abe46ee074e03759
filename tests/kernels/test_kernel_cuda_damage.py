"""A damaged index leads the CUDA look-up to no foreign row and to no memory outside its table."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

import cudalab as lab
import kernellab
import numpy as np
import pytest
from cuda_twin import put
from cudalab import VOCAB
from hmi_kernels.lookup import cuda, cuda_upload, layout, ops, reference
from kernellab import Chain


@pytest.mark.parametrize("seed", range(30))
def test_a_damaged_index_leads_to_no_foreign_row(
    device: cuda.LookupDevice, seed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With random slots uploaded, the process survives and only rows whose key matches are used."""
    rng = np.random.default_rng(seed)
    n = seed % 5 + 1
    _, runs = kernellab.random_runs(rng, [0, 2], 4, VOCAB, n)
    for i, one in enumerate(runs):
        slots = one.slots.copy()
        if rng.integers(0, 2):
            hit = rng.integers(0, slots.size, slots.size // 2)
            slots[hit] ^= np.uint64(1) << rng.integers(0, 64, hit.size).astype(np.uint64)
        else:  # no slot is free: a probe must still end; small numbers are row ids of a direct index
            slots[:] = rng.integers(0, 1 << int(rng.integers(2, 63)), slots.size)
        runs[i] = replace(one, slots=slots)
    table = ops.level_table(runs, n, 4)
    tokens, offsets = texts = kernellab.ragged(lab.random_texts(rng, (60, 3)))
    parts = [tokens[:60].tolist(), tokens[60:].tolist()]
    out, order, depth = np.empty((63, 4), np.float32), np.empty(63, np.int8), np.empty(63, np.int16)
    with suppress(ops.DamagedRow):
        ops.lookup(table, tokens, offsets, VOCAB, out, order, depth)
    with suppress(ops.DamagedRow):
        cuda_upload.upload(table, device)
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    bits, orders, depths = lab.run(cuda_upload.upload(table, device), parts)
    meant = reference.lookup(truly_found(table, parts), parts, 4, n)
    assert texts[1].tolist() == [0, 60, 63]
    assert np.array_equal(bits, meant[0].view(np.uint32))
    assert orders.tolist() == meant[1]
    assert depths.tolist() == meant[2]


def truly_found(table: ops.LevelTable, texts: list[list[int]]) -> Chain:
    """The entries that a damaged index still leads to, by key: a chain for the reference."""
    chain: Chain = [{} for _ in range(1 + max((run.depth for run in table.runs), default=0))]
    for order in range(1, table.n + 1):
        padded = [[0] * table.n + text + [0] * table.n for text in texts]
        grams = np.array([p[i : i + order] for p in padded for i in range(len(p) - order + 1)], np.uint32)
        addresses, levels = ops.find(table, order, grams, check=False)
        for gram, address, level in zip(grams.tolist(), addresses.tolist(), levels.tolist(), strict=True):
            if address:
                index = table.runs[level]
                rows = next(
                    v.rows for v in index.segments if 0 <= address - v.rows.ctypes.data < v.rows.nbytes
                )
                row = rows[(address - rows.ctypes.data) // rows.shape[1]]
                chain[index.depth][tuple(gram)] = layout.decode(
                    row[None], table.n, order, table.dim, index.dtype
                )[0]
    return chain


def unigrams(tokens: list[int]) -> np.ndarray:
    """Rows of 256 bytes: on the device, each segment then begins where the one before it ends."""
    return ops.encode(np.array(tokens, np.uint32)[:, None], np.ones((len(tokens), 1, 224), np.float32), 0, 1)


def test_a_row_id_past_its_segment_is_a_miss(device: cuda.LookupDevice) -> None:
    index = lab.direct_run(
        [unigrams([1, 2, 3]), unigrams([5])], [layout.EMPTY_SLOT, 0, 1, 2, layout.EMPTY_SLOT, 3, 16]
    )
    table = cuda_upload.upload(ops.level_table([index], 1, 224), device)
    assert lab.run(table, [[1, 2, 3, 5, 6]])[1].tolist() == [1, 1, 1, 0, 0]


def test_a_token_past_a_direct_index_is_a_miss(
    device: cuda.LookupDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two neighbouring indexes of 32 slots, slot 37 of the first would be slot 5 of the second."""
    rows = unigrams([37])
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    near, far = lab.direct_run([rows], [layout.EMPTY_SLOT] * 32), lab.direct_run([rows], [0] * 32, depth=1)
    table = cuda_upload.upload(ops.level_table([near, far], 1, 224), device)
    out, order, depth = (
        device.empty((1, 224), np.float32),
        device.empty((1,), np.int8),
        device.empty((1,), np.int16),
    )
    given = put(device, np.array([37], np.int32)), put(device, np.array([0, 1], np.int64))
    cuda.lookup(table, *given, 64, out, order, depth)
    assert device.read(order).tolist() == [0]


def test_keys_of_two_words_are_compared_whole(
    device: cuda.LookupDevice, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An index whose every slot has the fingerprint of (2, 3, 4, 5), over a row of (1, 3, 4, 5)."""
    there, asked = np.array([[1, 3, 4, 5]], np.uint32), np.array([[2, 3, 4, 5]], np.uint32)
    rows = ops.encode(there, np.ones((1, 4, 4), np.float32), 2, 4)
    low, high = (int(word) for word in layout.pack_keys(asked)[0])
    slots = np.full(8, lab.mix(low ^ lab.mix(high)) << 32 & (1 << 64) - 1, np.uint64)
    one = ops.IndexRun(4, 0, 2, slots, 1, False, (ops.RowsView(rows, np.zeros(1, np.uint64)),))
    with pytest.raises(ops.DamagedRow):
        cuda_upload.upload(ops.level_table([one], 4, 4), device)
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    table = cuda_upload.upload(ops.level_table([one], 4, 4), device)
    assert lab.run(table, [[2, 3, 4, 5]])[1].tolist() == [0, 0, 0, 0]


@pytest.mark.parametrize("salt", [layout.PLAIN_SALT, 0x9D39247E33776D41])
def test_a_search_ends_at_the_reach(
    device: cuda.LookupDevice, salt: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on the CPU, an n-gram is found in the last slot of the reach and not in the slot after it."""
    # All other slots hold the fingerprint of an n-gram that is not stored.
    monkeypatch.setattr(ops, "check_places", lambda table: None)
    gram, cap = np.array([[1, 2, 3]], np.uint32), 3000
    rows = ops.encode(gram, np.ones((1, 3, 4), np.float32), 2, 3)
    hashed = lab.mix(int(layout.pack_keys(gram)[0, 0]))
    mask = (1 << 64) - 1
    home = ((((hashed ^ salt >> 1) * salt) & mask) >> 32) * cap >> 32
    for reach in (layout.REACH, 1, 7, cap):
        for away in (reach - 1, reach):
            slots = np.full(cap, (~hashed & 0xFFFFFFFF) << 32, np.uint64)
            slots[(home + away) % cap] = (hashed & 0xFFFFFFFF) << 32
            one = ops.IndexRun(
                3, 0, 2, slots, 1, False, (ops.RowsView(rows, np.zeros(1, np.uint64)),), salt, reach
            )
            table = cuda_upload.upload(ops.level_table([one], 3, 4), device)
            served = 3 if away < reach or reach == cap else 0
            assert lab.run(table, [[1, 2, 3]])[1].tolist() == [0, served, 0], (reach, away)
