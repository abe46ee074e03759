"""The whole engine on the twin of a device: the CPU's answers, and a timeline of what ran where."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from hmi.execution import choose, trace
from hmi.execution.cuda import CudaExecutor
from hmi.execution.cuda.twin import Twin
from hmi.execution.cuda.ways import Ways
from hmi.model.root import Root
from tests.e2e.conftest import Home
from tests.e2e.test_path import ask, figures, mixed_requests


@pytest.mark.parametrize("seed", [1, 4])
async def test_the_engine_answers_as_on_the_cpu(
    home: Home, seed: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two compute threads, three slots, calls at once: modules drive each other out while batches overlap."""
    requests, made = mixed_requests(home), list[CudaExecutor]()
    wanted = await ask(home, requests)

    def on_device(root: Root, *_: Any) -> tuple[CudaExecutor, str]:
        shape = root.info.shape
        made.append(CudaExecutor(root.upper, shape, "fp32", Twin(seed), slot_bytes=1, ways=Ways("groups")))
        made[-1].slots = type(made[-1].slots)(made[-1].device, 3, made[-1].slots.size, made[-1].dtype)
        return made[-1], "cuda fp32"

    monkeypatch.setattr(choose, "_on_device", on_device)
    engine = home.engine(streams=2, max_batch_tokens=64)
    with trace.collected() as timeline:
        await engine.start()
        calls = [engine.infer(requests[i : i + 6]) for i in range(0, len(requests), 6)]
        answers = [answer for call in await asyncio.gather(*calls) for answer in call]
        await engine.stop()
    for mine, theirs in zip(answers, wanted, strict=True):
        assert (mine.label, mine.tags) == (theirs.label, theirs.tags)
        assert figures(mine) == pytest.approx(figures(theirs), abs=1e-5)
    (executor,) = made
    assert executor.slots.copied_bytes > 0
    timeline.write(tmp_path / "trace.json")
    check_trace(json.loads((tmp_path / "trace.json").read_text())["traceEvents"], executor.layers)


def check_trace(events: list[dict[str, Any]], layers: int) -> None:
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [(tracks[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert all(begin >= 0 and lasted >= 0 for _, _, begin, lasted in spans)
    threads = {track for track, name, *_ in spans if name == "retrieve"}
    assert threads <= {"hmi-engine_0", "hmi-engine_1"}
    assert {name for track, name, *_ in spans if track in threads} == {"retrieve", "layer", "heads"}
    on_device = {name for track, name, *_ in spans if track == f"device {next(iter(threads))}"}
    assert on_device == {"rows", "indexes", "results", *(f"layer {i + 1}" for i in range(layers))}
    copied = {name for track, name, *_ in spans if track == "device copies"}
    assert copied == {f"module layer {i + 1}" for i in range(layers)}
