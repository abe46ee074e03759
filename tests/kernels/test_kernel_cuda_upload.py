"""What is uploaded to a device: rows that were checked, each segment once, and no more than fits."""

from __future__ import annotations

import ctypes
from dataclasses import replace

import cuda_twin
import cudalab as lab
import kernellab
import numpy as np
import pytest
from cudalab import VOCAB
from hmi_kernels.lookup import cuda, cuda_upload, layout, ops


def test_a_damaged_row_is_not_uploaded(device: cuda.LookupDevice, monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(5)
    monkeypatch.setattr(cuda_upload, "CHUNK_BYTES", 1 << 12)  # several chunks a segment
    ngrams = np.unique(rng.integers(0, VOCAB, (2000, 4)), axis=0).astype(np.uint32)
    vectors = rng.standard_normal((len(ngrams), layout.roles(4, 4), 12)).astype(np.float32)
    one = kernellab.split_run(rng, ops.encode(ngrams, vectors, 0, 4), 4, 0, vocab=VOCAB)
    unigram = ops.encode(np.array([[1]], np.uint32), np.ones((1, 4, 12), np.float32), 0, 4)
    small = kernellab.split_run(rng, unigram, 1, 0, vocab=VOCAB)
    table = ops.level_table([small, one], 4, 12)
    cuda_upload.upload(table, device)
    segment, row = len(one.segments) - 1, 777 % len(one.segments[-1].rows)
    view = one.segments[segment]
    view.rows[row, 50] ^= 4
    with pytest.raises(ops.DamagedRow) as caught:
        cuda_upload.upload(table, device)
    assert (caught.value.segment, caught.value.row) == (segment, row)  # longer n-grams come first
    view.verified[row // 64] |= np.uint64(1) << np.uint64(row % 64)
    cuda_upload.upload(table, device)  # marked as verified, as all rows of format 1 are


def test_a_table_that_does_not_fit_is_refused_and_says_so(library: ctypes.CDLL) -> None:
    _, runs = kernellab.random_runs(np.random.default_rng(3), [0], 4, VOCAB)
    table = ops.level_table(runs, 3, 4)
    needed = cuda_upload.upload(table, cuda_twin.Twin(library)).bytes
    small = cuda_twin.Twin(library)
    small.free = needed - 1
    with pytest.raises(
        cuda_upload.DeviceFull, match=f"needs {needed} bytes of device memory and {needed - 1} are free"
    ):
        cuda_upload.upload(table, small)
    small.free = needed
    assert cuda_upload.upload(table, small).bytes == needed


def test_what_versions_share_is_uploaded_once(library: ctypes.CDLL) -> None:
    twin = cuda_twin.Twin(library)
    rng = np.random.default_rng(9)
    _, runs = kernellab.random_runs(rng, [0], 64, VOCAB)
    again = [replace(r, depth=1) for r in runs]
    once, twice = (cuda_upload.upload(ops.level_table(which, 3, 64), twin) for which in (runs, runs + again))
    assert (
        twice.bytes - once.bytes
        <= 8 * len(runs) * (cuda_upload.LEVEL_WORDS + 3 * cuda_upload.SEGMENT_WORDS) + cuda_upload.ALIGN
    )
    texts = lab.random_texts(rng, (50,))
    assert np.array_equal(lab.run(once, texts)[0], lab.run(twice, texts)[0])
