"""What early exits of one tenant have to do with others: batches that fail, and turns."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hmi.engine import TextRequest
from hmi.engine.texts.item import TEXT_WORK, Item, work_of
from hmi.metrics import Metrics
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import items
from tests.e2e.stages.exits_lab import plant, ramped, requests, state_of
from tests.e2e.stages.test_exits import ANY, MOOD, OTHER, layers, started, unaudited
from tests.tiny import DIM
from tests.waiting import until


@pytest.fixture(autouse=True)
def drawn_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws for audits by the request's id, so that a test knows them."""
    monkeypatch.setattr(Item, "nonce", property(lambda item: item.request.id), raising=False)


async def test_a_failing_neighbour_costs_no_audit(home: Home) -> None:
    """A batch fails by another tenant's model: early answers of this one are compared in a run apart."""
    texts, metrics = home.covered[:6], Metrics()
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(metrics, streams=1, precision="fp32")) as engine:
            full = [replace(r, early=False) for r in requests(MOOD, texts, "full")]
            right = [r.label for r in await engine.infer(full)]
            await engine.infer(requests(MOOD, texts[:1]) + requests(OTHER, texts[:1]))
            plant(state := state_of(engine, artefact), ANY, phase=0)
            before, tokens = state.control.account.count.wrong, metrics.usage.of("acme").tokens
            executor = (await engine._loader.load(MOOD, exact=False)).executor
            run, mixed = executor.run, []

            def fails(key, rows, modules, hooks=()):  # type: ignore[no-untyped-def]
                for left in run(key, rows, modules, hooks):
                    if left.why == "end" and len(set(map(id, modules))) > 1:
                        mixed.append(len(modules))
                        raise RuntimeError("planted")
                    yield left

            executor.run = fails  # type: ignore[method-assign]
            try:
                found = await engine.infer(requests(MOOD, texts, "x") + requests(OTHER, texts, "y"))
                await until(lambda: not state.control.account.count.pending)
            finally:
                del executor.run
            mine = found[: len(texts)]
            assert mixed, "they were in one batch"
            assert layers(mine) == [0] * len(texts)
            wrong = sum(one.label != other for one, other in zip(mine, right, strict=True))
            assert len(texts) - wrong > 0, "else nothing is shown"
            assert state.control.account.count.wrong - before == wrong
            assert state.control.audits.seen == len(texts)
            assert engine.exits is not None
            assert not engine.exits.owed._audits
    assert metrics.usage.of("acme").tokens - tokens == sum(r.tokens for r in mine), "counted once"


async def test_turns_charge_no_layers_that_texts_left_before(home: Home) -> None:
    texts, metrics = home.covered[:6], Metrics()
    with ramped(home, MOOD) as artefact:
        engine = home.engine(metrics, streams=1, precision="fp32")
        async with started(engine):
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state_of(engine, artefact), ANY)
            engine._pace.ran = lambda *_: None  # type: ignore[method-assign]  # the same prices throughout
            turns, charged = engine._queue._turns, []
            for early in (False, True):
                ids = unaudited(f"turns {early}", len(texts))
                before = turns._given["acme"]
                found = await engine.infer(
                    [
                        TextRequest(MOOD, t, id=i, early=early, provenance=True)
                        for t, i in zip(texts, ids, strict=True)
                    ]
                )
                counted = 1 + len(texts) * (1 + early)
                await until(lambda n=counted: metrics.usage.of("acme").inputs == n)  # the batch has ended
                charged.append(turns._given["acme"] - before)
    assert layers(found) == [0] * len(texts)
    work = sum(work_of(r.tokens, DIM) - TEXT_WORK for r in found)
    key = (await items(home, MOOD, texts[:1]))[0].key
    assert charged[0] - charged[1] == pytest.approx(engine._pace.seconds(key, work))
    assert charged[1] > 0.0, "the batch and its look-ups still cost"
