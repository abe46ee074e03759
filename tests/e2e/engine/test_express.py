"""Small batches beside a long one: who goes first, and that nobody's answer depends on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.admit.bundles import TaskPart
from hmi.engine.run import running
from hmi.engine.run.compute import Compute
from hmi.engine.run.heads import Output
from hmi.engine.run.side_batches import Hosts
from hmi.engine.schedule.pace import BATCH_WORK, FIRST_S, Pace
from hmi.engine.schedule.queue import BatchQueue
from hmi.engine.texts.item import Item, Piece
from hmi.engine.watch.supervisor import Broken
from hmi.errors import Damaged, Unavailable
from hmi.execution import Left
from hmi.metrics import Metrics
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import items, take, take_express
from tests.waiting import until

MOOD, PAIRS = ModelId("acme", "mood"), ModelId("acme", "pairs")
TAGS, OTHER = ModelId("globex", "tags"), ModelId("globex", "mood")
LONG = 64
"""Rows of a batch that is held; express ones have fewer."""


class Held:
    """An engine whose first long batch waits in its first layer until it is let go, and what came of each
    call."""

    def __init__(self, engine: Engine, metrics: Metrics) -> None:
        self.engine, self.metrics = engine, metrics
        self.reached, self.go_on = threading.Event(), threading.Event()
        self.puts = 0
        self.ended: list[asyncio.Task[list[TextResult]]] = []

    def layer(self, layer: Any, given: tuple[Any, ...]) -> None:
        if len(given[0]) >= LONG and not self.reached.is_set():
            self.reached.set()
            assert self.go_on.wait(60)

    async def call(self, *requests: TextRequest) -> asyncio.Task[list[TextResult]]:
        """Send a call, and wait until its texts are queued."""
        before = self.puts
        task = asyncio.create_task(self.engine.infer(requests))
        task.add_done_callback(self.ended.append)
        await until(lambda: self.puts > before)
        return task

    async def host(self, *requests: TextRequest) -> asyncio.Task[list[TextResult]]:
        task = await self.call(*requests)
        await until(self.reached.is_set)
        return task


@pytest.fixture
def third(home: Home) -> Iterator[ModelId]:
    """A model of a third tenant, the same as TAGS."""
    model, registry = ModelId("initech", "tags"), home.manager.registry
    home.manager.create_tenant("initech")
    live = registry.model(TAGS).live
    registry.publish_model(model, live.model_copy(update={"version": 0, "job": "j-initech"}))
    yield model
    home.manager.delete_tenant("initech")


@asynccontextmanager
async def held(home: Home, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Held]:
    metrics = Metrics()
    engine = home.engine(metrics, batch_ms=1 << 20)
    lab, put = Held(engine, metrics), engine._queue.put

    def counted(items: list[Item]) -> None:
        put(items)
        lab.puts += 1

    monkeypatch.setattr(engine._queue, "put", counted)
    monkeypatch.setattr(engine._pace, "ran", lambda *_: None)
    await engine.start()
    bundle = await engine._loader.load(MOOD, exact=False)
    hook = bundle.root.upper[0].register_forward_pre_hook(lab.layer)
    try:
        yield lab
    finally:
        lab.go_on.set()
        hook.remove()
        await engine.stop()


def long_call(home: Home) -> list[TextRequest]:
    return [TextRequest(MOOD, t, scores=True) for t in home.covered]


def answers(results: list[TextResult]) -> list[Any]:
    return [(r.label, r.scores, r.tags, r.tag_scores) for r in results]


async def test_small_batches_run_beside_a_long_one_and_change_nothing(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    small = TextRequest(OTHER, home.covered[0], scores=True)
    tags = TextRequest(TAGS, home.covered[0].split(), scores=True)
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home))
        beside = [await lab.engine.infer([request]) for request in (small, tags)]
        assert not host.done()
        assert lab.metrics.usage.of("globex").tokens < LONG
        lab.go_on.set()
        await host
        again = await lab.engine.infer(long_call(home))
        assert answers(again) == answers(host.result()), "beside others or not: the same, to the last bit"
        assert [answers(await lab.engine.infer([r])) for r in (small, tags)] == list(map(answers, beside))


async def test_who_may_have_no_express_batch_waits(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    """The same tenant; and where the texts of many tenants run, nobody."""
    text = home.covered[0]
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home)[:12])
        same = await lab.call(TextRequest(PAIRS, (text, text)))
        lab.go_on.set()
        await asyncio.gather(host, same)
        assert lab.ended[0] is host
    monkeypatch.setattr("hmi.engine.engine.FEW_TENANTS", 1)
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home), TextRequest(OTHER, text))
        third = await lab.call(TextRequest(TAGS, text.split()))
        lab.go_on.set()
        await asyncio.gather(host, third)
        assert lab.ended == [host, third]


async def test_neither_fails_or_ends_with_the_other(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    outputs_of = running.outputs_of

    def spoilt(left: Left, pieces: Sequence[Piece], parts: Sequence[TaskPart]) -> list[Output]:
        outputs = outputs_of(left, pieces, parts)
        models = [pieces[text].item.request.model for text in left.texts]
        return [Damaged("planted") if m == OTHER else o for m, o in zip(models, outputs, strict=True)]

    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home))
        with monkeypatch.context() as patch:
            patch.setattr(running, "outputs_of", spoilt)
            with pytest.raises(Damaged):
                await lab.engine.infer([TextRequest(OTHER, home.covered[0])])
        lab.go_on.set()
        assert len(await host) == len(home.covered)
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home))
        inner = await lab.call(TextRequest(OTHER, home.covered[0]))
        host.cancel()
        lab.go_on.set()
        assert (await inner)[0].label


async def test_an_express_batch_without_threads_fails_alone_and_is_to_try_again(
    home: Home, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """No other is tried beside that host, and the stream keeps its threads."""
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home))
        compute, pools = lab.engine._compute, dict(lab.engine._compute._pools)
        pools[True].shutdown(wait=False)
        inner = await lab.call(TextRequest(OTHER, home.covered[0]))
        following = await lab.call(TextRequest(TAGS, home.covered[0].split()))
        with pytest.raises(Unavailable, match="try again"):
            await inner
        assert "an express batch could not run" in caplog.text
        later = await lab.call(TextRequest(OTHER, home.covered[0]))
        assert lab.engine._queue.tenants == 1, "what came meanwhile and what comes wait for the stream"
        assert {express: compute._pools[express] is pools[express] for express in pools} == {
            False: True,
            True: False,
        }
        lab.go_on.set()
        assert len(await host) == len(home.covered)
        assert (await following)[0].tags
        assert (await later)[0].label
        assert lab.engine.ready(), "an express batch takes no loop with it"


async def test_work_whose_thread_cannot_start_never_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """The pool keeps it, and would run it once a thread is free."""
    compute, free, ran = Compute(2), threading.Event(), list[str]()
    first = compute.run(lambda: free.wait(60), express=True)

    def no_thread(self: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    with monkeypatch.context() as patch:
        patch.setattr(threading.Thread, "start", no_thread)
        with pytest.raises(Broken, match="can't start"):
            compute.run(lambda: ran.append("lost"), express=True)
    free.set()
    assert await first
    await compute.run(lambda: ran.append("next"), express=True)
    await compute.close()
    assert ran == ["next"]


async def test_a_text_whose_module_was_evicted_is_in_an_express_batch_once_it_is_loaded(
    home: Home, third: ModelId, monkeypatch: pytest.MonkeyPatch
) -> None:
    slow = home.manager.registry.model(OTHER).live.artefact
    small, disk, loads, evicted = TextRequest(OTHER, home.covered[0]), threading.Event(), list[str](), {slow}

    def late(artefact: str, *_: Any) -> None:
        loads.append(artefact)
        assert disk.wait(60)
        evicted.discard(artefact)

    async with held(home, monkeypatch) as lab:
        other = TextRequest(third, home.covered[0].split())
        await lab.engine.infer([small, other])
        call = await lab.host(*long_call(home))
        loader, host = lab.engine._loader, lab.engine._hosts.roomiest()
        assert host is not None
        monkeypatch.setattr(loader, "_read", late)
        monkeypatch.setattr(loader, "in_memory", lambda bundle: bundle.version.artefact not in evicted)
        before = host.room_s
        waiting = await lab.call(small)
        await until(lambda: loads == [slow])
        assert host.room_s == before, "a batch that does not run takes no room from the host"
        await lab.engine.infer([other])
        assert not waiting.done()
        disk.set()
        assert (await waiting)[0].label
        assert loads == [slow]
        assert not call.done()
        lab.go_on.set()
        await call


async def test_an_express_batch_that_failed_runs_again_on_its_own_threads(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home))
        run, names = lab.engine._runner.run, list[str]()

        def fails_once(batch: Any, plan: Any, early: Any) -> Any:
            names.append(threading.current_thread().name)
            if len(names) == 1:
                raise RuntimeError("planted")
            return run(batch, plan, early)

        monkeypatch.setattr(lab.engine._runner, "run", fails_once)
        monkeypatch.setattr("hmi.engine.engine.by_model", lambda pieces: [pieces[:1], pieces[1:]])
        assert len(await lab.engine.infer([TextRequest(OTHER, home.covered[0])] * 2)) == 2
        assert not host.done()
        assert len(names) == 3
        assert all(name.startswith("hmi-express_") for name in names)


async def test_no_one_looks_for_an_express_batch_without_a_host(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes time for each tenant that waits."""
    engine, looked = home.engine(), list[int]()
    find = engine._queue.express_candidates
    monkeypatch.setattr(engine._queue, "express_candidates", lambda: [looked.append(1), find()][1])
    await engine.start()
    assert (await engine.infer([TextRequest(MOOD, home.covered[0])]))[0].label
    await engine.stop()
    assert len(looked) == 1, "the stream's batch is a host"


