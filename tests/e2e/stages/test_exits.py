"""Early exits in the engine: who leaves, what is answered, what is counted (systems.md, section 4)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from hmi.core import DeletedParts, ModelId
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.run.ramps import BatchTexts
from hmi.engine.run.running import Held, Runner
from hmi.engine.texts.item import Item, Partial, Piece
from hmi.execution.batch import Left
from hmi.stages.base import OFF, Setting, Shape, StageBatch
from hmi.stages.draw import draw
from hmi.stages.early_exit.stage import ON, EarlyExit
from hmi.stages.early_exit.state import AUDIT
from hmi.stages.planner import Candidate, Plan
from tests.e2e.conftest import Home
from tests.e2e.engine.hall import items
from tests.e2e.stages.exits_lab import SITES, always, plant, ramped, requests, state_of

MOOD, TAGS, PAIRS, OTHER = (
    ModelId.parse(n) for n in ("acme.mood", "globex.tags", "acme.pairs", "globex.mood")
)
ANY = (1.0, 1.0)
"""Thresholds under which every text leaves at the first ramp, unless its uncertainty is 1."""


@pytest.fixture(autouse=True)
def drawn_by_id(monkeypatch: pytest.MonkeyPatch) -> None:
    """Draws for audits by the request's id, so that a test knows them."""
    monkeypatch.setattr(Item, "nonce", property(lambda item: item.request.id))


@asynccontextmanager
async def started(engine: Engine) -> AsyncIterator[Engine]:
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def plain(results: list[TextResult]) -> list[object]:
    """Answers to the bit, without their provenance."""
    return [(r.label, r.score, r.scores, r.tags, r.tag_scores) for r in results]


def layers(results: list[TextResult]) -> list[int]:
    return [r.provenance.layers for r in results if r.provenance is not None]


def unaudited(name: str, count: int) -> list[str]:
    """Ids that no audit is drawn for (`drawn_by_id`)."""
    found = (f"{name}{i}" for i in range(100 * count))
    return [i for i in found if draw(AUDIT, i) >= 0.5][:count]


async def test_the_full_path_has_the_same_bits_with_and_without_ramps_and_with_closed_gates(
    home: Home,
) -> None:
    with ramped(home, MOOD) as a, ramped(home, TAGS) as b:
        pieces = [Piece(i, 0) for i in await items(home, MOOD, home.covered[:8])]
        words = [Piece(i, 0) for i in await items(home, TAGS, [t.split() for t in home.covered[:8]])]  # type: ignore[misc]
        parts = {artefact: home.bundles().load_task_part(artefact) for artefact in (a, b)}
    for batch in (pieces, words):
        key, runner = batch[0].item.key, Runner([EarlyExit()], None)

        def run(setting: Setting) -> list[object]:
            for piece in batch:  # noqa: B023
                piece.item.partial = Partial()
            candidate = Candidate(0.0, 0.0, "acme", key, 2)  # noqa: B023
            ran = runner.run(Held(batch, parts, []), Plan(candidate, {"exit": setting}))  # noqa: B023
            assert ran.stages == [{} if setting == OFF else {"exit": "on"}] * 8
            return plain([answer for _, answer in ran.answers])

        for _ in range(5):
            without, closed, again = run(OFF), run(ON), run(OFF)
            if without == again:  # or another executor has taken over meanwhile
                break
        assert closed == without
        assert len(closed) == 8


async def test_a_threshold_of_0_lets_nobody_leave_even_at_confidence_1(home: Home) -> None:
    sure = {site: always(home.state("acme.mood"), 0, logit=200.0) for site in SITES}
    with ramped(home, MOOD, sure) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            full = await engine.infer(requests(MOOD, home.covered[:8]))
            plant(state_of(engine, artefact), (0.0, 1e-30))
            found = await engine.infer(requests(MOOD, home.covered[:8], "later"))
            assert set(layers(found)) <= {1, max(layers(full))}, "never at site 0"
            assert 1 in layers(found), "confidence 1 is below the smallest threshold above 0"


async def test_a_text_leaves_earlier_or_at_the_same_site_if_thresholds_rise(home: Home) -> None:
    ids = unaudited("monotone", 12)
    asked = [TextRequest(MOOD, t, provenance=True, id=i) for t, i in zip(home.covered[:12], ids, strict=True)]
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            await engine.infer(asked[:1])
            gone = []
            for threshold in (0.0, 0.02, 0.1, 0.3, 0.45, 1.0):
                plant(state_of(engine, artefact), (threshold * 0.7, threshold))
                gone.append(layers(await engine.infer(asked)))
    for early, late in pairwise(gone):
        assert all(a >= b for a, b in zip(early, late, strict=True))
    assert set(gone[-1]) == {0}
    assert len({*gone[0]}) == 1


