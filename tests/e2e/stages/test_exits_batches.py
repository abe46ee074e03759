"""Batches in which texts leave early: when they are answered, what a failing stage does, what is counted."""

from __future__ import annotations

import asyncio
import logging
import threading
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from types import SimpleNamespace

import pytest

from hmi.engine import Engine, TextRequest
from hmi.engine.run.accounts import Accounts
from hmi.engine.run.running import Held, Ran, Runner
from hmi.engine.texts.item import Item, Piece, Times
from hmi.execution import Hook
from hmi.execution.base import Output
from hmi.execution.batch import BatchKey, Left, Rows
from hmi.metrics import Metrics
from hmi.stages.base import OFF, Effect, Setting, Shape, StageBatch
from hmi.stages.early_exit.costs import LAST, ExitCosts
from hmi.stages.early_exit.ramps import Costs
from hmi.stages.early_exit.stage import ON, EarlyExit
from hmi.stages.early_exit.state import ModelState
from hmi.stages.planner import Candidate, Plan, RoundRobin
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import items
from tests.e2e.stages.exits_lab import plant, ramped, requests, state_of
from tests.e2e.stages.test_exits import ANY, MOOD, OTHER, layers, started, unaudited
from tests.waiting import until

LIMIT_S = 30.0


@pytest.fixture(autouse=True)
def drawn_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws for audits by the request's id, so that a test knows them."""
    monkeypatch.setattr(Item, "nonce", property(lambda item: item.request.id), raising=False)


class Watcher(Hook):
    """A hook before one layer that changes nothing."""

    before = 0

    @property
    def at(self) -> frozenset[int]:
        return frozenset({self.before})

    def __call__(self, layer: int, rows: Rows) -> tuple[Rows, Left | None]:
        return rows, None


class Watching(ABC):
    """A stage with the hook of a subclass in every batch."""

    name = "watching"

    def settings(self, key: BatchKey) -> Sequence[Setting]:
        return (OFF, Setting("on"))

    def effect(self, setting: Setting, shape: Shape) -> Effect:
        return Effect(rows=(1.0,) * shape.layers)

    @abstractmethod
    def hook(self, batch: StageBatch) -> Hook: ...

    def hooks(self, setting: Setting, batch: StageBatch) -> Sequence[Hook]:
        return [self.hook(batch)]


class Gates(Watching):
    """Holds every batch up before layer 1 until the test opens a gate for it."""

    def __init__(self) -> None:
        self.batches: list[int] = []
        """The number of texts of each batch that has come."""
        self.gates = [threading.Event() for _ in range(9)]
        self.opened: list[bool] = []

    def hook(self, batch: StageBatch) -> Hook:
        class Wait(Watcher):
            before = 1

            def __call__(wait, layer: int, rows: Rows) -> tuple[Rows, Left | None]:  # noqa: N805
                gate = self.gates[len(self.batches)]
                self.batches.append(len(batch.texts))
                self.opened.append(gate.wait(LIMIT_S))
                return rows, None

        return Wait()


async def test_a_text_that_leaves_is_answered_while_its_batch_is_still_in_the_layers(home: Home) -> None:
    gates = Gates()
    with ramped(home, MOOD) as artefact:
        engine = home.engine(None, RoundRobin([EarlyExit(), gates]), streams=1, precision="fp32")
        gates.gates[0].set()
        async with started(engine):
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state_of(engine, artefact), ANY)
            full = [TextRequest(MOOD, t, early=False, provenance=True) for t in home.covered[:2]]
            before = asyncio.create_task(engine.infer(full[:1]))
            await until(lambda: len(gates.batches) == 2)
            early = TextRequest(MOOD, home.covered[2], provenance=True, id=unaudited("soon", 1)[0])
            calls = [asyncio.create_task(engine.infer([request])) for request in (early, full[1])]
            await until(lambda: engine._waiting.seen()[0] == 2)
            gates.gates[1].set()
            await before
            left = await asyncio.wait_for(calls[0], LIMIT_S)
            await until(lambda: len(gates.batches) == 3)
            assert gates.batches == [1, 1, 2], "both are in one batch, which waits before layer 1"
            assert len(gates.opened) == 2
            assert not calls[1].done()
            gates.gates[2].set()
            (stayed,) = await calls[1]
    assert layers(left) == [0]
    assert layers([stayed]) == [2]
    assert all(gates.opened)


