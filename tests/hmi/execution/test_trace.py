"""A timeline on request, and nothing without it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

from bench.cases.serve.command import _traced
from hmi.execution import trace
from hmi.execution.packed import PackedExecutor, run_rows
from tests.hmi.execution.test_fused import BERT, DEPTH, packed, upper
from tests.hmi.labs.cuda_lab import DEVICES, device_of, executor


def names(timeline: trace.ChromeTrace) -> list[str]:
    return [event["name"] for event in timeline.events() if event["ph"] == "X"]


def test_layers_are_spans_of_their_thread_while_a_trace_is_collected() -> None:
    ours, (x, offsets) = PackedExecutor(upper(BERT), BERT), packed((3,), BERT.dim)
    assert trace.span("layer") is trace.span("other"), "nothing is made while no trace is collected"
    with trace.collected() as timeline:
        run_rows(ours, x, offsets, [None])
    run_rows(ours, x, offsets, [None])
    assert names(timeline) == ["layer"] * DEPTH
    (track,) = [event["args"]["name"] for event in timeline.events() if event["ph"] == "M"]
    assert track == "MainThread"


def test_one_trace_at_a_time() -> None:
    with trace.collected(), pytest.raises(RuntimeError, match="already"):
        with trace.collected():
            pass
    with trace.collected():
        pass


def test_a_benchmark_writes_a_timeline_if_a_file_is_given(tmp_path: Path) -> None:
    with _traced(None):
        assert trace.span("layer") is trace.span("other"), "nothing is collected"
    with _traced(tmp_path / "trace.json"), trace.span("layer"):
        pass
    written = json.loads((tmp_path / "trace.json").read_text())
    assert [event["name"] for event in written["traceEvents"] if event["ph"] == "X"] == ["layer"]


@pytest.mark.parametrize("device", DEVICES)
def test_spans_of_a_device_lie_within_the_run(device: str) -> None:
    ours, (x, offsets) = executor(device_of(device)), packed((3, 4), BERT.dim)
    with trace.collected() as timeline:
        run_rows(ours, x, offsets, [None, None])
        if torch.cuda.is_available():
            torch.cuda.synchronize()
    events = [event for event in timeline.events() if event["ph"] == "X"]
    layers = [event for event in events if event["name"] in [f"layer {i + 1}" for i in range(DEPTH)]]
    assert len(layers) == DEPTH
    assert [e["ts"] for e in layers] == sorted(e["ts"] for e in layers)
    assert all(e["dur"] > 0 for e in layers)
