"""The GPU benchmark's code path, in small, on the twin and on a GPU where there is one."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from bench.cases.serve import gpu, gpu_limits
from bench.cases.serve.gpu_bench import TINY, opened
from bench.cases.serve.gpu_limits import overlap, united
from hmi.execution.cuda.choose import kernels_for
from tests.hmi.labs.cuda_lab import DEVICES, device_of


@pytest.mark.parametrize("device", DEVICES)
def test_every_figure_is_measured(device: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(gpu_limits, "IN_A_ROW", 4)
    there = device_of(device, 3)
    launcher = kernels_for("bench") if device == "gpu" else None
    with opened(there, TINY, "fp32", launcher) as bench:
        parts = (gpu.flat, gpu.dedicated, gpu.ablation, gpu.modules, gpu_limits.limits)
        rows = [row for part in parts for row in part(bench)]
        seen = list(gpu.timeline(bench, tmp_path / "trace.json"))
    assert [row.id for row in rows] == [
        "gpu_1_tenants_texts_per_s",
        "gpu_3_tenants_texts_per_s",
        "gpu_3_tenants_over_one",
        "gpu_9_tenants_texts_per_s",
        "gpu_9_tenants_over_one",
        "gpu_over_dedicated",
        "gpu_over_transformers",
        "gpu_full_over_no_pipelined_retrieval",
        "gpu_full_over_no_pipelined_swap",
        "gpu_full_over_neither",
        "gpu_modules_over_none",
        "gpu_slots_mb",
        "gpu_layers_over_matmul_peak",
        "gpu_batch_over_matmul_peak",
        *(["gpu_modules_over_bandwidth"] if device == "gpu" else []),
        "gpu_short_text_ms",
        "gpu_short_text_graphs_over_none",
        "gpu_graphs_mb",
    ]
    shares = ("gpu_layers_over_matmul_peak", "gpu_batch_over_matmul_peak")  # the twin's may round to 0
    assert all(row.value is not None and (row.value > 0 or row.id in shares) for row in rows)
    assert [(row.value or 0) >= 0 for row in seen] == 4 * [True]
    names = {event["name"] for event in json.loads((tmp_path / "trace.json").read_text())["traceEvents"]}
    assert {"modules from layer 1", "modules from layer 2", "layer 1", "layer 2"} <= names


def test_the_overlap_of_spans() -> None:
    assert united([(4, 5), (0, 2), (1, 3)]) == [(0, 3), (4, 5)]
    assert overlap([(0, 2), (1, 3), (4, 5)], [(2.5, 4.5)]) == 1.0