async def test_a_text_too_long_for_the_host_lets_one_of_another_key_pass(
    home: Home, third: ModelId, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with held(home, monkeypatch) as lab:
        call = await lab.host(*long_call(home))
        host = lab.engine._hosts.roomiest()
        assert host is not None
        host.room_s = FIRST_S * (BATCH_WORK + 40)
        long = await lab.call(TextRequest(OTHER, " ".join(home.covered)))
        short = await lab.call(TextRequest(third, home.covered[0].split()[:4]))
        assert lab.engine._queue.tenants == 1
        assert (await short)[0].tags
        assert not long.done()
        lab.go_on.set()
        await asyncio.gather(call, long)


async def test_express_batches_receive_no_more_than_their_host(home: Home) -> None:
    """A tenant gets them until it has received as much as the host's tenant."""
    queue = BatchQueue(1_000_000, Pace())
    queue.put(await items(home, MOOD, home.covered * 2))
    take(queue, 200)
    assert take_express(queue, 10_000) == [], "who was just given a batch"
    given = []
    for item in await items(home, OTHER, home.covered):
        queue.put([item])
        given += [p.item for p in take_express(queue, 10_000)]
    assert 2 <= len(given) < len(home.covered)
    charged = queue._turns.given("globex"), queue._turns.given("acme")
    assert charged[0] >= charged[1], "it has caught up"
    queue.drop(list(queue._waiting.of(given[0].kind)["globex"]))
    assert [p.item.tenant for p in take(queue, 10)] == ["acme"]


def test_express_batches_of_one_host_have_a_common_limit() -> None:
    hosts = Hosts(1)
    with hosts.running(1.0):
        host = hosts.roomiest()
        assert host is not None
        hosts.begin(host, 0.75)
        assert host.room_s == 0.25
        assert hosts.roomiest() is None, "the only place is taken"
    with hosts.running(1.0):
        assert hosts.roomiest() is None, "also beside the next host"
        hosts.end()
        host = hosts.roomiest()
        assert host is not None
        hosts.begin(host, 1.0)
        hosts.end()
        assert hosts.roomiest() is None, "the room is used up"
    hosts = Hosts(2)
    with hosts.running(1.0):
        assert hosts.roomiest() is None, "a stream is free"
        with hosts.running(0.0):
            host = hosts.roomiest()
            assert host is not None
            assert host.room_s == 1.0
