"""Merging in the engine: whose texts lose rows, beside exits and cascades, and what audits say."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace

import pytest

from hmi.core import ModelId, ModelRecord, Objective, TokenPoint
from hmi.engine import TextRequest
from hmi.engine.texts.item import Item
from hmi.stages.early_exit.stage import EarlyExit
from hmi.stages.planner import RoundRobin
from hmi.stages.token_adaptation.audits import audited
from hmi.stages.token_adaptation.settings import SHORTEST
from hmi.stages.token_adaptation.stage import TokenAdaptation
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import items
from tests.e2e.stages.exits_lab import plant, ramped, requests, state_of
from tests.e2e.stages.test_exits import ANY, MOOD, OTHER, PAIRS, TAGS, layers, started, unaudited

PROFILE = tuple(TokenPoint(gamma=g, score=0.9, agreement=1.0, rows=1000) for g in (0, -20, -50))


@pytest.fixture(autouse=True)
def drawn_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws for audits by the request's id, so that a test knows them."""
    monkeypatch.setattr(Item, "nonce", property(lambda item: item.request.id), raising=False)


@contextmanager
def adapted(home: Home, model: ModelId) -> Iterator[None]:
    """The model with a profile by which its texts may be merged."""
    before = home.manager.registry.model(model)

    def change(record: ModelRecord) -> ModelRecord:
        live = record.live.model_copy(update={"tokens": PROFILE})
        objective = Objective(agreement=record.objective.agreement, agreement_under_load=0.9)
        versions = tuple(live if v.version == live.version else v for v in record.versions)
        return record.model_copy(update={"versions": versions, "objective": objective})

    home.manager.registry.change_model(model, change)
    try:
        yield
    finally:
        home.manager.registry.change_model(model, lambda _: before)


def ids(audit: bool, count: int) -> list[str]:
    """Ids of which all, or none, are audits of merging; no audits of exits."""
    return [i for i in unaudited("tokens", 3000) if audited(i) == audit][:count]


async def test_merged_texts_are_answered_beside_others(home: Home) -> None:
    """Texts of every task that reads differently; whoever has not asked gets the same answers as ever."""
    asked = [TextRequest(MOOD, t, scores=True, provenance=True) for t in home.covered[:6]]
    asked += [TextRequest(TAGS, t.split(), scores=True, provenance=True) for t in home.covered[:6]]
    asked += [TextRequest(PAIRS, (t, t), scores=True, provenance=True) for t in home.covered[:6]]
    others = [TextRequest(OTHER, t, scores=True, provenance=True) for t in home.covered[:6]]
    async with started(home.engine(None, precision="fp32")) as engine:
        wanted = await engine.infer([*asked, *others])
    with ExitStack() as stack:
        for model in (MOOD, TAGS, PAIRS):
            stack.enter_context(adapted(home, model))
        async with started(home.engine(None, RoundRobin([TokenAdaptation()]), precision="fp32")) as engine:
            found = await engine.infer([*asked, *others])
    names = [r.provenance.stages for r in found if r.provenance is not None]
    assert all(name in ({}, {"tokens": "merge 50%"}) for name in names)
    assert {"tokens": "merge 50%"} in names[:6]
    assert names[18:] == [{}] * 6
    for answer, whole in zip(found[18:], wanted[18:], strict=True):  # in another batch torch rounds otherwise
        assert answer.label == whole.label
        assert answer.scores == pytest.approx(whole.scores, abs=1e-6)
    for request, answer, whole in zip(asked, found, wanted, strict=False):
        if isinstance(request.text, list):
            assert len(answer.tags or ()) == len(request.text), "every word has a tag"
        else:
            assert answer.scores is not None
            assert whole.scores is not None
            assert answer.scores.keys() == whole.scores.keys()


async def test_texts_for_the_large_level_may_be_merged_and_have_no_exits(home: Home) -> None:
    """Merging does not get what the cascade is granted: .9 and 1 - .96 leave .94."""
    (item,) = await items(home, MOOD, home.covered[:1])
    bundle = replace(item.bundle, objective=Objective(agreement=0.96, agreement_under_load=0.9))
    asked = replace(item.request, early=False)
    large = replace(item, bundle=bundle, request=replace(asked, adapt=True)).objective
    assert (large.agreement, large.agreement_under_load) == (None, pytest.approx(0.94))
    assert replace(item, bundle=bundle, request=asked).objective == Objective()


async def test_exits_and_merging_in_one_batch(home: Home) -> None:
    """Texts leave at ramps that read merged rows; an audit of merging runs to the end, and is compared."""
    stage, exits = TokenAdaptation(), EarlyExit()
    names = [*ids(audit=False, count=6), *ids(audit=True, count=2)]
    long = [text for text in home.covered if len(text.split()) >= SHORTEST][:8]
    asked = [TextRequest(MOOD, t, provenance=True, id=i) for t, i in zip(long, names, strict=True)]
    with ramped(home, MOOD, agreement=0.99) as artefact, adapted(home, MOOD):
        planner = RoundRobin([stage, exits])
        async with started(home.engine(None, planner, streams=1, precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state_of(engine, artefact), ANY)
            found = await engine.infer(asked)
    assert layers(found) == [0] * 6 + [2] * 2
    for answer in found:
        assert answer.provenance is not None
        assert answer.provenance.stages["tokens"] == "merge 50%"
    assert stage.audits(MOOD, artefact)[-50].seen == 2
