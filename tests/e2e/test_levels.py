"""A cascade between two roots, from its profile to its traffic: the small level, the large one, the gate."""

from __future__ import annotations

import asyncio
import shutil
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from hmi.core import Cascade, ModelId, ModelRecord, Objective, Offer
from hmi.engine import Engine, TextRequest, TextResult
from hmi.engine.levels import WatchedLevels
from hmi.errors import DeadlineExceeded, InvalidData, InvalidInput, NotFound
from hmi.jobs import profile_cascade
from hmi.jobs.runtime.context import JobContext
from hmi.manager import Manager
from hmi.metrics import Metrics
from hmi.model.artefact import Artefact
from hmi.stages.cascade import watched as watching
from hmi.stages.cascade.dispatch import Dispatcher, goes_on, share_large
from hmi.stages.cascade.ensemble import calibrated, combined
from hmi.stages.cascade.gate import Terms
from hmi.stages.draw import draw
from hmi.stages.early_exit.drift import Alarm
from tests.e2e.conftest import QUICK, ROOT_OPTIONS, ROOT_TEXT, Home, jsonl, mood_rows
from tests.tiny import random_texts

LARGE, SMALL, TWIN, WRONG = "acme.large", "acme.mood", "acme.twin", "acme.wrong"
TERMS = Terms(loss=0.3, share=0.5)
"""Few texts suffice, so that tests are short."""
PLAIN = {**QUICK, "ramps": False}
CLOSE = 1e-5
TEXTS = [f"{text} {'good' if i % 2 else 'bad'}" for i, text in enumerate(random_texts(60, seed=70))]


