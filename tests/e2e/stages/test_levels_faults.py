"""A cascade between two roots when something is unusual: scores, clients, small levels that are gone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from itertools import chain
from typing import Any

import pytest

from hmi.core import DeletedParts, ModelId, Objective
from hmi.engine import TextRequest, TextResult
from hmi.engine.adaptive.levels import Admitted
from hmi.errors import Unavailable
from hmi.stages.cascade.ensemble import calibrated
from tests.e2e.conftest import Home
from tests.e2e.stages.levels_lab import (
    CLOSE,
    LARGE,
    SMALL,
    TERMS,
    TWIN,
    WRONG,
    ask,
    cascade_of,
    change,
    in_order,
    open_gate,
    running,
    same,
    watched,
)

pytestmark = pytest.mark.usefixtures("short")


def planted(pair: Home, small: str = SMALL, **offer: float) -> None:
    change(pair, cascade=cascade_of(pair, small, **offer), objective=Objective(agreement=0.7))


def levels_of(results: Sequence[TextResult]) -> list[str | None]:
    return [result.provenance.level for result in results if result.provenance]


def values(result: TextResult) -> list[float]:
    assert result.scores is not None
    assert result.score == pytest.approx(max(result.scores.values()), abs=CLOSE)
    return list(result.scores.values())


@pytest.mark.parametrize("weight", [1.0, 0.4])
async def test_scores_of_one_call_are_of_one_kind(
    pair: Home, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Calibrated by the temperature of each level if asked for, whichever level ran; else with the large
    level's temperature taken back."""
    change(pair, cascade=None, objective=Objective())
    async with running(pair) as engine:
        plain = await engine.infer(ask(range(40)))
    planted(pair, weight=weight)
    in_order(monkeypatch, chain(range(40), [0], *[range(40)] * 2))
    async with running(pair) as engine:
        for raw, one in zip(plain, await engine.infer(ask(range(40), calibrated=True)), strict=True):
            assert values(one) == pytest.approx(calibrated(values(raw), 1.5).tolist(), abs=CLOSE)
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine, for_good=True)
        both = [await engine.infer(ask(range(40), calibrated=wanted)) for wanted in (True, False)]
    assert {*levels_of(both[0])} == {"small", "large"}
    for one, raw in zip(*both, strict=True):
        assert one.label == raw.label
        assert values(one) == pytest.approx(calibrated(values(raw), 1.5).tolist(), abs=CLOSE)


async def test_audits_run_after_the_answer_and_count_as_disagreements_if_they_fail(pair: Home) -> None:
    """A client that stops waiting for an answer stops no audit. What is lost is no random sample."""
    planted(pair, WRONG, cut_off=0.0, slope=50.0)
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        really, trial, wrong = engine._levels._ask, watched(engine).trial, 0
        answered = asyncio.Event()

        async def slow(requests: Sequence[TextRequest], admitted: Sequence[Admitted]) -> list[TextResult]:
            if str(requests[0].model) == LARGE:
                await answered.wait()
                raise RuntimeError("planted: the large level cannot run")
            return await really(requests, admitted)

        engine._levels._ask = slow
        for i in range(300):
            answered.clear()
            (result,) = await engine.infer(ask([i], deadline=time.monotonic() + 60))
            wrong += levels_of([result]) == ["small"]
            assert trial.under_way == len(engine._levels._checks)
            answered.set()
            await asyncio.gather(*engine._levels._checks)
            if watched(engine).report.alarms:
                break
        assert wrong > 3
        assert watched(engine).report.alarms == 1
        assert wrong <= TERMS.loss * trial.texts
        assert trial.under_way == 0


async def test_a_stop_ends_audits_under_way(pair: Home) -> None:
    planted(pair, TWIN, cut_off=0.0, slope=50.0)
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        await engine.infer(ask(range(40)))
        checks = list(engine._levels._checks)
        assert checks
    assert all(check.done() for check in checks)
    assert watched(engine).trial.under_way == 0


async def test_a_client_cannot_choose_what_is_audited(pair: Home) -> None:
    planted(pair)
    async with running(pair) as engine:
        for _ in range(30):
            await engine.infer(ask([0]))
        assert 2 < watched(engine).report.audited < 28, "of 30 calls with the same id"


async def test_a_small_level_of_another_task_is_not_asked(pair: Home) -> None:
    """It was deleted, and made again for pairs of texts."""
    registry = pair.manager.registry
    live = registry.model(ModelId.parse("acme.pairs")).live
    registry.publish_model(
        ModelId.parse("acme.remade"), live.model_copy(update={"version": 0, "job": f"j{time.monotonic_ns()}"})
    )
    made = cascade_of(pair).model_copy(update={"small": "acme.remade"})
    change(pair, cascade=made, objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        assert len(await engine.infer(ask(range(20)))) == 20
        assert watched(engine).report.audited == 0
    registry.delete_model(ModelId.parse("acme.remade"))


async def test_a_small_level_that_cannot_be_loaded_costs_no_answer(
    pair: Home, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor those of another model's small level in the same call."""
    change(pair, cascade=None, objective=Objective())
    async with running(pair) as engine:
        plain = await engine.infer(ask(range(20)))
    planted(pair, cut_off=0.0, slope=50.0)
    twin, made = ModelId.parse(TWIN), cascade_of(pair, WRONG, cut_off=0.0, slope=50.0)
    update: dict[str, Any] = {"cascade": made, "objective": Objective(agreement=0.7)}
    pair.manager.registry.change_model(twin, lambda record: record.model_copy(update=update))
    async with running(pair) as engine:
        await engine.infer([*ask([0]), *ask([0], TWIN)])
        for model in (LARGE, TWIN):
            open_gate(engine, model, for_good=True)
        admit = engine._admission.admit

        async def refusing(requests: Sequence[TextRequest]) -> list[Admitted]:
            if any(str(request.model) == SMALL for request in requests):
                raise Unavailable("planted: the root cannot be read")
            return await admit(requests)

        monkeypatch.setattr(engine._admission, "admit", refusing)
        found = await engine.infer([*ask(range(20)), *ask(range(20, 40), TWIN)])
        assert all(map(same, found[:20], plain))
        assert {*levels_of(found[:20])} == {"large"}
        assert "small" in levels_of(found[20:])
        assert watched(engine).trial.under_way == 0
    update = {"cascade": None, "objective": Objective()}
    pair.manager.registry.change_model(twin, lambda record: record.model_copy(update=update))


async def test_deleted_artefacts_leave_no_evidence(pair: Home) -> None:
    planted(pair)
    made = cascade_of(pair)
    live = pair.manager.registry.model(ModelId.parse(LARGE)).live
    about = ModelId.parse(LARGE), live.artefact, made.small_artefact or "", 0.7
    async with running(pair) as engine:
        for gone in (live.artefact, made.small_artefact):
            await engine.infer(ask([0]))
            engine.forget(DeletedParts(artefacts=frozenset(["another"])))
            assert engine.cascade_report(*about) is not None
            engine.forget(DeletedParts(artefacts=frozenset([str(gone)])))
            assert engine.cascade_report(*about) is None