@asynccontextmanager
async def audited(home: Home) -> AsyncIterator[tuple[Engine, Gates, Metrics, ModelState]]:
    """An engine that has answered one text. All further texts are audited and may leave before layer 0, and
    their batches wait before layer 1."""
    gates, metrics = Gates(), Metrics()
    with ramped(home, MOOD) as artefact:
        engine = home.engine(metrics, RoundRobin([EarlyExit(), gates]), streams=1, precision="fp32")
        gates.gates[0].set()
        async with started(engine):
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state := state_of(engine, artefact), ANY, phase=0)
            yield engine, gates, metrics, state


async def test_an_audited_text_that_leaves_is_answered_at_once_too_and_runs_on_to_be_compared(
    home: Home,
) -> None:
    async with audited(home) as (engine, gates, metrics, state):
        (left,) = await asyncio.wait_for(engine.infer(requests(MOOD, home.covered[1:2], "x")), LIMIT_S)
        account = state.control.account
        assert (len(account.count.pending), account.count.wrong, account.count.free) == (1, 0, 0)
        assert state.control.audits.seen == 0
        gates.gates[1].set()
        await until(lambda: state.control.audits.seen == 1)
        assert account.count.pending == {}
        report = state.report()
        full = [replace(r, early=False) for r in requests(MOOD, home.covered[1:2], "full")]
        gates.gates[2].set()
        (right,) = await engine.infer(full)
    assert layers([left]) == [0]
    assert account.count.wrong == (left.label != right.label)
    assert report.left == {0: 1}
    assert metrics.usage.of("acme").early == 1


@pytest.mark.parametrize("way", ["batch", "answer"])
async def test_an_early_answer_that_is_never_compared_counts_as_a_disagreement(way: str, home: Home) -> None:
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(streams=1, precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state := state_of(engine, artefact), ANY, phase=0)
            executor = (await engine._loader.load(MOOD, exact=False)).executor
            run = executor.run

            def fails(key, rows, modules, hooks=()):  # type: ignore[no-untyped-def]
                for left in run(key, rows, modules, hooks):
                    if left.why == "end" and way == "batch":
                        raise RuntimeError("planted")
                    yield left if left.why == "exit" else replace(left, last=left.last * float("nan"))

            executor.run = fails  # type: ignore[method-assign]
            try:
                found = await engine.infer(requests(MOOD, home.covered[:3], "x"))
                await until(lambda: not state.control.account.count.pending)
            finally:
                del executor.run
    assert layers(found) == [0, 0, 0], "each is answered once"
    assert state.control.account.count.wrong == 3
    assert state.control.audits.seen == 0


async def test_early_answers_are_counted_although_the_engine_stops_while_they_are_compared(
    home: Home,
) -> None:
    async with audited(home) as (engine, gates, metrics, state):
        await engine.infer(requests(MOOD, home.covered[1:2], "x"))
        stopping = asyncio.create_task(engine.stop())
        await until(lambda: metrics.usage.of("acme").inputs == 2)
        assert not stopping.done()
        gates.gates[1].set()
        await stopping
    assert metrics.usage.of("acme").early == 1
    assert (state.control.audits.seen, state.control.account.count.pending) == (1, {})


class Forgetful(Watching):
    """Its hooks fail once the layers have run."""

    def __init__(self) -> None:
        self.closed: list[Hook] = []

    def hook(self, batch: StageBatch) -> Hook:
        class Fails(Watcher):
            def ended(hook, texts: Sequence[int], outputs: list[Output]) -> list[Output]:  # noqa: N805
                outputs.clear()
                raise RuntimeError("planted")

            def close(hook) -> None:  # noqa: N805
                self.closed.append(hook)
                raise RuntimeError("planted")

        return Fails()