async def test_in_a_mixed_batch_each_answer_equals_that_alone_at_the_same_decision(home: Home) -> None:
    half = {0: always(home.state("acme.mood"), 1), 1: always(home.state("acme.mood"), 0)}
    with ramped(home, MOOD) as a, ramped(home, OTHER, half) as b, ramped(home, TAGS) as c:
        async with started(home.engine(precision="fp32")) as engine:
            words = [t.split() for t in home.covered[:10]]
            asked = requests(MOOD, home.covered[:10], "a") + requests(OTHER, home.covered[:10], "b")
            asked += requests(TAGS, words, "c") + requests(PAIRS, [(t, t) for t in home.covered[:5]], "d")
            await engine.infer(asked)
            for artefact, thresholds in ((a, (0.3, 0.4)), (b, (0.0, 0.5)), (c, (0.2, 0.3))):
                plant(state_of(engine, artefact), thresholds)
            together = await engine.infer(asked)
            alone = [(await engine.infer([request]))[0] for request in asked]
    assert layers(together) == layers(alone)
    assert len(set(layers(together))) > 1
    for one, other in zip(together, alone, strict=True):
        assert (one.label, one.tags) == (other.label, other.tags)
        assert one.scores is None or one.scores == pytest.approx(other.scores, abs=1e-4)
        assert one.provenance is not None
        assert other.provenance is not None
        assert (one.provenance.confidence is None) == (other.provenance.confidence is None)


async def test_exact_texts_and_texts_of_several_windows_never_leave(home: Home) -> None:
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            (full,) = await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state_of(engine, artefact), ANY)
            seen = state_of(engine, artefact).control.account.texts
            exact = [TextRequest(MOOD, t, exact=True, provenance=True) for t in home.covered[:4]]
            found = await engine.infer(exact)
            assert set(layers(found)) == set(layers([full]))
            assert state_of(engine, artefact).control.account.texts == seen, "they are not concerned"
        piece = Piece((await items(home, MOOD, home.covered[:1]))[0], 0)
        text = BatchTexts([piece], [home.bundles().load_task_part(artefact)])[0]
        for whole in (True, False):
            one = [replace(text, whole=whole)]
            batch = StageBatch(piece.item.key, 2, one, lambda *_: [None], [text.objective])
            assert bool(EarlyExit().hooks(ON, batch)) is whole, "several windows are not concerned"


async def test_a_tagged_text_leaves_by_its_least_certain_word(home: Home) -> None:
    """A ramp that is unsure of some words only."""
    with ramped(home, TAGS) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            words = [t.split() for t in home.covered[:12]]
            ids = unaudited("words", 12)
            asked = [TextRequest(TAGS, w, provenance=True, id=i) for w, i in zip(words, ids, strict=True)]
            await engine.infer(asked)
            state = state_of(engine, artefact)
            u, _ = state.records()
            assert len(u) == 12
            worst = {}
            plant(state, ANY)
            for request, result in zip(asked, await engine.infer(asked), strict=True):
                assert result.provenance is not None
                worst[request.id] = 1.0 - (result.provenance.confidence or 0.0)
            # In the middle of the widest gap: last digits depend on the batch.
            _, middle = max((b - a, (a + b) / 2) for a, b in pairwise(sorted(worst.values())))
            plant(state, (middle, 0.0))
            for request, result in zip(asked, await engine.infer(asked), strict=True):
                left = result.provenance is not None and result.provenance.layers == 0
                assert left is (worst[request.id] < middle)
            assert sorted(u[:, 0]) == pytest.approx(sorted(worst.values()), abs=1e-4), "of recorded texts too"


async def test_ramps_that_become_wrong_ring_the_alarm_and_nobody_leaves_any_more(home: Home) -> None:
    full = [r.label for r in await _answers(home, home.covered)]
    other = 0 if full.count("pos") > len(full) / 2 else 1
    wrong = {site: always(home.state("acme.mood"), other) for site in SITES}
    with ramped(home, MOOD, wrong) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            plant(state_of(engine, artefact), (1e-3, 0.0), texts=2000)
            left = []
            for i in range(12):
                found = await engine.infer(requests(MOOD, home.covered, f"drift {i}"))
                left.append(sum(n == 0 for n in layers(found)))
            report = engine.exits.report(artefact) if engine.exits else None
    assert report is not None
    assert report.alarms == 1
    assert report.left == {0: sum(left)}
    assert 0 < sum(left) <= 20 + 0.01 * 12 * 30, "what the account could afford"
    assert left[-1] == 0
    assert report.state in ("collecting", "off")


async def _answers(home: Home, texts: list[str]) -> list[TextResult]:
    async with started(home.engine(precision="fp32")) as engine:
        return await engine.infer(requests(MOOD, texts))


