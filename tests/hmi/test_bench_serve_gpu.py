"""The GPU benchmark's code path, in small, on the twin and on a GPU where there is one."""

from __future__ import annotations

import pytest
import torch

from hmi.bench.serve import gpu, gpu_limits
from hmi.execution.cuda.twin import Twin
from hmi.model.shape import EncoderShape
from tests.hmi.cuda_lab import DEVICES, device_of

TINY = gpu.Sizes(
    shape=EncoderShape(50, 16, 2, 4, 32, 64, 2, 1e-12),
    upper=2,
    texts=3,
    length=8,
    batches=4,
    rank=2,
    tenants=(3, 9),
    slot_bytes=1 << 16,
    runs=1,
)


@pytest.mark.parametrize("device", DEVICES)
def test_every_figure_is_measured(device: str, monkeypatch: pytest.MonkeyPatch) -> None:
    steps: list[str] = []
    monkeypatch.setattr(gpu_limits, "IN_A_ROW", 4)
    there = device_of(device, 3)
    rows = list(gpu.run(there, TINY, steps.append, "fp32"))
    assert [row.id for row in rows] == [
        "gpu_texts_per_s",
        "gpu_full_over_no_pipelined_retrieval",
        "gpu_full_over_no_pipelined_swap",
        "gpu_full_over_neither",
        "gpu_over_dedicated",
        "gpu_3_tenants_over_one",
        "gpu_9_tenants_over_one",
        "gpu_modules_over_none",
        "gpu_slots_mb",
        "gpu_layers_over_matmul_peak",
        *(["gpu_modules_over_bandwidth"] if device == "gpu" else []),
        "gpu_short_text_ms",
        "gpu_short_text_graphs_over_none",
        "gpu_graphs_mb",
    ]
    assert all(row.value is not None and row.value > 0 for row in rows)
    assert len(steps) == gpu.steps(None)
    if isinstance(there, Twin):
        assert any(name.startswith("module layer") for _, _, name in there.ran)


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has a CUDA device")
def test_without_a_device_it_says_so() -> None:
    (row,) = gpu.measure(None, None, lambda step: None)
    assert row.value is None
    assert row.why == "torch finds no CUDA device"
