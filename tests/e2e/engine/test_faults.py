"""Faults at each step of the engine: no answer is lost, given twice or given to the wrong tenant, and
readiness is true to the state.
"""

from __future__ import annotations

import asyncio
import random
from collections import Counter
from collections.abc import Callable
from typing import Any

import pytest

from hmi.core import ModelId
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.admit import admission
from hmi.engine.admit.admission import TenantCall
from hmi.engine.run import running
from hmi.engine.run.hooked import Hooked
from hmi.engine.texts.sink import TextSink
from hmi.execution import Left, Rows
from hmi.execution.packed import PackedExecutor
from hmi.metrics import Metrics
from hmi.stages.base import Setting
from hmi.stages.planner import Candidate, Plan, RoundRobin
from hmi.stages.planning.group import Price
from hmi.stores.tensors.adapter_pool import AdapterPool
from plot_store import Reader
from tests.e2e.conftest import Home
from tests.hmi.execution.test_execution import Drop
from tests.waiting import until

MOOD, OTHER = ModelId("acme", "mood"), ModelId("globex", "mood")


class Odd(Exception):
    """Cannot be made from what it keeps in `args`, as some libraries' errors."""

    def __init__(self, what: str, number: int) -> None:
        super().__init__(f"{what} {number}")


class Sometimes:
    """Makes a function fail at its first call, and then by chance, from a seed."""

    def __init__(self, seed: int, error: BaseException) -> None:
        self._draw, self._error = random.Random(seed), error
        self.failed = 0

    def __call__(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def maybe(*given: Any, **named: Any) -> Any:
            if not self.failed or self._draw.random() < 0.3:
                self.failed += 1
                raise self._error
            return function(*given, **named)

        return maybe


def watch_sinks(patch: pytest.MonkeyPatch) -> Counter[int]:
    """How often each sink is told something while somebody waits."""
    told: Counter[int] = Counter()
    kept: list[TextSink] = []
    for name in ("done", "fail"):
        tell = getattr(TextSink, name)

        def counted(self: TextSink, what: Any, tell: Callable[..., None] = tell) -> None:
            kept.append(self)
            told[id(self)] += self.wanted
            tell(self, what)

        patch.setattr(TextSink, name, counted)
    return told


PLACES: dict[str, tuple[Any, str]] = {
    "retrieval": (Reader, "lookup"),
    "executor": (PackedExecutor, "run"),
    "pool": (AdapterPool, "load"),
    "heads": (running, "outputs_of"),
    "answers": (running, "answer_of"),
}


@pytest.mark.parametrize("place", PLACES)
@pytest.mark.parametrize("error", [RuntimeError("planted"), SystemExit(3), StopIteration("planted")])
async def test_every_text_is_told_once_whatever_fails(
    home: Home, place: str, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = home.engine(pool_bytes=150_000 if place == "pool" else 1 << 20, streams=2)
    await engine.start()
    requests = {
        model: [TextRequest(model, t, scores=True) for t in home.covered[:12]] for model in (MOOD, OTHER)
    }
    sound = {model: [(await engine.infer([r]))[0] for r in mine] for model, mine in requests.items()}
    fault = Sometimes(11, error)
    with monkeypatch.context() as patch:
        told = watch_sinks(patch)
        owner, name = PLACES[place]
        patch.setattr(owner, name, fault(getattr(owner, name)))
        calls = [
            (m, i, engine.infer([r])) for i in range(12) for m, r in ((m, requests[m][i]) for m in requests)
        ]
        answers = await asyncio.gather(*(call for *_, call in calls), return_exceptions=True)
    assert fault.failed
    assert max(told.values()) == 1
    for (model, i, _), answer in zip(calls, answers, strict=True):
        if isinstance(answer, BaseException):
            assert (
                "planted" in str(answer) or "SystemExit" in str(answer) or "StopIteration" in repr(answer)
            ), answer
            continue
        (got,) = answer
        assert got.model == model, "nobody gets another's answer"
        assert got.label == sound[model][i].label
        assert got.scores == pytest.approx(sound[model][i].scores, abs=1e-5)
    assert engine.ready(), "a batch that fails is no loop that dies"
    assert (await engine.infer(requests[MOOD][:1]))[0].label
    await engine.stop()


async def test_a_loop_that_dies_takes_readiness_with_it_and_comes_back(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("hmi.engine.watch.supervisor.FIRST_PAUSE_S", 0.02)
    metrics = Metrics()
    engine = home.engine(metrics)
    await engine.start()
    await until(engine.ready)
    offer = engine._queue.candidates
    monkeypatch.setattr(engine._queue, "candidates", lambda: 1 / 0)
    waiting = asyncio.create_task(engine.infer([TextRequest(MOOD, home.covered[0])]))
    await until(lambda: not engine.ready())
    assert "stream 1 failed: ZeroDivisionError" in str(engine.trouble())
    assert f"hmi_queue_tokens {engine._queue.tokens:.1f}" in metrics.render().decode()
    assert engine._queue.tokens > 0
    monkeypatch.setattr(engine._queue, "candidates", offer)
    (answer,) = await waiting
    assert answer.label, "what waits is answered once the loop is back"
    assert b"hmi_queue_tokens 0.0" in metrics.render()
    await until(engine.ready)
    await engine.stop()


class Mad(RoundRobin):
    """A planner that fails at everything."""

    def price(self, text: Any) -> Price:
        raise RuntimeError("worth nothing")

    def plan(self, candidates: Any, now: float) -> Plan:
        raise RuntimeError("out of its mind")

    def learn(self, plan: Plan, measured: Any) -> None:
        raise RuntimeError("no idea")


async def test_a_planner_that_fails_loses_no_text_and_makes_nothing_run_again(home: Home) -> None:
    metrics = Metrics()
    engine = home.engine(metrics, Mad())
    await engine.start()
    texts = [TextRequest(MOOD, t, utility=0.5, provenance=True) for t in home.covered[:2]]
    answers = await engine.infer(texts)
    await engine.stop()
    assert [answer.label is not None for answer in answers] == [True, True]
    assert {answer.provenance.planner for answer in answers if answer.provenance} == {"the planner failed"}
    assert b"hmi_batch_inputs_count 1.0" in metrics.render()
    assert engine._planning.totals.failures == 4, "two prices, one plan, one batch to learn from"


async def test_tokenising_that_dies_fails_its_call_alone(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.engine.watch.supervisor.FIRST_PAUSE_S", 0.02)
    engine = home.engine()
    await engine.start()
    run_turn = TenantCall.run_turn

    def dies(self: TenantCall, loader: Any) -> float:
        if self.tenant == "globex":
            raise RuntimeError("the thread is gone")
        return run_turn(self, loader)

    with monkeypatch.context() as patch:
        patch.setattr(TenantCall, "run_turn", dies)
        calls = [engine.infer([TextRequest(model, home.covered[0])]) for model in (OTHER, MOOD)]
        failed, answered = await asyncio.gather(*calls, return_exceptions=True)
    assert isinstance(failed, Exception)
    assert isinstance(answered, list)
    await until(engine.ready)
    await engine.stop()


async def test_threads_that_ended_are_made_anew(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("hmi.engine.watch.supervisor.FIRST_PAUSE_S", 0.02)
    engine = home.engine()
    await engine.start()
    await engine.infer([TextRequest(MOOD, home.covered[0])])
    engine._compute._pools[False].shutdown()
    with pytest.raises(Exception, match="try again"):
        await engine.infer([TextRequest(MOOD, home.covered[0])])
    await until(lambda: engine.ready())
    assert (await engine.infer([TextRequest(MOOD, home.covered[0])]))[0].label
    await engine.stop()


async def leave_after(engine: Engine, requests: list[TextRequest], steps: int) -> bool:
    """Whether the call was over before its client left, after so many steps of the loop."""
    task: asyncio.Task[list[TextResult]] = asyncio.create_task(engine.infer(requests))
    for _ in range(steps):
        await asyncio.sleep(0)
    over = task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    return over


async def test_a_client_may_leave_at_each_step(home: Home) -> None:
    engine = home.engine()
    await engine.start()
    others = [TextRequest(OTHER, t) for t in home.covered[:3]]
    for steps in (*range(30), 60, 200, 1000):
        beside = asyncio.create_task(engine.infer(others))
        await leave_after(engine, [TextRequest(MOOD, t) for t in home.covered[:3]], steps)
        assert len(await beside) == 3
    assert engine._queue.tokens == 0
    assert engine.ready()
    await engine.stop()


class Panic(BaseException):
    """As a library in Rust raises it: no Exception."""


@pytest.mark.parametrize(
    "error", [Panic("planted"), SystemExit(3), StopIteration("planted"), Odd("planted", 2)]
)
async def test_a_load_or_a_text_that_panics_fails_its_own_call(
    home: Home, error: BaseException, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = home.engine()
    await engine.start()
    await engine.infer([TextRequest(MOOD, home.covered[0])])
    version = home.manager.registry.model(OTHER).live
    read, windows = AdapterPool.load, admission._windows

    def load(pool: Any, names: list[str], **named: Any) -> Any:
        if version.artefact in names:
            raise error
        return read(pool, names, **named)

    def tokenise(text: Any, bundle: Any) -> Any:
        if bundle.model == OTHER:
            raise error
        return windows(text, bundle)

    for owner, name, fault in ((AdapterPool, "load", load), (admission, "_windows", tokenise)):
        with monkeypatch.context() as patch:
            patch.setattr(owner, name, fault)
            async with asyncio.timeout(30):
                calls = (engine.infer([TextRequest(m, home.covered[0])]) for m in (OTHER, MOOD))
                failed, answered = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(failed, Exception)
        assert not isinstance(failed, TimeoutError)
        assert isinstance(answered, list)
        assert engine.ready(), "one call's fault takes no loop with it"
        assert (await engine.infer([TextRequest(OTHER, home.covered[0])]))[0].label
        engine._loader._pool._cached.pop(version.artefact, None)
    await engine.stop()


class Loses(Drop):
    """A faulty hook: the batch's last text never comes out."""

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        end = rows.offsets[-2]
        return Rows(rows.x[:end], rows.offsets[:-1], list(rows.texts)[:-1]), None


async def test_a_text_that_a_hook_loses_is_failed(home: Home, monkeypatch: pytest.MonkeyPatch) -> None:
    def hook(runner: object, hooked: Hooked, *_: object) -> None:
        hooked.add("loses", Setting("on"), [Loses(before=1)])

    monkeypatch.setattr(running.Runner, "_hook", hook)
    engine = home.engine()
    await engine.start()
    async with asyncio.timeout(30):
        with pytest.raises(RuntimeError, match="lost"):
            await engine.infer([TextRequest(MOOD, t) for t in home.covered[:2]])
    await engine.stop()


async def test_windows_that_run_again_count_their_text_once(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A batch fails after all its windows gave their outputs, and each part of it completes the same text."""
    metrics = Metrics()
    engine = home.engine(metrics, batch_ms=1 << 20, streams=1)
    await engine.start()
    run, sizes = engine._runner.run, []

    def fails_once(held: Any, plan: Any, early: Any) -> Any:
        sizes.append(len(held.pieces))
        ran = run(held, plan, early)
        if len(sizes) == 1:
            raise RuntimeError("planted")
        return ran

    monkeypatch.setattr(engine._runner, "run", fails_once)
    monkeypatch.setattr("hmi.engine.engine.by_model", lambda pieces: [pieces[:1], pieces[1:]])
    words = " ".join(home.covered).split() * 8
    assert (await engine.infer([TextRequest(ModelId("globex", "tags"), words)]))[0].tags
    await until(lambda: len(sizes) == 3)
    await engine.infer([TextRequest(OTHER, home.covered[0])])  # the stream is done with the other parts
    await engine.stop()
    assert sizes[0] > 1
    assert sizes[1:3] == [1, sizes[0] - 1]
    assert metrics.usage.of("globex").inputs == 2


async def test_an_express_batch_that_cannot_be_cut_fails_no_call(
    home: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = home.engine()
    await engine.start()
    with engine._hosts.running(60.0), monkeypatch.context() as patch:
        patch.setattr(engine._queue, "express_candidates", lambda: 1 / 0)
        patch.setattr(engine._queue, "wait", asyncio.Event().wait)
        call = asyncio.create_task(engine.infer([TextRequest(MOOD, home.covered[0])]))
        await until(lambda: engine._queue.tokens > 0 or call.done())
        await asyncio.sleep(0)
        assert not call.done()
        call.cancel()
    await asyncio.gather(call, return_exceptions=True)
    await engine.stop()


def test_candidates_come_in_order() -> None:
    """Who was given least, then who waits longest: what a plan of today's order depends on."""
    keys: Any = None
    line = [
        Candidate(1.0, 5.0, "a", keys, 1),
        Candidate(0.5, 9.0, "b", keys, 1),
        Candidate(0.5, 8.0, "c", keys, 1),
    ]
    assert RoundRobin().plan(line, 0.0).candidate.tenant == "c"
