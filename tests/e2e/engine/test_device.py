"""The whole engine on the twin of a device: the CPU's answers, and a timeline of what ran where."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from hmi.engine.schedule.pace import Pace
from hmi.execution import choose, trace
from hmi.execution.cuda import CudaExecutor, graphs
from hmi.execution.cuda import twin as twins
from hmi.execution.cuda.slots import doubled
from hmi.execution.cuda.twin import Twin
from hmi.execution.cuda.ways import Ways
from hmi.model.sources.root import Root
from tests.e2e.conftest import Home
from tests.e2e.engine.test_path import ask, figures, mixed_requests
from tests.hmi.execution.test_device_faults import Faulty
from tests.modules_twin import CpuLauncher


@pytest.mark.parametrize(("seed", "replayed"), [(1, False), (4, True)])
async def test_the_engine_answers_as_on_the_cpu(
    home: Home, seed: int, replayed: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two compute threads, three slots, calls at once: modules drive each other out while batches overlap."""
    requests, made, captured = mixed_requests(home), list[CudaExecutor](), list[str]()
    monkeypatch.setattr(graphs, "RECURS", 2)
    monkeypatch.setattr(graphs, "SPREAD", 100.0)
    capture = twins._Stream.capture

    def counted(stream: Any, name: str, *rest: Any) -> Any:
        captured.append(name)
        return capture(stream, name, *rest)

    monkeypatch.setattr(twins._Stream, "capture", counted)
    wanted = await ask(home, requests)

    def on_device(root: Root, *_: Any) -> tuple[CudaExecutor, str]:
        shape = root.info.shape
        twin = Twin(seed)
        ways = Ways("groups", twin.launcher(CpuLauncher()))
        made.append(CudaExecutor(root.upper, shape, "fp32", twin, slot_bytes=1, ways=ways))
        made[-1].graphs.on = replayed
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
    assert bool(captured) == replayed
    timeline.write(tmp_path / "trace.json")
    check_trace(json.loads((tmp_path / "trace.json").read_text())["traceEvents"], executor.layers)


@pytest.mark.parametrize("after", [0, 40, 150])
async def test_the_engine_goes_on_without_a_device_that_fails(
    home: Home, after: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two compute threads, in the middle of their batches: every answer is the CPU's."""
    requests, twin = mixed_requests(home), Faulty(1 << 40, seed=after)
    wanted = await ask(home, requests)

    def on_device(root: Root, *_: Any) -> tuple[CudaExecutor, str]:
        made = CudaExecutor(root.upper, root.info.shape, "fp32", twin, ways=Ways("groups"))
        twin.left = after
        return made, "cuda fp32"

    monkeypatch.setattr(choose, "_on_device", on_device)
    engine = home.engine(streams=2, max_batch_tokens=64)
    await engine.start()
    calls = [engine.infer(requests[i : i + 6]) for i in range(0, len(requests), 6)]
    answers = [answer for call in await asyncio.gather(*calls) for answer in call]
    await engine.stop()
    assert twin.left < 0
    for mine, theirs in zip(answers, wanted, strict=True):
        assert (mine.label, mine.tags) == (theirs.label, theirs.tags)
        assert figures(mine) == pytest.approx(figures(theirs), abs=1e-5)


async def test_the_pace_counts_the_time_of_the_device(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    class Slow(Twin):
        def run_until(self, event: Any) -> None:
            time.sleep(0.1)
            super().run_until(event)

    def on_device(root: Root, *_: Any) -> tuple[CudaExecutor, str]:
        return CudaExecutor(root.upper, root.info.shape, "fp32", Slow(), ways=Ways("groups")), "cuda fp32"

    seen: list[float] = []
    monkeypatch.setattr(choose, "_on_device", on_device)
    monkeypatch.setattr(Pace, "ran", lambda self, kind, work, seconds: seen.append(seconds))
    engine = home.engine()
    await engine.start()
    await engine.infer(mixed_requests(home)[:1])
    await engine.stop()
    assert seen
    assert min(seen) >= 0.1


def check_trace(events: list[dict[str, Any]], layers: int) -> None:
    tracks = {e["tid"]: e["args"]["name"] for e in events if e["ph"] == "M"}
    spans = [(tracks[e["tid"]], e["name"], e["ts"], e["dur"]) for e in events if e["ph"] == "X"]
    assert all(begin >= 0 and lasted >= 0 for _, _, begin, lasted in spans)
    threads = {track for track, name, *_ in spans if name == "retrieve"}
    assert all(name.startswith(("hmi-engine_", "hmi-express_")) for name in threads)
    assert {name for track, name, *_ in spans if track in threads} == {"retrieve", "layer", "heads"}
    on_device = {name for track, name, *_ in spans if track == f"device {next(iter(threads))}"}
    assert on_device == {"rows", "indexes", "results", *(f"layer {i + 1}" for i in range(layers))}
    copied = {name for track, name, *_ in spans if track == "device copies"}
    assert copied == {f"modules from layer {some.start + 1}" for some in doubled(layers)}