async def test_a_hook_that_fails_after_the_layers_loses_no_answer_and_is_logged_once(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    asked, stage = requests(MOOD, home.covered[:4]) + requests(OTHER, home.covered[:4]), Forgetful()
    async with started(home.engine(None, RoundRobin(), streams=1, precision="fp32")) as engine:
        expected = [r.label for r in await engine.infer(asked)]
    async with started(home.engine(None, RoundRobin([stage]), streams=1, precision="fp32")) as engine:
        with caplog.at_level(logging.ERROR, "hmi.engine"):
            found = await engine.infer(asked)
    assert [r.label for r in found] == expected
    told = [r.message for r in caplog.records]
    assert told.count("a stage could not take note of a batch's answers") == len(stage.closed) > 0
    assert told.count("a stage could not end its work on a batch") == len(stage.closed)
    assert len(set(map(id, stage.closed))) == len(stage.closed), "each hook is closed once"


async def test_records_that_fail_give_the_audits_of_their_batch_back(
    home: Home, caplog: pytest.LogCaptureFixture
) -> None:
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(streams=1, precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            state = state_of(engine, artefact)
            plant(state, (0.0, 1e-9), phase=1)
            control, record, calls = state.control, state.control.record, list[int]()

            def fails(u, agrees, begun):  # type: ignore[no-untyped-def]
                record(u, agrees, begun)
                calls.append(1)
                if len(calls) == 2:
                    raise RuntimeError("planted")

            control.record = fails  # type: ignore[method-assign]
            with caplog.at_level(logging.ERROR, "hmi.engine"):
                found = await engine.infer(requests(MOOD, home.covered, "x"))
    assert len(found) == len(home.covered)
    assert len(calls) >= 2
    assert [r.message for r in caplog.records] == ["a stage could not take note of a batch's answers"]
    assert (control.account.count.pending, control.account.count.free) == ({}, 0)


async def ran_together(home: Home, thresholds: tuple[float, float]) -> Ran:
    """A batch of four texts each: of a model under these thresholds, of the same with "early": false, and of
    another tenant's model without an objective."""
    with ramped(home, MOOD) as artefact:
        pieces = [
            Piece(i, 0) for model in (MOOD, MOOD, OTHER) for i in await items(home, model, home.covered[:4])
        ]
        ids = unaudited("together", 4) + [f"other {i}" for i in range(8)]
        for i, (piece, id) in enumerate(zip(pieces, ids, strict=True)):
            changed = {"early": not 4 <= i < 8, "id": id, "provenance": True}
            piece.item.request = replace(piece.item.request, **changed)  # type: ignore[arg-type]
        parts = {p.bundle.version.artefact: p.bundle.version.artefact for p in pieces}
        held = Held(pieces, {a: home.bundles().load_task_part(a) for a in parts}, [])
        stage = EarlyExit()
        runner, key = Runner([stage], None), pieces[0].item.key
        plan = Plan(Candidate(0.0, 0.0, "acme", key, 2), {"exit": ON})
        runner.run(held, plan)
        plant(state_of(SimpleNamespace(exits=stage), artefact), thresholds)  # type: ignore[arg-type]
        for piece in pieces:
            piece.item.partial = type(piece.item.partial)()
        return runner.run(held, plan)


async def test_only_texts_that_a_stage_concerns_say_that_it_was_on(home: Home) -> None:
    ran = await ran_together(home, ANY)
    by_item = {id(item): answer.provenance for item, answer in ran.answers}
    found = [by_item[id(piece.item)] for piece in ran.batch.pieces]
    concerned = [p.item.tenant == "acme" and p.item.request.early for p in ran.batch.pieces]
    assert [p.stages for p in found if p] == [{"exit": "on"} if one else {} for one in concerned]
    assert sum(concerned) == 4
    metrics = Metrics()
    Accounts(metrics).ran(ran)
    assert b'hmi_execution_stage_inputs_total{setting="on",stage="exit"} 4.0' in metrics.render()


@pytest.mark.parametrize(("thresholds", "site"), [((1.0, 0.0), 0), ((0.0, 1.0), 1)])
async def test_tenants_pay_for_the_layers_that_ran_and_the_pace_learns_from_them(
    home: Home, thresholds: tuple[float, float], site: int
) -> None:
    ran = replace(await ran_together(home, thresholds), times=Times(0.0, retrieve_s=1.0, compute_s=2.0))
    assert sorted({*ran.layers}) == [site, 2]
    tokens = [len(piece.window) for piece in ran.batch.pieces]
    whole = [size * (1 + LAST) for size in tokens]
    done = [
        size * site if n == site else size * (1 + LAST) for size, n in zip(tokens, ran.layers, strict=True)
    ]
    metrics = Metrics()
    Accounts(metrics).ran(ran)
    acme, globex = metrics.usage.of("acme"), metrics.usage.of("globex")
    theirs = sum(w for w, piece in zip(done, ran.batch.pieces, strict=True) if piece.item.tenant == "globex")
    assert globex.compute_ms == pytest.approx(2000.0 * theirs / sum(done))
    assert acme.compute_ms == pytest.approx(2000.0 - globex.compute_ms)
    assert acme.saved_ms == pytest.approx(2000.0 * (sum(whole) - sum(done)) / sum(done))
    assert (acme.inputs, acme.early, globex.early) == (8, 4, 0)
    assert ran.share == pytest.approx(3.0 / (1.0 + 2.0 * sum(whole) / sum(done)))


async def test_a_batch_without_exits_took_all_of_its_time(home: Home) -> None:
    ran = await ran_together(home, (0.0, 0.0))
    assert {*ran.layers} == {2}
    assert ran.share == 1.0
    gone = replace(ran, layers=[0] * len(ran.layers))
    assert gone.share == 0.0, "nothing is known of layers that did not run"
    metrics = Metrics()
    Accounts(metrics).ran(gone)
    tokens = {
        t: sum(len(p.window) for p in gone.batch.pieces if p.item.tenant == t) for t in ("acme", "globex")
    }
    spent = {tenant: metrics.usage.of(tenant).compute_ms / tokens[tenant] for tenant in tokens}
    assert spent["acme"] == pytest.approx(spent["globex"])


async def test_answers_of_a_batch_that_fails_later_are_counted(home: Home) -> None:
    metrics = Metrics()
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(metrics, streams=1, precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state_of(engine, artefact), ANY)
            before = metrics.usage.of("acme")
            executor = (await engine._loader.load(MOOD, exact=False)).executor
            run = executor.run

            def fails(key, rows, modules, hooks=()):  # type: ignore[no-untyped-def]
                for left in run(key, rows, modules, hooks):
                    yield left
                    raise RuntimeError("planted")

            executor.run = fails  # type: ignore[method-assign]
            try:
                texts, ids = home.covered[:3], unaudited("counted", 3)
                await engine.infer([TextRequest(MOOD, t, id=i) for t, i in zip(texts, ids, strict=True)])
                await until(lambda: metrics.usage.of("acme").inputs > before.inputs)
            finally:
                del executor.run
    after = metrics.usage.of("acme")
    assert (after.inputs - before.inputs, after.early - before.early) == (3, 3)
    assert after.tokens > before.tokens
    assert b'hmi_exits_total{site="0"} 3.0' in metrics.render()


class Cheap(ExitCosts):
    """Ramps that cost a tenth of a layer: what exits save must not depend on this machine's times."""

    def costs(self, sites: Sequence[int]) -> tuple[Costs, float]:
        return Costs((1.0,) * len(sites), (0.1,) * len(sites)), 0.0


async def test_a_model_collects_tests_and_lets_texts_leave_by_itself(home: Home) -> None:
    with ramped(home, MOOD, agreement=0.6) as artefact:
        async with started(home.engine(streams=1, precision="fp32")) as engine:
            exits = engine.exits
            assert exits is not None
            (piece,) = await items(home, MOOD, home.covered[:1])
            exits._measured[piece.key, 2] = Cheap(piece.key, 2)
            seen: list[tuple[str, int]] = []
            for i in range(40):
                found = await engine.infer(requests(MOOD, home.covered[:8], f"alone {i}"))
                report = exits.report(artefact)
                assert report is not None
                seen.append((report.state, sum(n < 2 for n in layers(found))))
    states = [state for state, _ in seen]
    assert list(dict.fromkeys(states)) == ["collecting", "testing", "open"]
    assert states.count("collecting") == 15, "the 128th text is in the 16th call"
    opened = states.index("open")
    assert not any(gone for _, gone in seen[:opened]), "nobody leaves before"
    assert sum(gone for _, gone in seen[opened + 1 :]) > 0
    assert report.disagreed <= 0.4 * report.texts