async def test_texts_that_fail_give_their_audits_back(home: Home) -> None:
    with ramped(home, MOOD) as artefact, ramped(home, OTHER) as other:
        async with started(home.engine(precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]) + requests(OTHER, home.covered[:1]))
            states = [state_of(engine, a) for a in (artefact, other)]
            for state in states:
                plant(state, (0.0, 1e-9), phase=1)
            before = [(s.control.account.texts, s.control.audits.seen) for s in states]
            executor = (await _bundle(engine, MOOD)).executor
            run, failed = executor.run, list[Left]()

            def once(key, rows, modules, hooks=()):  # type: ignore[no-untyped-def]
                for left in run(key, rows, modules, hooks):
                    if not failed:
                        failed.append(left)
                        raise RuntimeError("planted")
                    yield left

            executor.run = once
            try:
                asked = requests(MOOD, home.covered[:10], "x") + requests(OTHER, home.covered[:10], "y")
                found = await asyncio.gather(
                    *(engine.infer([request]) for request in asked), return_exceptions=True
                )
            finally:
                del executor.run
            assert failed
            for model, state, (texts, audits) in zip((MOOD, OTHER), states, before, strict=True):
                pairs = zip(asked, found, strict=True)
                answered = [r.id for r, a in pairs if r.model == model and isinstance(a, list)]
                account = state.control.account
                assert account.texts == texts + len(answered), "once each, although their batch ran twice"
                assert (account.count.pending, account.count.free) == ({}, 0)
                drawn = sum(draw(AUDIT, one) < 1 / 3 for one in answered)
                assert state.control.audits.seen == audits + drawn


async def _bundle(engine: Engine, model: ModelId):  # type: ignore[no-untyped-def]
    return await engine._loader.load(model, exact=False)


async def test_late_labels_find_their_answers(home: Home) -> None:
    with ramped(home, MOOD) as artefact, ramped(home, TAGS) as tags:
        async with started(home.engine(precision="fp32")) as engine:
            exits = engine.exits
            assert exits is not None
            asked = requests(MOOD, home.covered[:6]) + requests(
                TAGS, [t.split() for t in home.covered[:3]], "t"
            )
            found = await engine.infer(asked)
            ids = unaudited("gone", 6)
            plant(state_of(engine, artefact), ANY)
            early = await engine.infer(
                [TextRequest(MOOD, t, id=i) for t, i in zip(home.covered[:6], ids, strict=True)]
            )
            assert not exits.feedback(artefact, "unknown", "pos")
            assert not exits.feedback("unknown", "r-0", "pos")
            assert all(exits.feedback(artefact, f"r-{i}", found[i].label or "") for i in range(6))
            assert not exits.feedback(artefact, "r-0", "pos"), "each answer counts once"
            assert all(exits.feedback(tags, f"t-{i}", found[6 + i].tags or []) for i in range(3))
            for i, (one, result) in enumerate(zip(ids, early, strict=True)):
                other = "neg" if result.label == "pos" else "pos"
                assert exits.feedback(artefact, one, other if i == 0 else result.label or "")
            report = exits.report(artefact)
            assert report is not None
            assert (report.full.seen, report.full.right) == (6, 6)
            assert (report.early.seen, report.early.right) == (6, 5)
            assert 0.3 < report.early.at_least < 5 / 6 < report.early.at_most < 1


async def test_a_stopped_engines_state_is_taken_over_once_and_a_damaged_one_begins_anew(home: Home) -> None:
    folder = home.settings.data / "exits"
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:8]))
            plant(state_of(engine, artefact), ANY)
            await engine.infer(requests(MOOD, home.covered[:8], "x"))
            assert engine.exits is not None
            state, before = state_of(engine, artefact), engine.exits.report(artefact)
        (path,) = folder.glob(f"{artefact}/*")
        data = path.read_bytes()
        async with started(home.engine(precision="fp32")) as engine:
            ids = unaudited("taken", 1)
            found = await engine.infer([TextRequest(MOOD, home.covered[0], provenance=True, id=ids[0])])
            assert layers(found) == [0], "the policy is in force again"
            after = state_of(engine, artefact)
            assert before is not None
            assert after.control.account.texts == before.texts + 1
            assert (after.records()[0] == state.records()[0]).all()
            assert not path.exists(), "a crash from here on begins anew"
        path.write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
        async with started(home.engine(precision="fp32")) as engine:
            await engine.infer(requests(MOOD, home.covered[:1]))
            report = engine.exits.report(artefact) if engine.exits else None
            assert report is not None
            assert (report.texts, report.state) == (1, "collecting")
            engine.forget(DeletedParts(artefacts=frozenset([artefact])))
        assert not (folder / artefact).exists()


async def test_a_forgotten_artefact_begins_anew_and_batches_are_cut_as_without_the_stage(home: Home) -> None:
    with ramped(home, MOOD) as artefact:
        async with started(home.engine(precision="fp32")) as engine:
            exits = engine.exits
            assert exits is not None
            await engine.infer(requests(MOOD, home.covered[:4]))
            ((measured, key, n),) = [(m, k, n) for (k, n), m in exits._measured.items()]
            plant(state_of(engine, artefact), ANY)
            await engine.infer(requests(MOOD, home.covered, "x"))
            assert measured.known
            shape = Shape(key, n)
            assert exits.effect(ON, shape).work == 1.0, "although texts leave: other models' texts may not"
            engine.forget(DeletedParts(artefacts=frozenset([artefact])))
            assert exits.report(artefact) is None
            await engine.infer(requests(MOOD, home.covered[:4]))
            report = exits.report(artefact)
            assert report is not None
            assert (report.texts, report.state) == (4, "collecting")
            assert torch.is_inference_mode_enabled() is False
            assert key.reads == "cls"
