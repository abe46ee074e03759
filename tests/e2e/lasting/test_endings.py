"""Work that ends early: compute threads that are gone, a deadline, a record that fails, a stop."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.engine import Engine, TextRequest
from hmi.engine.run.running import Runner
from hmi.errors import DeadlineExceeded, Unavailable
from hmi.metrics import Metrics
from tests.e2e.conftest import Home
from tests.e2e.engine.test_faults import until

MOOD, OTHER = ModelId("acme", "mood"), ModelId("globex", "mood")


async def test_threads_that_end_before_a_batch_runs_again_end_it_with_try_again(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmi.engine.watch.supervisor.FIRST_PAUSE_S", 0.02)
    engine = home.engine(batch_ms=1 << 20)
    await engine.start()
    run, sizes = engine._runner.run, []

    def ends_threads(held: Any, plan: Any, early: Any) -> Any:
        sizes.append(len(held.pieces))
        if len(sizes) == 1:
            engine._compute._pools[False].shutdown(wait=False)
            raise RuntimeError("planted")
        return run(held, plan, early)

    monkeypatch.setattr(engine._runner, "run", ends_threads)
    both = [TextRequest(model, home.covered[0]) for model in (MOOD, OTHER)]
    with pytest.raises(Unavailable, match="try again"):
        await engine.infer(both)
    assert sizes == [2], "its parts did not run"
    await until(engine.ready)
    assert len(await engine.infer(both)) == 2
    await engine.stop()


@pytest.mark.parametrize("inside", [TimeoutError("the disk"), None])
async def test_only_the_calls_own_deadline_is_deadline_exceeded(
    home: Home, inside: TimeoutError | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = home.engine()
    await engine.start()

    async def admit(requests: Any) -> Any:
        if inside is not None:
            raise inside
        await asyncio.Event().wait()

    monkeypatch.setattr(engine._admission, "admit", admit)
    deadline = time.monotonic() + (60.0 if inside else 0.01)
    with pytest.raises((TimeoutError, DeadlineExceeded)) as caught:
        await engine.infer([TextRequest(MOOD, home.covered[0], deadline=deadline)])
    assert caught.type is (TimeoutError if inside else DeadlineExceeded)
    await engine.stop()


class FullDisk:
    """A recorder of misses that cannot record."""

    on, asked = True, 0

    def record(self, *_: Any) -> None:
        self.asked += 1
        raise OSError("no space left")


async def test_misses_that_cannot_be_recorded_cost_no_answer(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    metrics, recorder = Metrics(), FullDisk()
    engine = home.engine(metrics)
    engine._runner = Runner(engine._planning.stages, recorder)  # type: ignore[arg-type]
    await engine.start()
    assert (await engine.infer([TextRequest(MOOD, home.covered[0])]))[0].label
    await engine.stop()
    assert recorder.asked == 1
    assert b"hmi_batch_inputs_count 1.0" in metrics.render(), "the batch ran once"
    assert "could not be recorded" in caplog.text


async def test_a_module_counts_one_hit_or_miss_for_each_batch_that_uses_it(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = home.engine(batch_ms=1 << 20)
    await engine.start()
    pool, requests = engine._loader._pool, [TextRequest(MOOD, t) for t in home.covered[:3]]
    both = [*requests, TextRequest(OTHER, home.covered[0])]
    await engine.infer(requests)
    assert (pool.hits, pool.misses) == (0, 1), "cold: read when the call was admitted"
    await engine.infer(requests)
    assert (pool.hits, pool.misses) == (1, 1)
    engine._queue._turns._given.clear()  # so that both tenants share a batch
    run, runs = engine._runner.run, []

    def fails_once(held: Any, plan: Any, early: Any) -> Any:
        runs.append(1)
        if len(runs) == 1:
            raise RuntimeError("planted")
        return run(held, plan, early)

    monkeypatch.setattr(engine._runner, "run", fails_once)
    await engine.infer(both)
    assert len(runs) == 3
    assert (pool.hits, pool.misses) == (2, 2), "parts of a batch that run again are no further use"
    await engine.stop()


def threads_of(engine: Engine) -> dict[str, ThreadPoolExecutor]:
    loader = engine._loader
    return {
        "compute": engine._compute._pools[False],
        "tokenise": engine._admission._thread,
        "load": loader._part_threads,
        "modules": loader._module_threads,
    }


@pytest.mark.parametrize("name", ["compute", "tokenise", "load", "modules"])
async def test_the_event_loop_runs_on_while_a_stop_waits_for_threads(home: Home, name: str) -> None:
    engine = home.engine()
    await engine.start()
    threads, gate = threads_of(engine)[name], threading.Event()
    opened = threads.submit(gate.wait, 20)
    stopping = asyncio.create_task(engine.stop())
    await until(lambda: threads._shutdown)
    assert not stopping.done()
    gate.set()  # reached in time only if the event loop was not blocked
    await stopping
    assert opened.result()
