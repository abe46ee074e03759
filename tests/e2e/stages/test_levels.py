"""A cascade between two roots, from its profile to its traffic: the small level, the large one, the gate."""

from __future__ import annotations

import asyncio
import time
from itertools import chain, cycle

import pytest

from hmi.core import ModelId, ModelRecord, Objective
from hmi.engine import TextRequest
from hmi.errors import DeadlineExceeded, InvalidData, InvalidInput, NotFound
from hmi.jobs.model.cascade_levels import carried
from hmi.jobs.options import Reading
from hmi.jobs.runtime.context import JobContext
from hmi.jobs.stage import profile_cascade
from hmi.metrics import Metrics
from hmi.stages.cascade.dispatch import Dispatcher, goes_on, share_large
from hmi.stages.cascade.ensemble import calibrated, combined
from tests.e2e.conftest import Home, jsonl, mood_rows
from tests.e2e.stages.levels_lab import (
    CLOSE,
    LARGE,
    SMALL,
    TERMS,
    TEXTS,
    TWIN,
    WRONG,
    ask,
    audited,
    cascade_of,
    change,
    in_order,
    open_gate,
    running,
    said,
    same,
    watched,
)


async def test_the_closed_gate_answers_as_the_large_level_and_audits_open_it(
    pair: Home, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order(monkeypatch, chain(range(20), cycle(range(60))))
    change(pair, cascade=None, objective=Objective())
    async with running(pair) as engine:
        plain = await engine.infer(ask(range(60)))
    change(pair, cascade=cascade_of(pair, TWIN), objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        first = await engine.infer(ask(range(20)))
        assert all(map(same, first, plain))
        assert {r.provenance.level for r in first if r.provenance} == {"large"}
        now = watched(engine).report
        assert (now.state, now.texts, now.returned) == ("testing", 20, 0)
        assert now.audited == sum(map(audited, range(20)))
        # So long that a call's 30 audits, disagreements until they are reported, do not use the credit up.
        while watched(engine).report.state != "in use" or watched(engine).trial.texts < 600:
            await engine.infer(ask(range(60)))
            assert watched(engine).trial.texts < 2000
        before = watched(engine).report
        found = await engine.infer(ask(range(60)))
        after = watched(engine).report
    levels = [r.provenance.level for r in found if r.provenance]
    assert after.returned - before.returned == levels.count("small") >= 5
    for i, (result, alone) in enumerate(zip(found, plain, strict=True)):
        assert result.provenance
        assert str(result.model) == LARGE
        assert result.version == alone.version
        assert result.provenance.confidence is not None
        assert {*result.timing} == {"queue_ms", "retrieve_ms", "compute_ms"}
        assert result.label == alone.label
        if result.provenance.level == "large":
            assert same(result, alone), f"r{i}: the large level's answer"


@pytest.mark.parametrize("weight", [1.0, 0.4])
async def test_each_text_is_answered_as_alone_at_the_same_decision(
    pair: Home, short: None, weight: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The answers by the equations, from each level's own answers."""
    in_order(monkeypatch, chain([0], *[range(40)] * 3))
    change(pair, cascade=None, objective=Objective())
    async with running(pair) as engine:
        large = await engine.infer(ask(range(40)))
        small = await engine.infer(ask(range(40), SMALL))
    made = cascade_of(pair, weight=weight)
    change(pair, cascade=made, objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine, for_good=True)
        together = await engine.infer(ask(range(40)))
        alone = [(await engine.infer(ask([i])))[0] for i in range(40)]
        bare = await engine.infer(ask(range(40), scores=False, provenance=False))
    labels = pair.manager.registry.model(ModelId.parse(LARGE)).live.labels
    seen = set()
    for i in range(40):
        assert same(together[i], alone[i])
        assert (bare[i].label, bare[i].scores, bare[i].provenance) == (together[i].label, None, None)
        p, q = (
            calibrated([(r.scores or {})[label] for label in labels], t)
            for r, t in ((small[i], made.temperature), (large[i], made.large_temperature))
        )
        on = goes_on(f"r{i}", float(share_large(p.max(), Dispatcher(0.5, 4.0))))
        seen.add((on, audited(i)))
        if not on:
            assert together[i].label == small[i].label
            on_scale = calibrated(p, 1 / made.large_temperature)
            assert list((together[i].scores or {}).values()) == pytest.approx(on_scale.tolist(), abs=CLOSE)
        elif weight == 1.0:
            assert same(together[i], large[i]), "the large level's answer"
        else:
            both = combined(p, q, weight)
            assert together[i].label == labels[both.argmax()]
            on_scale = calibrated(both, 1 / made.large_temperature)
            assert list((together[i].scores or {}).values()) == pytest.approx(on_scale.tolist(), abs=CLOSE)
        made_by = together[i].provenance
        assert made_by
        assert made_by.confidence == pytest.approx(p.max(), abs=CLOSE)
        assert made_by.versions.root.startswith("tiny/" if made_by.level == "small" else "tall/")
        assert made_by.level == ("large" if on else "small"), "audited or not"
    assert len(seen) == 4, "returned and sent on, audited and not"


async def test_a_cut_off_of_1_is_the_large_level_to_the_bit(pair: Home, short: None) -> None:
    change(pair, cascade=None, objective=Objective())
    async with running(pair) as engine:
        plain = await engine.infer(ask(range(20)))
    change(pair, cascade=cascade_of(pair, cut_off=1.0, weight=0.3), objective=Objective(agreement=0.7))
    metrics = Metrics()
    async with running(pair, metrics) as engine:
        found = await engine.infer(ask(range(20)))
        assert watched(engine).report.state == "no offer"
    assert [said(r) for r in found] == [said(r) for r in plain]
    assert metrics.usage.of("acme").inputs == 20, "the small level did not run"


async def test_requests_that_insist_on_the_model_itself_get_it(pair: Home, short: None) -> None:
    change(pair, cascade=cascade_of(pair), objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        for options in ({"exact": True}, {"early": False}):
            found = await engine.infer(ask(range(10), **options))
            assert {r.provenance.level for r in found if r.provenance} == {None}
        metrics = Metrics()
    change(pair, objective=Objective())
    async with running(pair, metrics) as engine:
        found = await engine.infer(ask(range(10)))
        assert not engine._levels._evidence._profiles, "without an objective the cascade is off"
    assert {r.provenance.level for r in found if r.provenance} == {None}


async def test_usage_counts_requests_once_and_both_levels_work(
    pair: Home, short: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    in_order(monkeypatch, range(41))
    change(pair, cascade=cascade_of(pair), objective=Objective(agreement=0.7))
    metrics = Metrics()
    async with running(pair, metrics) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        before = metrics.usage.of("acme")
        found = await engine.infer(ask(range(40)))
        await asyncio.gather(*engine._levels._checks)
        after = metrics.usage.of("acme")
    assert after.requests - before.requests == 1
    small = [r.provenance is not None and r.provenance.level == "small" for r in found]
    checks = sum(1 for i, early in enumerate(small) if early and audited(i + 1))
    assert after.inputs - before.inputs == 40 + small.count(False) + checks
    assert checks > 0


async def test_a_stale_cascade_leaves_the_large_level_alone(pair: Home, short: None) -> None:
    registry, first = pair.manager.registry, ModelId.parse(SMALL)
    change(pair, cascade=cascade_of(pair), objective=Objective(agreement=0.7))
    assert pair.manager.cascade(LARGE).stale is None
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        live = registry.model(first).live
        newer = live.model_copy(update={"version": 0, "job": f"j{time.monotonic_ns()}"})
        registry.publish_model(first, newer)
        found = await engine.infer(ask(range(20)))
        assert {r.provenance.level for r in found if r.provenance} == {"large"}
        assert "version" in (pair.manager.cascade(LARGE).stale or "")
        registry.set_current(first, live.version)
        engine._levels._paused.clear()
        found = await engine.infer(ask(range(20)))
        assert "small" in {r.provenance.level for r in found if r.provenance}
        change(pair, cascade=cascade_of(pair).model_copy(update={"version": 99}))
        found = await engine.infer(ask(range(20)))
        assert {r.provenance.level for r in found if r.provenance} == {None}
        change(pair, cascade=cascade_of(pair).model_copy(update={"small": "acme.gone"}))
        assert "does not exist" in (pair.manager.cascade(LARGE).stale or "")
        await engine.infer(ask([0]))
        open_gate(engine)
        assert len(await engine.infer(ask(range(5)))) == 5, "the large level answers"


def test_new_ramps_keep_a_profile_of_two_models(pair: Home) -> None:
    made = cascade_of(pair)
    record = pair.manager.registry.model(ModelId.parse(LARGE)).model_copy(update={"cascade": made})
    after = carried(record, made.version, made.version + 1)
    assert after.cascade == made.model_copy(update={"version": made.version + 1})
    assert carried(record, made.version + 5, made.version + 6) is record, "it was stale before"
    inside = record.model_copy(update={"cascade": made.model_copy(update={"small": None, "site": 1})})
    assert carried(inside, made.version, made.version + 1) is inside, "its ramp is another one now"


async def test_the_alarm_closes_the_gate(pair: Home, short: None) -> None:
    change(pair, cascade=cascade_of(pair, WRONG, cut_off=0.0, slope=50.0), objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        wrong = 0
        for i in range(0, 400, 20):
            found = await engine.infer(ask(range(i, i + 20)))
            wrong += sum(1 for r in found if r.provenance and r.provenance.level == "small")
            if watched(engine).report.alarms:
                break
        report = watched(engine).report
        assert report.alarms == 1
        assert report.state in ("testing", "no offer")
        assert wrong <= TERMS.loss * watched(engine).trial.texts
        for i in range(0, 400, 20):
            found = await engine.infer(ask(range(i, i + 20)))
            assert {r.provenance.level for r in found if r.provenance} <= {"large", None}
        assert watched(engine).report.state == "no offer", "its gate was given up"


async def test_tenants_and_models_do_not_share_evidence(pair: Home, short: None) -> None:
    change(pair, cascade=cascade_of(pair), objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        others = [TextRequest(ModelId.parse("globex.mood"), t, scores=True) for t in TEXTS[:10]]
        alone = await engine.infer(others)
        mixed = await engine.infer([*ask(range(10)), *others])
        assert all(map(same, mixed[10:], alone))
        assert watched(engine).trial.texts == 10
        assert engine.cascade_report(ModelId.parse("globex.mood"), "a", "b", 0.7) is None
    with pytest.raises(InvalidInput, match="another tenant"):
        pair.manager.profile_cascade(LARGE, small="globex.mood", data=mood_rows(5))
    with pytest.raises(InvalidInput, match="another tenant"):
        pair.manager.profile_cascade(LARGE, small="globex.none", data=mood_rows(5))


async def test_a_deadline_counts_over_both_phases_and_nothing_is_left(pair: Home, short: None) -> None:
    change(pair, cascade=cascade_of(pair), objective=Objective(agreement=0.7))
    async with running(pair) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        trial = watched(engine).trial
        with pytest.raises(DeadlineExceeded):
            await engine.infer(ask(range(20), deadline=time.monotonic() - 1))
        call = asyncio.create_task(engine.infer(ask(range(40))))
        await asyncio.sleep(0.002)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await asyncio.sleep(0.1)
        assert trial.under_way == 0
        assert engine._queue.tokens == 0


def test_a_profile_of_two_roots(pair: Home) -> None:
    rows = mood_rows(23, 300) + mood_rows(17, 40)  # 40 that the large level was trained on, or nearly
    change(pair, cascade=None)
    with pytest.raises(NotFound, match="no cascade"):
        pair.manager.cascade(LARGE)
    named, said = Reading(label_column="what"), rows.replace(b'"label"', b'"what"')
    job = pair.run(pair.manager.profile_cascade(LARGE, small=SMALL, data=said, reading=named))
    assert job.result is not None
    info = pair.manager.cascade(LARGE)
    made = info.cascade
    assert info.stale is None
    assert 0 < job.result["seen_rows"] <= 40
    assert made.rows + job.result["seen_rows"] == len(rows.splitlines())
    assert made.machine
    assert made.small_ms is not None
    assert made.small_ms > 0 < made.large_ms
    for offer in made.offers:
        assert 0 <= offer.returned <= 1
        assert 0 < offer.agreement <= 1
    record = pair.manager.registry.model(ModelId.parse(LARGE))
    assert isinstance(record, ModelRecord)
    pair.manager.delete_cascade(LARGE)
    assert pair.manager.registry.model(ModelId.parse(LARGE)).cascade is None


@pytest.mark.parametrize(
    ("small", "data", "match"),
    [
        (None, mood_rows(1), "no ramps"),
        (LARGE, mood_rows(1), "the model itself"),
        ("acme.pairs", mood_rows(1), "same task"),
        (SMALL, None, "data is missing"),
    ],
)
def test_a_profile_that_cannot_be_is_refused(
    pair: Home, small: str | None, data: bytes | None, match: str
) -> None:
    with pytest.raises(InvalidInput, match=match):
        pair.manager.profile_cascade(LARGE, small=small, data=data)


def test_rows_that_do_not_suffice_fail_the_job(pair: Home) -> None:
    unknown = jsonl([{"text": "x y", "label": "pos"}, {"text": "z", "label": "no"}] * 2)
    for data, match in ((mood_rows(23, 100), "at least 200 rows"), (unknown, "label 'no'")):
        job = pair.manager.profile_cascade(LARGE, small=SMALL, data=data)
        try:
            with pytest.raises(InvalidData, match=match):
                profile_cascade.run(JobContext(job, pair.settings, pair.manager.registry))
        finally:
            pair.manager.cancel_job(job.job)