@pytest.fixture(scope="module")
def pair(home: Home, tiny_source: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A copy of the data folder with a second root of three upper layers, and a model on each root."""
    data = tmp_path_factory.mktemp("levels") / "data"
    shutil.copytree(home.settings.data, data)
    settings = replace(home.settings, data=data)
    manager = Manager(settings)
    two = Home(manager, settings, home.covered)
    two.run(
        manager.import_root(
            "tall", str(tiny_source), split=1, texts={"text-0.txt": ROOT_TEXT}, options=ROOT_OPTIONS
        )
    )
    two.run(
        manager.create_model(LARGE, domain="tall", task="classification", data=mood_rows(17), options=PLAIN)
    )
    copies(two)
    yield two
    manager.close()


def copies(pair: Home) -> None:
    """Publish a twin of the large level, and a copy that always gives the other label."""
    m, live = pair.manager, pair.manager.registry.model(ModelId.parse(LARGE)).live
    found = Artefact.split(m.adapters.get(live.artefact))
    other = replace(found, head={k: -v if "out" in k else v for k, v in found.head.items()})
    name, size = m.adapters.put(other.joined(), {})
    for model, artefact in ((TWIN, live.artefact), (WRONG, name)):
        of = {"artefact": artefact, "bytes": size, "version": 0, "job": f"j{model.partition('.')[2]}"}
        m.registry.publish_model(ModelId.parse(model), live.model_copy(update=of))


def change(pair: Home, **fields: Any) -> None:
    pair.manager.registry.change_model(ModelId.parse(LARGE), lambda r: r.model_copy(update=fields))


def cascade_of(pair: Home, small: str = SMALL, **offer: float) -> Cascade:
    """A cascade of one dispatcher, without a profile."""
    record, first = (pair.manager.registry.model(ModelId.parse(name)) for name in (LARGE, small))
    given = {"cut_off": 0.5, "slope": 4.0, "weight": 1.0, **offer}
    return Cascade(
        small=small,
        version=record.live.version,
        small_version=first.live.version,
        small_artefact=first.live.artefact,
        temperature=0.3,
        large_temperature=1.5,
        rows=400,
        large_accuracy=1.0,
        large_ms=2.0,
        offers=(Offer(**given, accuracy=1.0, agreement=1.0, mean_ms=1.0, returned=0.5),),
    )


@pytest.fixture
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    class Few(Terms):
        @classmethod
        def of(cls, agreement: float) -> Terms:
            return TERMS

    monkeypatch.setattr(watching, "Terms", Few)


@asynccontextmanager
async def running(pair: Home, metrics: Metrics | None = None) -> AsyncIterator[Engine]:
    engine = pair.engine(metrics)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.stop()


def ask(ids: Sequence[int], model: str = LARGE, **options: Any) -> list[TextRequest]:
    given = {"scores": True, "provenance": True, **options}
    return [TextRequest(ModelId.parse(model), TEXTS[i % len(TEXTS)], id=f"r{i}", **given) for i in ids]


def said(result: TextResult) -> tuple[Any, ...]:
    return result.label, result.score, result.scores


def same(one: TextResult, other: TextResult) -> bool:
    """Whether two answers are equal but for what the composition of their batches changes."""
    close = pytest.approx(other.scores, abs=CLOSE)
    return one.label == other.label and one.scores is not None and one.scores == close


def watched(engine: Engine) -> WatchedLevels:
    (found,) = engine._levels._watched.values()
    return found


def open_gate(engine: Engine, *, for_good: bool = False) -> None:
    """Let the gate open by audits that agree, and the stream be long enough. for_good: without an alarm."""
    trial = watched(engine).trial
    for _ in range(400):
        trial.record(trial.begin(audited=True), disagrees=False)
    assert trial.open
    assert trial.solvent
    if for_good:
        trial._alarm = Alarm(TERMS.loss, run_length=10**300)


def audited(i: int) -> bool:
    return draw("audit", f"r{i}") < TERMS.share


async def test_the_closed_gate_answers_as_the_large_level_and_audits_open_it(pair: Home, short: None) -> None:
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
        if result.provenance.level == "large":
            assert same(result, alone), f"r{i}: the large level's answer"
        else:
            assert not audited(i), "an audited text gets the large level's answer"


@pytest.mark.parametrize("weight", [1.0, 0.4])
async def test_each_text_is_answered_as_alone_at_the_same_decision(
    pair: Home, short: None, weight: float
) -> None:
    """By the equations, from each level's own answers."""
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
        if not on and not audited(i):
            assert same(together[i], small[i]), "the small level's answer"
        elif not on or weight == 1.0:
            assert same(together[i], large[i]), "the large level's answer"
        else:
            both = combined(p, q, weight)
            assert together[i].label == labels[both.argmax()]
            assert list((together[i].scores or {}).values()) == pytest.approx(both.tolist(), abs=CLOSE)
        made_by = together[i].provenance
        assert made_by
        assert made_by.confidence == pytest.approx(p.max(), abs=CLOSE)
        assert made_by.versions.root.startswith("tiny/" if made_by.level == "small" else "tall/")
        assert made_by.level == ("small" if not on and not audited(i) else "large")
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
        assert not engine._levels._watched, "without an objective the cascade is off"
    assert {r.provenance.level for r in found if r.provenance} == {None}


async def test_usage_counts_requests_once_and_both_levels_work(pair: Home, short: None) -> None:
    change(pair, cascade=cascade_of(pair), objective=Objective(agreement=0.7))
    metrics = Metrics()
    async with running(pair, metrics) as engine:
        await engine.infer(ask([0]))
        open_gate(engine)
        before = metrics.usage.of("acme")
        found = await engine.infer(ask(range(40)))
        after = metrics.usage.of("acme")
    assert after.requests - before.requests == 1
    large = sum(1 for r in found if r.provenance and r.provenance.level == "large")
    assert after.inputs - before.inputs == 40 + large


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
        watched(engine).rests_until = 0.0
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
        assert engine.cascade_report(ModelId.parse("globex.mood"), "a", "b") is None
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
        assert trial._under_way == 0
        assert engine._queue.tokens == 0


def test_a_profile_of_two_roots(pair: Home) -> None:
    rows = mood_rows(23, 300) + mood_rows(17, 40)  # 40 that the large level was trained on, or nearly
    change(pair, cascade=None)
    with pytest.raises(NotFound, match="no cascade"):
        pair.manager.cascade(LARGE)
    job = pair.run(pair.manager.profile_cascade(LARGE, small=SMALL, data=rows))
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
