"""Small batches beside a long one: who goes first, and that nobody's answer depends on it."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.engine import Engine, TextRequest, TextResult, running
from hmi.engine.bundles import TaskPart
from hmi.engine.express import Hosts
from hmi.engine.heads import Output
from hmi.engine.item import Item, Piece
from hmi.engine.pace import Pace
from hmi.engine.queue import BatchQueue
from hmi.errors import Damaged, Unavailable
from hmi.execution import Left
from hmi.metrics import Metrics
from tests.e2e.conftest import Home
from tests.e2e.hall import items, take, take_express
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
    async with held(home, monkeypatch) as lab:
        host = await lab.host(*long_call(home))
        lab.engine._compute._express.shutdown(wait=False)
        inner = await lab.call(TextRequest(OTHER, home.covered[0]))
        with pytest.raises(Unavailable, match="try again"):
            await inner
        assert "an express batch could not run" in caplog.text
        lab.go_on.set()
        assert len(await host) == len(home.covered)
        assert lab.engine.ready(), "an express batch takes no loop with it"
        assert (await lab.engine.infer([TextRequest(OTHER, home.covered[0])]))[0].label


async def test_an_express_batch_that_waits_for_its_module_leaves_its_slot(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    third, registry = ModelId("initech", "tags"), home.manager.registry
    home.manager.create_tenant("initech")
    tags, slow = registry.model(TAGS).live, registry.model(OTHER).live.artefact
    registry.publish_model(third, tags.model_copy(update={"version": 0, "job": "j-initech"}))
    try:
        async with held(home, monkeypatch) as lab:
            host = await lab.host(*long_call(home))
            loader, disk, loads = lab.engine._loader, asyncio.Event(), []
            hold, in_memory = loader._hold, loader.in_memory

            async def late(artefacts: list[str], *given: Any, **named: Any) -> Any:
                """As if the module had been evicted: it waits for the disk again."""
                if slow in artefacts:
                    loads.append(slow)
                    await disk.wait()
                return await hold(artefacts, *given, **named)

            monkeypatch.setattr(loader, "_hold", late)
            monkeypatch.setattr(loader, "in_memory", lambda names: slow not in names and in_memory(names))
            waiting = await lab.call(TextRequest(OTHER, home.covered[0]))
            await until(lambda: loads == [slow])
            inner = await lab.call(TextRequest(third, home.covered[0].split()))
            await inner
            assert not host.done()
            lab.go_on.set()
            await host
            disk.set()
            assert (await waiting)[0].label
    finally:
        home.manager.delete_tenant("initech")


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
    queue.drop(list(queue._waiting.of(given[0].key)["globex"]))
    assert [p.item.tenant for p in take(queue, 10)] == ["acme"]


def test_express_batches_of_one_host_have_a_common_limit() -> None:
    hosts = Hosts(1)
    with hosts.running(1.0):
        host = hosts.roomiest()
        assert host is not None
        hosts.begin(host, 0.75, at_hand=False)
        assert host.room_s == 0.25
        assert hosts.roomiest() is host
        hosts.begin(host, 0.1, at_hand=True)
        assert hosts.roomiest() is None, "the only place is taken"
    with hosts.running(1.0):
        assert hosts.roomiest() is None, "also beside the next host"
        hosts.end(at_hand=True)
        host = hosts.roomiest()
        assert host is not None
        hosts.begin(host, 1.0, at_hand=False)
        assert hosts.roomiest() is None, "the room is used up"
    hosts = Hosts(2)
    with hosts.running(1.0):
        assert hosts.roomiest() is None, "a stream is free"
        with hosts.running(0.0):
            host = hosts.roomiest()
            assert host is not None
            assert host.room_s == 1.0
