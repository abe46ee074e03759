"""What the CUDA look-up refuses: batches and arrays that do not fit, and a machine without a GPU."""

from __future__ import annotations

import sys
from typing import Any

import cuda_twin
import cudalab as lab
import kernellab
import numpy as np
import pytest
from cuda_twin import put
from cudalab import VOCAB
from hmi_kernels.lookup import cuda, cuda_upload, layout, ops


@pytest.mark.parametrize("front", [False, True])
@pytest.mark.parametrize(
    ("tokens", "offsets", "message"),
    [
        ([1, 2, 3, 4], [0, 1], "offsets"),
        ([1, 2, 3, 4], [1, 4], "offsets"),
        ([1, 2, 3, 4], [-1, 4], "offsets"),
        ([1, 2, 3, 4], [0, 5], "offsets"),
        ([1, 2, 3, 4], [0, 4, 1, 4], "offsets"),
        ([1, 2, 3, 4], [0, -5, 4], "offsets"),
        ([1, 2, 3, 4], [0, 1 << 60], "offsets"),
        ([1, 2, 3, 4], [-(1 << 60), 1 << 60], "offsets"),
        ([1, 2, 3, 4], [0], "offsets"),
        ([1, 2, 3, 4], [], "offsets"),
        ([1, 2, 3, VOCAB], [0, 4], "token"),
        ([1, 2, 3, 1 << 30], [0, 4], "token"),
        ([1, 2, 3, -1], [0, 4], "token"),
    ],
)
def test_a_wrong_batch_is_refused(
    device: cuda.LookupDevice, front: bool, tokens: list[int], offsets: list[int], message: str
) -> None:
    if isinstance(device, cuda_twin.Twin):
        device = cuda_twin.Twin(device.library)
        device.front = front
    ones = np.arange(VOCAB, dtype=np.uint32)[:, None]
    rows = ops.encode(ones, np.ones((VOCAB, layout.roles(3, 1), 4), np.float32), 0, 3)
    runs = [lab.direct_run([rows], list(range(VOCAB)))]
    table = cuda_upload.upload(ops.level_table(runs, 3, 4), device)
    out = device.empty((4, 4), np.float32)
    order, depth = device.empty((4,), np.int8), device.empty((4,), np.int16)
    given = put(device, np.array(tokens, np.int32)), put(device, np.array(offsets, np.int64))
    with pytest.raises(ValueError, match=message):
        cuda.lookup(table, *given, VOCAB, out, order, depth)


def test_arrays_that_do_not_fit_are_refused(device: cuda.LookupDevice) -> None:
    _, runs = kernellab.random_runs(np.random.default_rng(0), [0], 4, VOCAB)
    table = cuda_upload.upload(ops.level_table(runs, 3, 4), device)
    empty = device.empty
    good: dict[str, Any] = {
        "tokens": put(device, np.array([1, 2], np.int32)),
        "offsets": put(device, np.array([0, 2], np.int64)),
        "out": empty((2, 4), np.float32),
        "order": empty((2,), np.int8),
        "depth": empty((2,), np.int16),
    }
    bad: list[tuple[str, Any]] = [
        ("tokens", [1, 2]),
        ("tokens", empty((2,), np.int64)),
        ("offsets", empty((2, 1), np.int64)),
        ("offsets", empty((2,), np.int32)),
        ("out", empty((3, 4), np.float32)),
        ("out", empty((2, 4), np.float64)),
        ("out", empty((2, 8), np.float32)[:, ::2]),
        ("out", empty((8,), np.float32)),
        ("order", empty((2,), np.int16)),
        ("order", empty((4,), np.int8)[::2]),
        ("depth", empty((1,), np.int16)),
    ]
    for name, array in bad:
        arguments = good | {name: array}
        with pytest.raises(ValueError, match=name):
            cuda.lookup(table, vocab=VOCAB, **arguments)
    cuda.lookup(table, vocab=VOCAB, **good)


def test_without_cupy_the_cure_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cupy", None)
    with pytest.raises(cuda.NoDevice, match=r"pip install hmi-plot-store\[cuda\]"):
        cuda.CudaDevice()
